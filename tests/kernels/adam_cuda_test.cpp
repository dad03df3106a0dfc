// Tests Adam on a GPU: ranges of an arena, elements that are not updated, and the step number in device memory.
// cuda_cases_test.cpp runs the test cases that every op has.
#include <vector>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/adam_cases.hpp"
#include "tests/kernels/arena_checks.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using ops::AdamOptions;

using CudaAdam = CudaTest;

MakeArenaCase make(const AdamOptions& options) {
  return [=](const ArenaParams& p) { return adam_case(p, options); };
}

TEST_F(CudaAdam, RangesOfTheArenaGiveTheBitsOfTheWhole) {
  constexpr std::int64_t kCount = 20021;
  for (const AdamOptions& options : adam_options()) {
    const ArenaParams whole{kCount, DType::f32, many_segments(kCount, 131), 0, 0.3};
    expect_ranges_like_the_whole(make(options), cuda(), whole,
                                 {1, 2, 33, 4096, 4100, 4100, 12288, 12291, 20000, 20021});
  }
}

TEST_F(CudaAdam, KeepsWhatItMustNotTouch) {
  expect_frozen_elements_kept(make({}), cuda());
  expect_skip_obeyed(make({}), cuda());
  expect_copy_rounded(make({0.8, 0.9, 1e-3, true}), cuda());
}

TEST_F(CudaAdam, TheStepIsReadWhenTheStreamGetsThere) {
  const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
  const Tensor step = Tensor::zeros(cuda(), Shape{}, DType::i64);
  const Tensor p = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const Tensor g = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const Tensor m = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const Tensor v = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const ops::ArenaSegment segment{0, 5};
  ops::fill(cuda(), 1, g);
  ops::fill(cuda(), 0.5, rate);
  for (const double number : {1, 2, 3}) {
    ops::fill(cuda(), number, step);
    // The gradient is constant, so every step is 0.5 / (1 + 1).
    ops::adam_update(cuda(), {.epsilon = 1},
                     {.segments = std::span(&segment, 1), .learning_rate = rate, .parameters = p, .gradients = g}, step,
                     m, v);
  }
  std::vector<float> host(5);
  copy(cuda(), p, TensorView(std::span(host), Shape{5}));
  cuda().synchronize();
  for (const float value : host) {
    EXPECT_NEAR(value, -0.75F, 1e-6F);
  }
}

}  // namespace
}  // namespace lockstep::testing
