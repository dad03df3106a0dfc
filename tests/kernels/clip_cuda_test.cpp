// Clipping on a GPU beyond the cases that all ops share: norms that are not finite.
#include "tests/kernels/clip_checks.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep {
namespace {

using CudaClip = testing::CudaTest;

TEST_F(CudaClip, ANormThatIsNotFiniteSkipsTheUpdate) {
  testing::expect_skips(cuda());
}

TEST_F(CudaClip, ADivisorThatIsNotPositiveAndFiniteSkipsTheUpdate) {
  testing::expect_no_weight(cuda());
}

}  // namespace
}  // namespace lockstep
