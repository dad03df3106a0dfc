// Tests sums of weights on a GPU: values out of range in device memory, views off 16-byte boundaries, NaN,
// repeatability. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>

#include "tests/kernels/weight_sum_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaWeightSum = CudaTest;

TEST_F(CudaWeightSum, ValidOutOfRangeIsClamped) {
  for (const double valid : {-4.0, -3e18, 3e18}) {
    OpCase item = weight_sum_case({Shape{37, 5}, 1}, DType::f32);
    item.inputs[1].start = constant(valid);
    compare(item, cuda(), item, cpu(), item.tolerance);
  }
}

TEST_F(CudaWeightSum, OffTheBoundaryGivesTheSameBits) {
  const OpCase item = weight_sum_case({Shape{101, 333}, 90, true}, DType::f32);
  const CheckedRun first(item, cuda());
  const CheckedRun second(off_boundary(item), cuda());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(first.output(i).values()[0], second.output(i).values()[1]);
  }
}

TEST_F(CudaWeightSum, NaNShowsWhereItCounts) {
  OpCase item = weight_sum_case({Shape{3, 2}, 2, true, ops::GradMode::accumulate}, DType::f32);
  item.inputs[0].start = values({1, 2, -4, 8, std::nan(""), 1});
  const CheckedRun hidden(item, cuda());
  EXPECT_EQ(hidden.output(0).values()[0], 0.5 + 0.375 * 3.5);
  item.inputs[0].start = values({1, std::nan(""), -4, 8, 1, 1});
  const CheckedRun shows(item, cuda());
  EXPECT_TRUE(std::isnan(shows.output(0).values()[0]));
  EXPECT_TRUE(std::isnan(shows.output(1).values()[0]));
}

TEST_F(CudaWeightSum, TheSameBitsEveryTime) {
  expect_repeatable(weight_sum_case({Shape{101, 333}, 90, true}, DType::f32), cuda());
}

}  // namespace
}  // namespace lockstep::testing
