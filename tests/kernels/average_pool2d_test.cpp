#include "tests/kernels/average_pool2d_cases.hpp"

#include <cmath>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::AverageOver;
using ops::PoolDesc;

constexpr AverageOver kBoth[] = {AverageOver::window, AverageOver::inside};

TEST(AveragePool2d, OverlappingPaddedWindowsByHand) {
  // The image has 3 x 3 pixels and one pixel of padding on each side. The windows have 3 x 3 pixels and stride 2, so
  // each window covers 2 x 2 pixels of the image.
  CpuContext context;
  const PoolDesc desc{{3, 3}, {2, 2}, {1, 1}, {1, 1}};
  std::vector<float> x{1, 2, 3,  //
                       4, 5, 6,  //
                       7, 8, 9};
  std::vector<float> y(4, NAN);
  const TensorView vx(std::span<float>(x), Shape{1, 3, 3, 1});
  const TensorView vy(std::span<float>(y), Shape{1, 2, 2, 1});
  ops::average_pool2d_forward(context, desc, AverageOver::inside, vx, vy);
  EXPECT_EQ(y, (std::vector<float>{3, 4, 6, 7}));
  ops::average_pool2d_forward(context, desc, AverageOver::window, vx, vy);
  EXPECT_EQ(y, (std::vector<float>{12.0F / 9, 16.0F / 9, 24.0F / 9, 28.0F / 9}));

  // The middle pixel is in all four windows. The middle pixel of an edge is in two windows.
  y = {4, 8, 12, 16};
  ops::average_pool2d_backward(context, desc, AverageOver::inside, vy, vx);
  EXPECT_EQ(x, (std::vector<float>{1, 3, 2,   //
                                   4, 10, 6,  //
                                   3, 7, 4}));
  y = {9, 18, 27, 36};
  ops::average_pool2d_backward(context, desc, AverageOver::window, vy, vx);
  EXPECT_EQ(x, (std::vector<float>{1, 3, 2,   //
                                   4, 10, 6,  //
                                   3, 7, 4}));
}

TEST(AveragePool2d, PixelsInNoWindowHaveNoGradient) {
  CpuContext context;
  std::vector<float> dy{5};
  std::vector<float> dx(4, NAN);
  ops::average_pool2d_backward(context, {{1, 1}, {2, 2}}, AverageOver::window,
                               TensorView(std::span<float>(dy), Shape{1, 1, 1, 1}),
                               TensorView(std::span<float>(dx), Shape{1, 2, 2, 1}));
  EXPECT_EQ(dx, (std::vector<float>{5, 0, 0, 0}));
}

/// Returns for each element of y the number by which the sum over its window is divided.
std::vector<double> divisors(const PoolParams& p, AverageOver over) {
  const auto elements = static_cast<std::size_t>(ops::pooled_shape(p.desc, p.x).numel());
  if (over == AverageOver::window) {
    return std::vector<double>(elements, static_cast<double>(p.desc.kernel[0] * p.desc.kernel[1]));
  }
  std::vector<double> inside(elements, 0.0);
  for_each_pair(p, [&](std::size_t out, std::size_t, std::int64_t) { inside[out] += 1; });
  return inside;
}

TEST(AveragePool2d, MatchesTheNaiveLoop) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const PoolParams& p : pool_params(dtype)) {
      for (const AverageOver over : kBoth) {
        const std::vector<double> divisor = divisors(p, over);
        expect_matches(average_pool2d_forward_case(p, over), [&](Inputs in, Outputs expected) {
          const std::vector<double> x = in[0].values();
          std::vector<double> y(divisor.size(), 0.0);
          for_each_pair(p, [&](std::size_t to, std::size_t from, std::int64_t) { y[to] += x[from] / divisor[to]; });
          expected[0].assign(y);
        });
        expect_matches(average_pool2d_backward_case(p, over), [&](Inputs in, Outputs expected) {
          const std::vector<double> dy = in[0].values();
          std::vector<double> dx(static_cast<std::size_t>(p.x.numel()), 0.0);
          for_each_pair(p, [&](std::size_t from, std::size_t to, std::int64_t) { dx[to] += dy[from] / divisor[from]; });
          expected[0].assign(dx);
        });
      }
    }
  }
}

TEST(GlobalAveragePool, ByHand) {
  CpuContext context;
  std::vector<float> x{1, 10, 2, 20, 3, 30, 6, 60};
  std::vector<float> y(2, NAN);
  const TensorView vx(std::span<float>(x), Shape{1, 2, 2, 2});
  const TensorView vy(std::span<float>(y), Shape{1, 2});
  ops::global_average_pool_forward(context, vx, vy);
  EXPECT_EQ(y, (std::vector<float>{3, 30}));
  ops::global_average_pool_backward(context, vy, vx);
  EXPECT_EQ(x, (std::vector<float>{0.75F, 7.5F, 0.75F, 7.5F, 0.75F, 7.5F, 0.75F, 7.5F}));
}

TEST(GlobalAveragePool, MatchesTheNaiveLoop) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : global_average_pool_shapes()) {
      const auto channels = static_cast<std::size_t>(shape[3]);
      const auto pixels = static_cast<std::size_t>(shape[1] * shape[2]);
      const auto column = [&](std::size_t i) { return i / channels / pixels * channels + i % channels; };
      expect_matches(global_average_pool_forward_case(shape, dtype), [&](Inputs in, Outputs expected) {
        const std::vector<double> x = in[0].values();
        std::vector<double> y(static_cast<std::size_t>(shape[0]) * channels, 0.0);
        for (std::size_t i = 0; i < x.size(); ++i) {
          y[column(i)] += x[i] / static_cast<double>(pixels);
        }
        expected[0].assign(y);
      });
      expect_matches(global_average_pool_backward_case(shape, dtype), [&](Inputs in, Outputs expected) {
        const std::vector<double> dy = in[0].values();
        std::vector<double> dx(static_cast<std::size_t>(shape.numel()));
        for (std::size_t i = 0; i < dx.size(); ++i) {
          dx[i] = dy[column(i)] / static_cast<double>(pixels);
        }
        expected[0].assign(dx);
      });
    }
  }
}

TEST(AveragePool2d, AWindowOverTheWholeImageIsTheGlobalMean) {
  CpuContext context;
  const Shape shape{3, 7, 9, 65};
  GuardedTensor x(shape, DType::f64, normal(1)), windowed(Shape{3, 1, 1, 65}, DType::f64),
      global(Shape{3, 65}, DType::f64);
  ops::average_pool2d_forward(context, {{7, 9}, {1, 1}}, AverageOver::window, x, windowed);
  ops::global_average_pool_forward(context, x, global);
  const std::vector<double> a = windowed.values();
  const std::vector<double> b = global.values();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], 1e-14) << i;
  }
}

TEST(AveragePool2d, TheSameBitsForAnyNumberOfThreads) {
  const PoolParams p{{4, 30, 31, 67}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, DType::f32};
  for (const OpCase& item :
       {average_pool2d_forward_case(p, AverageOver::inside), average_pool2d_backward_case(p, AverageOver::inside),
        global_average_pool_forward_case({37, 7, 9, 65}, DType::f32),
        global_average_pool_backward_case({37, 7, 9, 65}, DType::f32)}) {
    expect_same_bits_for_threads(item);
  }
}

/// Compares the gradient dx of backward(dy, dx) with finite differences of forward(x, y). out: shape of y.
template <class Forward, class Backward>
void expect_finite_differences(const Shape& out, Forward forward, Backward backward) {
  const Shape shape{2, 7, 6, 3};
  GuardedTensor x(shape, DType::f64, normal(1)), dx(shape, DType::f64), y(out, DType::f64),
      dy(out, DType::f64, normal(2));
  const auto loss = [&] {
    forward(x, y);
    return weighted_sum(y, dy);
  };
  backward(dy, dx);
  expect_gradients(loss, {{"x", x, dx}}, 1e-8, "", 1e-5, 1000);
}

TEST(AveragePool2d, GradientsAreFiniteDifferences) {
  CpuContext context({.threads = 2});
  const PoolDesc desc{{3, 3}, {2, 2}, {1, 1}, {1, 1}};
  for (const AverageOver over : kBoth) {
    expect_finite_differences(
        ops::pooled_shape(desc, {2, 7, 6, 3}),
        [&](const TensorView& x, const TensorView& y) { ops::average_pool2d_forward(context, desc, over, x, y); },
        [&](const TensorView& dy, const TensorView& dx) { ops::average_pool2d_backward(context, desc, over, dy, dx); });
  }
  expect_finite_differences(
      {2, 3}, [&](const TensorView& x, const TensorView& y) { ops::global_average_pool_forward(context, x, y); },
      [&](const TensorView& dy, const TensorView& dx) { ops::global_average_pool_backward(context, dy, dx); });
}

TEST(AveragePool2d, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const PoolDesc desc{{2, 2}, {1, 1}, {0, 0}, {0, 0}};
  const GuardedTensor x(Shape{2, 4, 5, 3}, DType::f32), y(Shape{2, 3, 4, 3}, DType::f32), mean(Shape{2, 3}, DType::f32);
  using Call = std::function<void(const TensorView&, const TensorView&)>;
  const auto check = [](const TensorView& in, const TensorView& out, const Call& call) {
    expect_views_checked(
        {in, out}, [&](const std::vector<TensorView>& v) { call(v[0], v[1]); }, true);
    EXPECT_THROW(call(in, with(out, &TensorView::data, in.data)), ShapeError) << "overlap";
  };
  const auto window = AverageOver::window;
  check(x, y, [&](const auto& a, const auto& b) { ops::average_pool2d_forward(context, desc, window, a, b); });
  check(y, x, [&](const auto& a, const auto& b) { ops::average_pool2d_backward(context, desc, window, a, b); });
  check(x, mean, [&](const auto& a, const auto& b) { ops::global_average_pool_forward(context, a, b); });
  check(mean, x, [&](const auto& a, const auto& b) { ops::global_average_pool_backward(context, a, b); });
  EXPECT_THROW(ops::average_pool2d_forward(context, {{5, 5}}, window, x, y), ShapeError) << "window too large";
  const TensorView empty(nullptr, DType::f32, Device::cpu(), Shape{2, 0, 5, 3});
  EXPECT_THROW(ops::global_average_pool_forward(context, empty, mean), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
