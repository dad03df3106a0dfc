#include "tests/kernels/relu_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

TEST(Relu, ByHandWithZerosInfinitiesAndNaN) {
  CpuContext context;
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x{-1, -0.0F, 0, 2, inf, -inf, NAN, -NAN, 1e-45F};
  std::vector<float> y(9, -7);
  const Shape shape{9};
  ops::relu_forward(context, TensorView(std::span(x), shape), TensorView(std::span(y), shape));
  for (std::size_t i : {0, 1, 2, 5}) {
    EXPECT_EQ(y[i], 0) << i;
    EXPECT_FALSE(std::signbit(y[i])) << i;
  }
  EXPECT_EQ(y[3], 2);
  EXPECT_EQ(y[4], inf);
  EXPECT_TRUE(std::isnan(y[6]) && std::isnan(y[7]));
  EXPECT_EQ(y[8], 1e-45F);

  std::vector<float> dy{1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<float> dx(9, -7);
  ops::relu_backward(context, TensorView(std::span(y), shape), TensorView(std::span(dy), shape),
                     TensorView(std::span(dx), shape));
  EXPECT_EQ(dx, (std::vector<float>{0, 0, 0, 4, 5, 0, 0, 0, 9}));
}

TEST(Relu, MatchesTheNaiveLoop) {
  for (const OpCase& item : relu_cases()) {
    const bool forward = item.outputs[0].name == "y";
    expect_matches(item, [&](Inputs in, Outputs expected) {
      std::vector<double> out = forward && !in.empty() ? in[0].values()
                                : in.size() == 2       ? in[1].values()
                                                       : expected[0].values();
      const std::vector<double> test = forward ? out : in[0].values();
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = test[i] > 0 ? out[i] : 0.0;
      }
      expected[0].assign(out);
    });
  }
}

TEST(Relu, TheSameBitsForAnyNumberOfThreads) {
  for (const OpCase& item : {relu_forward_case({5, 10007}, DType::f32), relu_backward_case({5, 10007}, DType::f64)}) {
    expect_same_bits_for_threads(item);
  }
}

TEST(Relu, GradientIsTheDerivative) {
  CpuContext context;
  const Shape shape{5, 7};
  GuardedTensor x(shape, DType::f64, normal(1)), y(shape, DType::f64), dy(shape, DType::f64, normal(2)),
      dx(shape, DType::f64);
  const auto forward = [&] {
    ops::relu_forward(context, x, y);
    return weighted_sum(y, dy);
  };
  forward();
  ops::relu_backward(context, y, dy, dx);
  expect_gradients(forward, {{"x", x, dx}});
}

TEST(Relu, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor a(Shape{4, 3}, DType::f32), b(Shape{4, 3}, DType::f32), c(Shape{4, 3}, DType::f32);
  std::vector<TensorView> views{a, b, c};
  const auto forward = [&] { ops::relu_forward(context, views[0], views[1]); };
  const auto backward = [&] { ops::relu_backward(context, views[0], views[1], views[2]); };
  expect_views_checked(
      {a, b}, [&](const auto& v) { ops::relu_forward(context, v[0], v[1]); }, true);
  expect_views_checked(
      {a, b, c}, [&](const auto& v) { ops::relu_backward(context, v[0], v[1], v[2]); }, true);
  for (TensorView& view : views) {
    view.dtype = DType::i32;
  }
  EXPECT_THROW(forward(), DTypeError);
  EXPECT_THROW(backward(), DTypeError);

  const GuardedTensor memory(Shape{40}, DType::f32);
  const TensorView first(memory.view().data, DType::f32, Device::cpu(), Shape{4, 3});
  const TensorView shifted(memory.span<float>().data() + 1, DType::f32, Device::cpu(), Shape{4, 3});
  EXPECT_THROW(ops::relu_forward(context, first, shifted), ShapeError);
  EXPECT_THROW(ops::relu_backward(context, b, first, shifted), ShapeError);
  EXPECT_THROW(ops::relu_backward(context, first, b, first), ShapeError) << "dx may not be y";
}

}  // namespace
}  // namespace lockstep::testing
