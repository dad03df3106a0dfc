#include "tests/kernels/subsample_pad_cases.hpp"

#include <algorithm>
#include <cmath>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

TEST(SubsamplePad, ByHand) {
  CpuContext context;
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8, 9};  // 3 x 3, one channel
  std::vector<float> y(16, NAN);  // 2 x 2, four channels: x's channel comes after (4 - 1) / 2 = 1 zero
  const TensorView vx(std::span<float>(x), Shape{1, 3, 3, 1});
  const TensorView vy(std::span<float>(y), Shape{1, 2, 2, 4});
  ops::subsample_pad_forward(context, 2, vx, vy);
  EXPECT_EQ(y, (std::vector<float>{0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0}));
  for (std::size_t i = 0; i < 16; ++i) {
    y[i] = static_cast<float>(i);
  }
  ops::subsample_pad_backward(context, 2, vy, GradMode::accumulate, vx);
  EXPECT_EQ(x, (std::vector<float>{2, 2, 8, 4, 5, 6, 16, 8, 22}));
  ops::subsample_pad_backward(context, 2, vy, GradMode::overwrite, vx);
  EXPECT_EQ(x, (std::vector<float>{1, 0, 5, 0, 0, 0, 9, 0, 13}));
  ops::subsample_pad_backward(context, 2, vy, GradMode::ignore, vx);
  ops::subsample_pad_backward(context, 2, vy, GradMode::ignore, {});
  EXPECT_EQ(x, (std::vector<float>{1, 0, 5, 0, 0, 0, 9, 0, 13}));
}

/// Calls f(index into x, index into y) for each element that the forward pass copies.
template <class F>
void for_copied(const SubsamplePadParams& p, F&& f) {
  const Shape y = subsampled(p);
  const std::int64_t first = (y[3] - p.x[3]) / 2;
  for (std::int64_t n = 0; n < y[0]; ++n) {
    for (std::int64_t i = 0; i < y[1]; ++i) {
      for (std::int64_t j = 0; j < y[2]; ++j) {
        for (std::int64_t c = 0; c < p.x[3]; ++c) {
          f(static_cast<std::size_t>(((n * p.x[1] + i * p.stride) * p.x[2] + j * p.stride) * p.x[3] + c),
            static_cast<std::size_t>(((n * y[1] + i) * y[2] + j) * y[3] + first + c));
        }
      }
    }
  }
}

TEST(SubsamplePad, MatchesTheNaiveLoop) {
  for (const SubsamplePadParams& p : subsample_pad_params()) {
    expect_matches(subsample_pad_forward_case(p), [&](Inputs in, Outputs expected) {
      const std::vector<double> x = in[0].values();
      std::vector<double> y(static_cast<std::size_t>(expected[0].view().numel()), 0.0);
      for_copied(p, [&](std::size_t from, std::size_t to) { y[to] = x[from]; });
      expected[0].assign(y);
    });
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
      expect_matches(subsample_pad_backward_case(p, mode), [&](Inputs in, Outputs expected) {
        const std::vector<double> dy = in[0].values();
        std::vector<double> dx = expected[0].values();
        if (mode == GradMode::overwrite) {
          std::fill(dx.begin(), dx.end(), 0.0);
        }
        for_copied(p, [&](std::size_t to, std::size_t from) { dx[to] += dy[from]; });
        expected[0].assign(dx);
      });
    }
  }
}

TEST(SubsamplePad, TheSameBitsForAnyNumberOfThreads) {
  const SubsamplePadParams p{{13, 31, 33, 17}, 31, 2, DType::f32};
  for (const OpCase& item : {subsample_pad_forward_case(p), subsample_pad_backward_case(p, GradMode::accumulate)}) {
    expect_same_bits_for_threads(item);
  }
}

TEST(SubsamplePad, GradientIsTheDerivative) {
  CpuContext context;
  const SubsamplePadParams p{{2, 5, 4, 3}, 6, 2, DType::f64};
  GuardedTensor x(p.x, p.dtype, normal(1)), y(subsampled(p), p.dtype), dy(subsampled(p), p.dtype, normal(2)),
      dx(p.x, p.dtype);
  const auto forward = [&] {
    ops::subsample_pad_forward(context, 2, x, y);
    return weighted_sum(y, dy);
  };
  ops::subsample_pad_backward(context, 2, dy, GradMode::overwrite, dx);
  expect_gradients(forward, {{"x", x, dx}});
}

TEST(SubsamplePad, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor x(Shape{2, 5, 5, 3}, DType::f32), y(Shape{2, 3, 3, 4}, DType::f32);
  TensorView large = x;
  TensorView small = y;
  std::int64_t stride = 2;
  const auto forward = [&] { ops::subsample_pad_forward(context, stride, large, small); };
  const auto backward = [&] { ops::subsample_pad_backward(context, stride, small, GradMode::overwrite, large); };
  EXPECT_NO_THROW(forward());
  EXPECT_NO_THROW(backward());
  for (TensorView* view : {&large, &small}) {
    const TensorView good = *view;
    view->device = Device::cuda(0);
    EXPECT_THROW(forward(), DeviceError);
    EXPECT_THROW(backward(), DeviceError);
    *view = good;
    for (const DType dtype : {DType::f64, DType::bf16, DType::i32}) {
      view->dtype = dtype;
      EXPECT_THROW(forward(), DTypeError);
      EXPECT_THROW(backward(), DTypeError);
    }
    *view = good;
    for (const Shape& shape :
         {Shape{2, 5, 5}, Shape{2, 4, 3, 4}, Shape{2, 3, 2, 4}, Shape{1, 3, 3, 4}, Shape{2, 3, 3, 2}}) {
      *view = TensorView(good.data, DType::f32, Device::cpu(), shape);
      EXPECT_THROW(forward(), ShapeError) << shape;
      EXPECT_THROW(backward(), ShapeError) << shape;
    }
    *view = good;
    view->strides[0] += 1;
    EXPECT_THROW(forward(), ShapeError);
    EXPECT_THROW(backward(), ShapeError);
    *view = {};
    EXPECT_THROW(forward(), ShapeError);
    EXPECT_THROW(backward(), ShapeError);
    *view = good;
  }
  for (const std::int64_t bad : {0, -2}) {
    stride = bad;
    EXPECT_THROW(forward(), UsageError);
    EXPECT_THROW(backward(), UsageError);
  }
  stride = 2;
  small.data = large.data;
  EXPECT_THROW(forward(), ShapeError);
  EXPECT_THROW(backward(), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
