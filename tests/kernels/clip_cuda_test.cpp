// Tests clipping on a GPU: norms that are not finite. cuda_cases_test.cpp runs the test cases that every op has.
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
