// Tests ReLU on a GPU: NaN and infinity. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>

#include "tests/kernels/relu_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaRelu = CudaTest;

const std::vector<double> kSpecial{NAN, HUGE_VAL, -HUGE_VAL, 0.0, -0.0, 1.0, -1.0, NAN, 2.5};

TEST_F(CudaRelu, NaNInfinityAndZerosOfBothSigns) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    OpCase item = relu_forward_case({9}, dtype);
    item.inputs[0].start = values(kSpecial);
    const CheckedRun device(item, cuda());
    const std::vector<double> y = device.output(0).values();
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double expected = kSpecial[i] <= 0 ? 0 : kSpecial[i];
      EXPECT_TRUE(std::isnan(kSpecial[i]) ? std::isnan(y[i]) : y[i] == expected) << dtype << ' ' << i << ": " << y[i];
    }
  }
  OpCase item = relu_forward_case({9}, DType::f32);
  item.inputs[0].start = values(kSpecial);
  expect_same_outputs(CheckedRun(item, cuda()), CheckedRun(item, cpu()));
}

TEST_F(CudaRelu, TheGradientOfNaNAndInfinityGoesWhereTheOutputIsPositive) {
  OpCase item = relu_backward_case({9}, DType::f32);
  item.inputs[0].start = values({0, 1, HUGE_VAL, NAN, 1, 0, 2, 1, 0});
  item.inputs[1].start = values({NAN, NAN, 3, 4, HUGE_VAL, -HUGE_VAL, -HUGE_VAL, -0.0, 5});
  expect_same_outputs(CheckedRun(item, cuda()), CheckedRun(item, cpu()));
}

}  // namespace
}  // namespace lockstep::testing
