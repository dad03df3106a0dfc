#pragma once

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/low_rank_cases.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {

/// Expects that one NaN or infinity makes all of x NaN and marks every column as not finite. The ops that read the
/// columns must then leave their outputs unchanged.
inline void expect_not_finite_is_told(Context& context, DType dtype) {
  for (const double strange :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    for (const std::int64_t row : {0, 299}) {
      OpCase item = orthonormalise_case(Shape{300, 2}, dtype);
      std::vector<double> list(600);
      for (std::size_t i = 0; i < list.size(); ++i) {
        list[i] = 1 + 0.001 * static_cast<double>(i * i % 97);
      }
      list[static_cast<std::size_t>(2 * row + 1)] = strange;
      item.outputs[0].start = values(std::move(list));
      const CheckedRun instance(item, context);
      for (const double value : instance.output(0).values()) {
        ASSERT_TRUE(std::isnan(value)) << strange << " in row " << row;
      }
      EXPECT_EQ(instance.output(1).values(), (std::vector<double>{2, 2}));
    }
  }
}

}  // namespace lockstep::testing
