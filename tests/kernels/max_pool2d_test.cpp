#include "tests/kernels/max_pool2d_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::PoolDesc;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Pooled {
  std::vector<float> y;
  std::vector<std::int32_t> index;
};

Pooled pool(std::vector<float> x, const Shape& shape, const PoolDesc& desc) {
  CpuContext context;
  const Shape out = ops::pooled_shape(desc, shape);
  Pooled result{std::vector<float>(static_cast<std::size_t>(out.numel()), -77),
                std::vector<std::int32_t>(static_cast<std::size_t>(out.numel()), -77)};
  ops::max_pool2d_forward(context, desc, TensorView(std::span<float>(x), shape),
                          TensorView(std::span<float>(result.y), out),
                          TensorView(std::span<std::int32_t>(result.index), out));
  return result;
}

TEST(MaxPool2d, OverlappingPaddedWindowsByHand) {
  // The windows have 3 x 3 pixels and stride 2. The image has 4 x 4 pixels and one pixel of padding on each side.
  const PoolDesc desc{{3, 3}, {2, 2}, {1, 1}, {1, 1}};
  const Pooled p = pool({-1, -2, -3, -4,  //
                         -5, 10, -6, 7,   //
                         3, 3, 2, 9,      //
                         3, 1, 9, 8},
                        {1, 4, 4, 1}, desc);
  EXPECT_EQ(p.y, (std::vector<float>{10, 10, 10, 10}));
  EXPECT_EQ(p.index, (std::vector<std::int32_t>{5, 5, 5, 5}));

  CpuContext context;
  std::vector<float> dy{1, 2, 3, 4};
  std::vector<float> dx(16, NAN);
  std::vector<std::int32_t> index = p.index;
  ops::max_pool2d_backward(context, desc, TensorView(std::span<float>(dy), Shape{1, 2, 2, 1}),
                           TensorView(std::span<std::int32_t>(index), Shape{1, 2, 2, 1}),
                           TensorView(std::span<float>(dx), Shape{1, 4, 4, 1}));
  std::vector<float> expected(16, 0);
  expected[5] = 10;
  EXPECT_EQ(dx, expected);
}

TEST(MaxPool2d, TheFirstOfEqualValuesAndTheFirstNaNWin) {
  const PoolDesc desc{{2, 2}, {2, 2}, {0, 0}, {0, 0}};
  const auto one = [&](std::vector<float> x) { return pool(std::move(x), {1, 2, 2, 1}, desc); };
  EXPECT_EQ(one({3, 3, 3, 3}).index[0], 0);
  EXPECT_EQ(one({1, 3, 3, 2}).index[0], 1);
  EXPECT_EQ(one({1, 2, 3, 3}).index[0], 2);
  EXPECT_EQ(one({-0.0F, 0, 0, 0}).index[0], 0);
  EXPECT_EQ(one({-kInf, -kInf, -kInf, -kInf}).index[0], 0);
  EXPECT_EQ(one({-kInf, -kInf, -kInf, -kInf}).y[0], -kInf);
  for (std::int32_t place = 0; place < 4; ++place) {
    for (std::int32_t second = place; second < 4; ++second) {
      std::vector<float> x{kInf, -1, kInf, 5};
      x[static_cast<std::size_t>(place)] = NAN;
      x[static_cast<std::size_t>(second)] = NAN;
      const Pooled p = one(x);
      EXPECT_TRUE(std::isnan(p.y[0]));
      EXPECT_EQ(p.index[0], place);
    }
  }
}

TEST(MaxPool2d, PaddingNeverWins) {
  const Pooled p = pool({-5, -4, -kInf, -7}, {1, 2, 2, 1}, {{3, 3}, {1, 1}, {2, 2}, {2, 2}});
  EXPECT_EQ(p.y[0], -5);  // this window covers only one pixel of the image
  EXPECT_EQ(p.index[0], 0);
  EXPECT_EQ(p.y[12], -kInf);
  EXPECT_EQ(p.index[12], 2);
  EXPECT_EQ(p.y[15], -7);
  EXPECT_EQ(p.index[15], 3);
}

void forward_oracle(const PoolParams& p, Inputs in, Outputs expected) {
  const std::vector<double> x = in[0].values();
  const auto elements = static_cast<std::size_t>(expected[0].view().numel());
  std::vector<double> y(elements, -std::numeric_limits<double>::infinity());
  std::vector<double> index(elements, -1.0);
  for_each_pair(p, [&](std::size_t to, std::size_t from, std::int64_t pixel) {
    if (index[to] < 0 || x[from] > y[to]) {
      y[to] = x[from];
      index[to] = static_cast<double>(pixel);
    }
  });
  expected[0].assign(y);
  if (expected.size() > 1) {
    expected[1].assign(index);
  }
}

TEST(MaxPool2d, ForwardMatchesTheNaiveLoop) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const PoolParams& p : pool_params(dtype)) {
      for (const bool inference : {false, true}) {
        expect_matches(max_pool2d_forward_case(p, inference),
                       [&](Inputs in, Outputs expected) { forward_oracle(p, in, expected); });
      }
    }
  }
}

void backward_oracle(const PoolParams& p, Inputs in, Outputs expected) {
  const std::vector<double> dy = in[0].values();
  const std::vector<double> index = in[1].values();
  std::vector<double> dx(static_cast<std::size_t>(p.x.numel()), 0.0);
  for_each_pair(p, [&](std::size_t out, std::size_t to, std::int64_t pixel) {
    dx[to] += index[out] == static_cast<double>(pixel) ? dy[out] : 0.0;
  });
  expected[0].assign(dx);
}

TEST(MaxPool2d, BackwardMatchesAScatter) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const PoolParams& p : pool_params(dtype)) {
      expect_matches(max_pool2d_backward_case(p),
                     [&](Inputs in, Outputs expected) { backward_oracle(p, in, expected); });
    }
  }
}

TEST(MaxPool2d, TheSameBitsForAnyNumberOfThreads) {
  const PoolParams p{{4, 30, 31, 67}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, DType::f32};
  for (const OpCase& item : {max_pool2d_forward_case(p), max_pool2d_backward_case(p)}) {
    expect_same_bits_for_threads(item);
  }
}

TEST(MaxPool2d, GradientsAreFiniteDifferences) {
  CpuContext context({.threads = 2});
  const Shape shape{2, 7, 6, 3};
  const PoolDesc desc{{3, 3}, {2, 2}, {1, 1}, {1, 1}};
  const Shape out = ops::pooled_shape(desc, shape);
  GuardedTensor x(shape, DType::f64, normal(1)), dx(shape, DType::f64), y(out, DType::f64),
      dy(out, DType::f64, normal(2)), index(out, DType::i32);
  const auto forward = [&] {
    ops::max_pool2d_forward(context, desc, x, y, index);
    return weighted_sum(y, dy);
  };
  forward();
  ops::max_pool2d_backward(context, desc, dy, index, dx);
  expect_gradients(forward, {{"x", x, dx}}, 1e-8, "", 1e-5, 1000);
}

TEST(Pool2d, ShapesOfWindows) {
  EXPECT_EQ(ops::pooled_shape({{3, 3}, {2, 2}, {1, 1}, {1, 1}}, {8, 112, 112, 64}), (Shape{8, 56, 56, 64}));
  EXPECT_EQ(ops::pooled_shape({{3, 3}, {2, 2}, {0, 0}, {1, 1}}, {8, 112, 112, 64}), (Shape{8, 56, 56, 64}));
  EXPECT_EQ(ops::pooled_shape({{2, 3}, {1, 2}, {0, 0}, {0, 0}}, {1, 2, 4, 5}), (Shape{1, 1, 1, 5}));
  const Shape x{1, 4, 4, 2};
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({}, Shape{4, 4, 2})), ShapeError) << "rank";
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({{5, 1}, {1, 1}, {0, 0}, {0, 0}}, x)), ShapeError) << "too large";
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({{0, 1}, {1, 1}, {0, 0}, {0, 0}}, x)), ShapeError) << "kernel";
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({{1, 1}, {1, 0}, {0, 0}, {0, 0}}, x)), ShapeError) << "stride";
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({{2, 2}, {1, 1}, {-1, 0}, {0, 0}}, x)), ShapeError) << "padding";
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({{2, 2}, {1, 1}, {2, 0}, {0, 0}}, x)), ShapeError) << "before";
  EXPECT_THROW(static_cast<void>(ops::pooled_shape({{2, 2}, {1, 1}, {0, 0}, {0, 2}}, x)), ShapeError) << "after";
  EXPECT_NO_THROW(static_cast<void>(ops::pooled_shape({{2, 2}, {1, 1}, {1, 1}, {1, 1}}, x)));
  for (const Shape& none : {Shape{1, 0, 4, 3}, Shape{1, 4, 0, 3}}) {
    EXPECT_THROW(static_cast<void>(ops::pooled_shape({{2, 2}, {1, 1}, {1, 1}, {1, 1}}, none)), ShapeError) << "pixels";
  }
}

/// Expects errors for each view with a wrong device, type or shape, and for each pair of overlapping views. Only an
/// overlap of two inputs is no error.
void expect_views_checked(std::vector<TensorView> views,
                          const std::function<void(const std::vector<TensorView>&)>& call) {
  testing::expect_views_checked(views, call);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const TensorView good = views[i];
    for (std::size_t j = 0; j < i; ++j) {
      const bool both_inputs = views.size() == 3 && i == 1 && j == 0 && views[1].dtype == DType::i32;
      if (!both_inputs) {
        views[i].data = views[j].data;
        EXPECT_THROW(call(views), ShapeError) << i << " over " << j;
        views[i] = good;
      }
    }
  }
}

TEST(MaxPool2d, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const PoolDesc desc{{2, 2}, {1, 1}, {0, 0}, {0, 0}};
  const GuardedTensor x(Shape{2, 4, 5, 3}, DType::f32), y(Shape{2, 3, 4, 3}, DType::f32),
      index(Shape{2, 3, 4, 3}, DType::i32);
  expect_views_checked({x, y, index}, [&](const std::vector<TensorView>& v) {
    ops::max_pool2d_forward(context, desc, v[0], v[1], v[2]);
  });
  expect_views_checked({y, index, x}, [&](const std::vector<TensorView>& v) {
    ops::max_pool2d_backward(context, desc, v[0], v[1], v[2]);
  });
  EXPECT_THROW(ops::max_pool2d_backward(context, desc, y, {}, x), ShapeError) << "index not given";
  EXPECT_THROW(ops::max_pool2d_forward(context, desc, {}, y, index), ShapeError) << "x not given";
  // An i32 index cannot hold 2^31 pixels. The op must throw before it reads memory.
  const Shape huge{1, 1 << 16, 1 << 15, 1};
  const TensorView wide(x.view().data, DType::f32, Device::cpu(), huge);
  const TensorView pooled(y.view().data, DType::f32, Device::cpu(),
                          ops::pooled_shape({{1, 1}, {1 << 15, 1 << 15}}, huge));
  const TensorView winners(index.view().data, DType::i32, Device::cpu(), pooled.shape);
  EXPECT_THROW(ops::max_pool2d_backward(context, {{1, 1}, {1 << 15, 1 << 15}}, pooled, winners, wide), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
