#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/support/compare.hpp"

namespace lockstep::testing {
namespace {

constexpr std::array kAll{DType::f32, DType::f64, DType::bf16, DType::f16,
                          DType::u8,  DType::i32, DType::i64,  DType::u64};
constexpr std::array kFloating{DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> values(const Tensor& tensor) {
  CpuContext host;
  std::vector<double> result(static_cast<std::size_t>(tensor.view().numel()));
  copy(host, tensor, TensorView(std::span(result), tensor.shape()));
  return result;
}

using Values = std::vector<double>;

TEST(TensorFactories, OnesAndFullInEveryType) {
  CpuContext context;
  for (const DType dtype : kAll) {
    const Tensor ones = Tensor::ones(context, Shape{2, 3}, dtype);
    EXPECT_EQ(ones.dtype(), dtype);
    EXPECT_EQ(ones.shape(), (Shape{2, 3}));
    EXPECT_EQ(values(ones), Values(6, 1)) << dtype;
    EXPECT_EQ(values(Tensor::full(context, Shape{}, 200, dtype)), Values{200}) << dtype;
    EXPECT_EQ(Tensor::full(context, Shape{0, 5}, 1, dtype).view().numel(), 0);
  }
  EXPECT_EQ(values(Tensor::full(context, Shape{2}, -0.5, DType::bf16)), Values(2, -0.5));
  EXPECT_EQ(values(Tensor::full(context, Shape{1}, -kInfinity, DType::f16)), Values{-kInfinity});
  EXPECT_TRUE(std::isnan(values(Tensor::full(context, Shape{1}, std::nan(""), DType::f32))[0]));
  EXPECT_EQ(values(Tensor::full(context, Shape{1}, 0x1p63, DType::u64)), Values{0x1p63});
}

TEST(TensorFactories, FullRefusesWhatTheTypeCannotHold) {
  CpuContext context;
  const auto full = [&](double value, DType dtype) {
    static_cast<void>(Tensor::full(context, Shape{1}, value, dtype));
  };
  EXPECT_NO_THROW(full(255, DType::u8));
  EXPECT_THROW(full(256, DType::u8), UsageError);
  EXPECT_THROW(full(-1, DType::u64), UsageError);
  EXPECT_THROW(full(2.5, DType::i32), UsageError);
  EXPECT_THROW(full(std::nan(""), DType::i32), UsageError);
  EXPECT_THROW(full(0x1p63, DType::i64), UsageError);
  EXPECT_NO_THROW(full(65504, DType::f16));
  EXPECT_THROW(full(65505, DType::f16), UsageError);
  EXPECT_THROW(full(1e39, DType::bf16), UsageError);
  EXPECT_THROW(full(1e39, DType::f32), UsageError);
  EXPECT_THROW(static_cast<void>(Tensor::ones(context, Shape{-1}, DType::f32)), ShapeError);
}

TEST(TensorFactories, Arange) {
  CpuContext context;
  for (const DType dtype : kAll) {
    EXPECT_EQ(values(Tensor::arange(context, 2, 9, 3, dtype)), (Values{2, 5, 8})) << dtype;
    EXPECT_EQ(values(Tensor::arange(context, 5, 0, -2, dtype)), (Values{5, 3, 1})) << dtype;
    EXPECT_EQ(Tensor::arange(context, 4, 4, 1, dtype).shape(), Shape{0});
  }
  EXPECT_EQ(values(Tensor::arange(context, 0, 1, 0.25, DType::f16)), (Values{0, 0.25, 0.5, 0.75}));
  // Whole numbers beyond 2048 in f16 and 256 in bf16 are rounded to even neighbours.
  EXPECT_EQ(values(Tensor::arange(context, 2047, 2052, 1, DType::f16)), (Values{2047, 2048, 2048, 2050, 2052}));
  EXPECT_EQ(values(Tensor::arange(context, 255, 259, 1, DType::bf16)), (Values{255, 256, 256, 258}));
  // Errors do not accumulate: the last of 10^5 steps of 0.1 is exact.
  EXPECT_EQ(values(Tensor::arange(context, 0, 1e4, 0.1, DType::f64)).back(), 99999 * 0.1);
}

TEST(TensorFactories, ArangeRefuses) {
  CpuContext context;
  const auto arange = [&](double begin, double end, double step, DType dtype) {
    static_cast<void>(Tensor::arange(context, begin, end, step, dtype));
  };
  EXPECT_THROW(arange(0, 1, 0, DType::f32), UsageError);
  EXPECT_THROW(arange(0, 1, -1, DType::f32), UsageError);
  EXPECT_THROW(arange(1, 0.9, 1, DType::f32), UsageError);
  EXPECT_THROW(arange(0, std::nan(""), 1, DType::f32), UsageError);
  EXPECT_THROW(arange(0, kInfinity, 1, DType::f32), UsageError);
  EXPECT_THROW(arange(0, 300, 1, DType::u8), UsageError);
  EXPECT_NO_THROW(arange(0, 256, 1, DType::u8));
  EXPECT_THROW(arange(0, 3, 0.5, DType::i32), UsageError);
  EXPECT_THROW(arange(0, 1e5, 1e4, DType::f16), UsageError);
  EXPECT_THROW(arange(0x1p53, 0x1p53 + 10, 2, DType::i64), UsageError);
  EXPECT_THROW(arange(0, 1e300, 1, DType::f64), ShapeError);
}

TEST(TensorFactories, Eye) {
  CpuContext context({.threads = 3});
  for (const DType dtype : kAll) {
    EXPECT_EQ(values(Tensor::eye(context, 2, 3, dtype)), (Values{1, 0, 0, 0, 1, 0})) << dtype;
    EXPECT_EQ(values(Tensor::eye(context, 3, 2, dtype)), (Values{1, 0, 0, 1, 0, 0})) << dtype;
  }
  EXPECT_EQ(Tensor::eye(context, 0, 4, DType::f32).shape(), (Shape{0, 4}));
  // The size is so large that several threads share the work.
  const auto eye = values(Tensor::eye(context, 300, 301, DType::f32));
  for (std::size_t i = 0; i < eye.size(); ++i) {
    ASSERT_EQ(eye[i], i / 301 == i % 301 ? 1 : 0) << i;
  }
}

TEST(TensorFactories, RandomElementsAreThoseOfRandom) {
  CpuContext context({.threads = 2});
  constexpr std::int64_t kCount = 70001;  // odd, and enough elements for several threads
  const auto uniform = values(Tensor::rand(context, Shape{kCount}, DType::f64, 11, 3));
  const auto normal = values(Tensor::randn(context, Shape{kCount}, DType::f64, 11, 3));
  Random uniforms(11, RandomUse::tensor, 3, 0);
  Random normals(11, RandomUse::tensor, 3, 1);
  for (std::size_t i = 0; i < uniform.size(); ++i) {
    ASSERT_EQ(uniform[i], uniforms.uniform()) << i;
    ASSERT_EQ(normal[i], normals.normal()) << i;
  }
}

// The expected values use a fixed key of Philox, so that a seed gives the same tensors in later versions. More values
// would only repeat tests/runtime/base/random_test.cpp.
TEST(TensorFactories, SeedsKeepTheirMeaning) {
  CpuContext context;
  const auto words = philox({0, 0, 0, 0}, random_key(42, static_cast<RandomUse>(7), 0));
  EXPECT_EQ(values(Tensor::rand(context, Shape{2}, DType::f64, 42)),
            (Values{uniform_of(words[0], words[1]), uniform_of(words[2], words[3])}));
}

TEST(TensorFactories, SmallTypesCutTheSameNumbers) {
  CpuContext context;
  const auto exact = values(Tensor::rand(context, Shape{100001}, DType::f64, 5));
  for (const auto& [dtype, scale] :
       {std::pair{DType::f32, 0x1p24}, std::pair{DType::f16, 0x1p11}, std::pair{DType::bf16, 0x1p8}}) {
    const auto cut = values(Tensor::rand(context, Shape{100001}, dtype, 5));
    for (std::size_t i = 0; i < cut.size(); ++i) {
      ASSERT_EQ(cut[i], std::floor(exact[i] * scale) / scale) << dtype << ' ' << i;
      ASSERT_LT(cut[i], 1);
    }
  }
  const auto normal = Tensor::randn(context, Shape{1001}, DType::f64, 5);
  for (const DType dtype : kFloating) {
    expect_same_bits(Tensor::randn(context, Shape{1001}, dtype, 5), normal.to(context, dtype), name_of(dtype));
  }
}

TEST(TensorFactories, Moments) {
  CpuContext context;
  double mean = 0;
  double square = 0;
  double uniform = 0;
  constexpr std::int64_t kCount = 200000;
  for (const double x : values(Tensor::randn(context, Shape{kCount}, DType::f32, 1))) {
    mean += x / kCount;
    square += x * x / kCount;
  }
  for (const double x : values(Tensor::rand(context, Shape{kCount}, DType::f32, 1))) {
    uniform += x / kCount;
  }
  EXPECT_NEAR(mean, 0, 0.01);
  EXPECT_NEAR(square, 1, 0.015);
  EXPECT_NEAR(uniform, 0.5, 0.003);
}

TEST(TensorFactories, RandomIntegersAreRefused) {
  CpuContext context;
  for (const DType dtype : {DType::u8, DType::i32, DType::i64, DType::u64}) {
    EXPECT_THROW(static_cast<void>(Tensor::rand(context, Shape{2}, dtype, 1)), DTypeError);
    EXPECT_THROW(static_cast<void>(Tensor::randn(context, Shape{2}, dtype, 1)), DTypeError);
    const Tensor like = Tensor::zeros(context, Shape{2}, dtype);
    EXPECT_THROW(static_cast<void>(Tensor::rand_like(context, like, 1)), DTypeError);
  }
}

TEST(TensorFactories, NotTheThreadsMakeTheBits) {
  CpuContext one({.threads = 1});
  const Shape shape{3, 33333};
  const auto all = [&](Context& context, std::uint64_t seed) {
    return std::vector<Tensor>{Tensor::rand(context, shape, DType::f32, seed),
                               Tensor::randn(context, shape, DType::f32, seed),
                               Tensor::arange(context, 0.1 * static_cast<double>(seed), 1e4, 0.1, DType::f32)};
  };
  const auto expected = all(one, 1);
  for (const int threads : {2, 3, 5}) {
    CpuContext context({.threads = threads});
    Stream worker = Stream::host_worker("w");
    CpuContext queued({.threads = threads, .stream = &worker});
    const auto same = all(context, 1);
    const auto later = all(queued, 1);
    const auto other = all(context, 2);
    queued.synchronize();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(has_same_bits(same[i], expected[i])) << threads << ' ' << i;
      EXPECT_TRUE(has_same_bits(later[i], expected[i])) << threads << ' ' << i;
      EXPECT_FALSE(has_same_bits(other[i], expected[i])) << threads << ' ' << i;
    }
  }
  // Another sequence must give other numbers. rand and randn of one seed must differ, too.
  EXPECT_FALSE(has_same_bits(Tensor::rand(one, shape, DType::f32, 1, 1), expected[0]));
  EXPECT_FALSE(has_same_bits(expected[1], expected[0]));
}

TEST(TensorFactories, OnAWorkerTheTensorMayGoFirst) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(Tensor::randn(context, Shape{1000}, DType::f32, 1));
  }
  context.synchronize();
}

TEST(TensorFactories, OnAWorkerBothEndsOfAConversionMayGoFirst) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  const Tensor kept = Tensor::ones(context, Shape{100000}, DType::f32).to(context, DType::f64);
  static_cast<void>(kept.to(context, DType::f16));
  worker.synchronize();
  EXPECT_EQ(values(kept), Values(100000, 1.0));
}

TEST(TensorFactories, Like) {
  CpuContext context;
  for (const DType dtype : kFloating) {
    const Tensor source = Tensor::arange(context, 0, 12, 1, dtype);
    const TensorView view = source.view().reshape(Shape{3, 4}).permute({1, 0});  // (4, 3), not contiguous
    const std::array tensors{Tensor::empty_like(context, view),      Tensor::zeros_like(context, view),
                             Tensor::ones_like(context, view),       Tensor::full_like(context, view, 7),
                             Tensor::rand_like(context, view, 5, 1), Tensor::randn_like(context, view, 5, 1)};
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.shape(), (Shape{4, 3}));
      EXPECT_EQ(tensor.dtype(), dtype);
      EXPECT_TRUE(tensor.view().is_contiguous());
      EXPECT_FALSE(overlaps(tensor, source));
    }
    EXPECT_EQ(values(tensors[1]), Values(12, 0));
    EXPECT_EQ(values(tensors[2]), Values(12, 1));
    EXPECT_EQ(values(tensors[3]), Values(12, 7));
    expect_same_bits(tensors[4], Tensor::rand(context, Shape{4, 3}, dtype, 5, 1));
    expect_same_bits(tensors[5], Tensor::randn(context, Shape{4, 3}, dtype, 5, 1));
  }
  // The new tensor must be on the context's device, not on the view's.
  const TensorView elsewhere(nullptr, DType::f32, Device::cuda(3), Shape{2});
  EXPECT_EQ(Tensor::ones_like(context, elsewhere).device(), Device::cpu());
}

}  // namespace
}  // namespace lockstep::testing
