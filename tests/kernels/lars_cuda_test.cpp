// Tests LARS on a GPU: updates of one tensor at a time, and elements that are not updated. cuda_cases_test.cpp runs the
// test cases that every op has.
#include "tests/kernels/arena_checks.hpp"
#include "tests/kernels/lars_cases.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using ops::LarsOptions;

using CudaLars = CudaTest;

MakeArenaCase make(const LarsOptions& options) {
  return [=](const ArenaParams& p) { return lars_case(p, options); };
}

TEST_F(CudaLars, TensorByTensorGivesTheBitsOfTheWhole) {
  const LarsOptions options{.momentum = 0.9, .trust_coefficient = 0.5};
  const ArenaParams whole{30021, DType::f32, mixed_segments(30021, 11), 0, 0.3};
  expect_ranges_like_the_whole(make(options), cuda(), whole, {6004, 6004, 18012, 24020, 30021});
}

TEST_F(CudaLars, KeepsWhatItMustNotTouch) {
  const LarsOptions options{.momentum = 0.9, .trust_coefficient = 0.5};
  expect_frozen_elements_kept(make(options), cuda());
  expect_skip_obeyed(make(options), cuda());
  expect_copy_rounded(make(options), cuda(), lars_params_with_copy());
}

}  // namespace
}  // namespace lockstep::testing
