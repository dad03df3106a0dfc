// Tests the ops of PowerSGD on a GPU: gradients that are not finite. cuda_cases_test.cpp runs the test cases that every
// op has.
#include "tests/kernels/low_rank_checks.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using CudaLowRank = CudaTest;

TEST_F(CudaLowRank, ANumberThatIsNotFiniteIsTold) {
  expect_not_finite_is_told(cuda(), DType::f32);
}

}  // namespace
}  // namespace lockstep::testing
