// What PowerSGD needs on a GPU beyond the cases that all ops share: gradients that are not finite.
#include "tests/kernels/low_rank_checks.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep {
namespace {

using CudaLowRank = testing::CudaTest;

TEST_F(CudaLowRank, ANumberThatIsNotFiniteIsTold) {
  testing::expect_not_finite_is_told(cuda(), DType::f32);
}

}  // namespace
}  // namespace lockstep
