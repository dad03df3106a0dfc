// Tests softmax on a GPU: infinities and NaN, repeatability. cuda_cases_test.cpp runs the test cases that every op has.
#include "tests/kernels/softmax_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::SoftmaxMask;

using CudaSoftmax = CudaTest;

TEST_F(CudaSoftmax, RowsWithoutADistribution) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const SoftmaxMask mask : {SoftmaxMask::none, SoftmaxMask::causal}) {
      const CheckedRun instance(softmax_special_case(dtype, mask), cuda());
      EXPECT_LE(softmax_special_error(instance.output(0).values(), mask), 2e-3);
    }
  }
}

TEST_F(CudaSoftmax, LargeNumbersAndNegativeScales) {
  for (const double scale : {1e8, -1e8}) {
    compare(softmax_large_case(scale), cpu(), softmax_large_case(scale), cuda(), 0);
  }
}

TEST_F(CudaSoftmax, TheSameBitsEveryTime) {
  expect_repeatable(softmax_forward_case({13, 40}, DType::f32, SoftmaxMask::none), cuda());
  expect_repeatable(softmax_backward_case({2, 1032}, DType::f32), cuda());
}

}  // namespace
}  // namespace lockstep::testing
