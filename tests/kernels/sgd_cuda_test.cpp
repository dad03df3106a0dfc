// Tests SGD on a GPU: ranges of an arena, the learning rate in device memory, more than 2^31 elements, errors.
// cuda_cases_test.cpp runs the test cases that every op has.
#include <array>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/arena_checks.hpp"
#include "tests/kernels/sgd_cases.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using ops::ArenaSegment;
using ops::SgdOptions;

using CudaSgd = CudaTest;

MakeArenaCase make(const SgdOptions& options) {
  return [=](const ArenaParams& p) { return sgd_case(p, options); };
}

TEST_F(CudaSgd, RangesOfTheArenaGiveTheBitsOfTheWhole) {
  constexpr std::int64_t kCount = 20021;
  for (const SgdOptions& options : sgd_options()) {
    const ArenaParams whole{kCount, DType::f32, many_segments(kCount, 131), 0, 0.3};
    expect_ranges_like_the_whole(make(options), cuda(), whole,
                                 {1, 2, 33, 4096, 4100, 4100, 12288, 12291, 20000, 20021});
  }
}

TEST_F(CudaSgd, KeepsWhatItMustNotTouch) {
  expect_frozen_elements_kept(make({0.9, true}), cuda());
  expect_skip_obeyed(make({0.9, true}), cuda());
  expect_skip_obeyed(make({}), cuda());
}

TEST_F(CudaSgd, TheCopyIsRoundedToNearestEven) {
  expect_copy_rounded(make({0.9, false}), cuda());
}

TEST_F(CudaSgd, TheLearningRateIsReadWhenTheStreamGetsThere) {
  const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
  const Tensor p = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const Tensor g = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const ArenaSegment segment{0, 5};
  ops::fill(cuda(), 1, g);
  for (const double value : {0.5, 0.25, 2.0}) {
    ops::fill(cuda(), value, rate);
    ops::sgd_update(cuda(), {},
                    {.segments = std::span(&segment, 1), .learning_rate = rate, .parameters = p, .gradients = g}, {});
  }
  std::vector<float> host(5);
  copy(cuda(), p, TensorView(std::span(host), Shape{5}));
  cuda().synchronize();
  EXPECT_EQ(host, std::vector<float>(5, -2.75F));
}

TEST_F(CudaSgd, Beyond2To31Elements) {
  run_large([&] {
    const std::int64_t kCount = kLarge + 77;
    const Tensor p = Tensor::empty(cuda(), Shape{kCount}, DType::f32);
    const Tensor g = Tensor::empty(cuda(), Shape{kCount}, DType::f32);
    const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
    ops::fill(cuda(), 0.5, rate);
    ops::fill(cuda(), 1, p);
    ops::fill(cuda(), 1, g);
    const std::array segments{ArenaSegment{7, kCount - 9}};
    ops::sgd_update(cuda(), {}, {.segments = segments, .learning_rate = rate, .parameters = p, .gradients = g}, {});
    for (const std::int64_t begin : {std::int64_t{0}, kLarge - 8, kCount - 16}) {
      const std::vector<double> part = fetch(p.view().slice(0, begin, begin + 16));
      for (std::int64_t i = begin; i < begin + 16; ++i) {
        EXPECT_EQ(part[static_cast<std::size_t>(i - begin)], i < 7 || i >= kCount - 2 ? 1.0 : 0.5) << i;
      }
    }
  });
}

TEST_F(CudaSgd, RefusesOtherTypesThanF32) {
  const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    const Tensor p = Tensor::zeros(cuda(), Shape{5}, dtype);
    const Tensor g = Tensor::zeros(cuda(), Shape{5}, dtype);
    EXPECT_THROW(ops::sgd_update(cuda(), {}, {.learning_rate = rate, .parameters = p, .gradients = g}, {}), DTypeError)
        << dtype;
  }
}

}  // namespace
}  // namespace lockstep::testing
