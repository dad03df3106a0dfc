// SGD on a GPU beyond the cases that all ops share: ranges of an arena, the learning rate in device memory, beyond 2^31
// elements, what is refused.
#include <array>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/copy.hpp>

#include "tests/kernels/sgd_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep {
namespace {

using ops::ArenaSegment;
using ops::SgdOptions;
using testing::OpCase;
using testing::OpInstance;
using testing::sgd_case;

using CudaSgd = testing::CudaTest;

TEST_F(CudaSgd, RangesOfTheArenaGiveTheBitsOfTheWhole) {
  constexpr std::int64_t kCount = 20021;
  for (const SgdOptions& options : {SgdOptions{}, SgdOptions{0.9, false}, SgdOptions{0.9, true}}) {
    const auto segments = testing::many_segments(kCount, 131);
    const OpCase whole = sgd_case({kCount, DType::f32, options, segments, 0});
    OpCase ranges = whole;
    ranges.run = [=](Context& context, testing::Views in, testing::Views out, const TensorView&) {
      std::int64_t begin = 0;
      for (const std::int64_t end : {1, 2, 33, 4096, 4100, 4100, 12288, 12291, 20000, 20021}) {
        ops::sgd_update(context, options, segments, begin, in[0], out[0].slice(0, begin, end),
                        in[1].slice(0, begin, end), out.size() > 1 ? out[1].slice(0, begin, end) : TensorView());
        begin = end;
      }
    };
    testing::compare(whole, cuda(), ranges, cuda(), 0);
    OpCase other = ranges;
    other.inputs[0].start = testing::constant(0.1001);
    OpInstance first(whole, cuda());
    OpInstance second(other, cuda());
    first.run();
    second.run();
    EXPECT_FALSE(testing::has_same_bits(first.output(0), second.output(0))) << "another learning rate must show";
  }
}

TEST_F(CudaSgd, ElementsOutsideTheTrainableSegmentsKeepTheirBits) {
  constexpr std::int64_t kCount = 1000;
  OpInstance instance(sgd_case({kCount, DType::f32, {0.9, true}, testing::mixed_segments(kCount, 17), 0}), cuda());
  instance.run();
  for (std::size_t output = 0; output < 2; ++output) {
    testing::GuardedTensor before(Shape{kCount}, DType::f32);
    before.normal(2 + output);
    const TensorView& after = instance.output(output);
    EXPECT_TRUE(testing::has_same_bits(before.view().slice(0, 600, 817), after.slice(0, 600, 817)));
    EXPECT_FALSE(testing::has_same_bits(before.view().slice(0, 599, 817), after.slice(0, 599, 817)));
    EXPECT_FALSE(testing::has_same_bits(before.view().slice(0, 600, 818), after.slice(0, 600, 818)));
  }
}

TEST_F(CudaSgd, TheLearningRateIsReadWhenTheStreamGetsThere) {
  const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
  const Tensor p = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const Tensor g = Tensor::zeros(cuda(), Shape{5}, DType::f32);
  const ArenaSegment segment{0, 5};
  ops::fill(cuda(), 1, g);
  for (const double value : {0.5, 0.25, 2.0}) {
    ops::fill(cuda(), value, rate);
    ops::sgd_update(cuda(), {}, std::span(&segment, 1), 0, rate, p, g, {});
  }
  std::vector<float> host(5);
  copy(cuda(), p, TensorView(std::span(host), Shape{5}));
  cuda().synchronize();
  EXPECT_EQ(host, std::vector<float>(5, -2.75F));
}

TEST_F(CudaSgd, Beyond2To31Elements) {
  constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 77;
  Tensor p;
  Tensor g;
  try {
    p = Tensor::empty(cuda(), Shape{kCount}, DType::f32);
    g = Tensor::empty(cuda(), Shape{kCount}, DType::f32);
  } catch (const OutOfMemory& error) {
    GTEST_SKIP() << error.what();
  }
  const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
  ops::fill(cuda(), 0.5, rate);
  ops::fill(cuda(), 1, p);
  ops::fill(cuda(), 1, g);
  const std::array segments{ArenaSegment{7, kCount - 9}};
  ops::sgd_update(cuda(), {}, segments, 0, rate, p, g, {});
  for (const std::int64_t begin : {std::int64_t{0}, (std::int64_t{1} << 31) - 8, kCount - 16}) {
    std::array<float, 16> part{};
    copy(cuda(), p.view().slice(0, begin, begin + 16), TensorView(std::span(part), Shape{16}));
    cuda().synchronize();
    for (std::int64_t i = begin; i < begin + 16; ++i) {
      EXPECT_EQ(part[static_cast<std::size_t>(i - begin)], i < 7 || i >= kCount - 2 ? 1.0F : 0.5F) << i;
    }
  }
}

TEST_F(CudaSgd, RefusesOtherTypesThanF32) {
  const Tensor rate = Tensor::zeros(cuda(), Shape{}, DType::f64);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    const Tensor p = Tensor::zeros(cuda(), Shape{5}, dtype);
    const Tensor g = Tensor::zeros(cuda(), Shape{5}, dtype);
    EXPECT_THROW(ops::sgd_update(cuda(), {}, {}, 0, rate, p, g, {}), DTypeError) << dtype;
  }
}

}  // namespace
}  // namespace lockstep
