// Tests clipping on a GPU in addition to the test cases that every op has: norms that are not finite.
#include "tests/kernels/clip_checks.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using CudaClip = CudaTest;

TEST_F(CudaClip, ANormThatIsNotFiniteSkipsTheUpdate) {
  expect_skips(cuda());
}

TEST_F(CudaClip, ADivisorThatIsNotPositiveAndFiniteSkipsTheUpdate) {
  expect_no_weight(cuda());
}

}  // namespace
}  // namespace lockstep::testing
