#include "tests/kernels/softmax_cases.hpp"

#include <cmath>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::SoftmaxMask;

TEST(Softmax, ByHand) {
  CpuContext context;
  // The exponentials exp(2 x) are proportional to 1, 1, 2 in the first row and to 1, 3, 4 in the second.
  const std::vector<double> x{7, 7, 7 + std::log(2.0) / 2, 0, std::log(3.0) / 2, std::log(4.0) / 2};
  GuardedTensor in(Shape{2, 3}, DType::f64, x), y(Shape{2, 3}, DType::f64), dy(Shape{2, 3}, DType::f64),
      dx(Shape{2, 3}, DType::f64);
  ops::softmax_forward(context, in, 2, SoftmaxMask::none, y);
  const std::vector<double> all{0.25, 0.25, 0.5, 0.125, 0.375, 0.5};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_DOUBLE_EQ(y.span<double>()[i], all[i]) << i;
  }
  // The rows' sums of dy * y are 4 * 1/4 + 8 * 1/2 = 5 and 8 * 1/8 = 1.
  dy.assign({4, 0, 8, 8, 0, 0});
  y.assign(all);
  ops::softmax_backward(context, y, dy, 2, dx);
  EXPECT_EQ(dx.values(), (std::vector<double>{-0.5, -2.5, 3, 1.75, -0.75, -1}));

  // There are two queries and three keys. The first query sees two keys, the last query all three.
  ops::softmax_forward(context, in, 2, SoftmaxMask::causal, y);
  const std::vector<double> causal{0.5, 0.5, 0, 0.125, 0.375, 0.5};
  for (std::size_t i = 0; i < causal.size(); ++i) {
    EXPECT_DOUBLE_EQ(y.span<double>()[i], causal[i]) << i;
  }
}

/// Computes softmax by its formula, without a shift by the maximum. A masked key adds -inf to its exponent.
void forward_oracle(const OpCase& item, SoftmaxMask mask, Inputs in, Outputs expected) {
  const Shape& shape = item.outputs[0].shape;
  const std::vector<double> x = in.empty() ? expected[0].values() : in[0].values();
  std::vector<double> y(x.size());
  const auto columns = static_cast<std::size_t>(shape.back());
  const auto queries = static_cast<std::size_t>(shape.rank() > 1 ? shape[shape.rank() - 2] : 1);
  for (std::size_t begin = 0; begin < x.size(); begin += columns) {
    const std::size_t query = begin / columns % queries;
    std::vector<long double> powers(columns);
    long double sum = 0;
    for (std::size_t k = 0; k < columns; ++k) {
      const bool hidden = mask == SoftmaxMask::causal && k + queries > query + columns;
      powers[k] = std::exp(hidden ? -std::numeric_limits<long double>::infinity()
                                  : static_cast<long double>(kSoftmaxScale * x[begin + k]));
      sum += powers[k];
    }
    for (std::size_t k = 0; k < columns; ++k) {
      y[begin + k] = static_cast<double>(powers[k] / sum);
    }
  }
  expected[0].assign(y);
}

TEST(Softmax, ForwardMatchesTheDefinition) {
  for (const SoftmaxMask mask : {SoftmaxMask::none, SoftmaxMask::causal}) {
    for (const OpCase& item : softmax_forward_cases(mask)) {
      expect_matches(item, [&](Inputs in, Outputs expected) { forward_oracle(item, mask, in, expected); });
    }
  }
}

/// Computes dx from the Jacobian: d y_k / d v_j = y_k * (delta_kj - y_j).
void backward_oracle(const OpCase& item, SoftmaxGradient place, Inputs in, Outputs expected) {
  const std::vector<double> y = place == SoftmaxGradient::over_y ? expected[0].values() : in[0].values();
  const std::vector<double> dy = place == SoftmaxGradient::over_dy ? expected[0].values() : in[in.size() - 1].values();
  const auto columns = static_cast<std::size_t>(item.outputs[0].shape.back());
  std::vector<double> dx(y.size());
  for (std::size_t begin = 0; begin < y.size(); begin += columns) {
    for (std::size_t k = begin; k < begin + columns; ++k) {
      for (std::size_t j = begin; j < begin + columns && y[k] != 0; ++j) {
        dx[j] += kSoftmaxScale * dy[k] * y[k] * ((k == j ? 1.0 : 0.0) - y[j]);
      }
    }
  }
  expected[0].assign(dx);
}

TEST(Softmax, BackwardMatchesTheJacobianAndReadsNoMaskedGradient) {
  for (const SoftmaxGradient place : {SoftmaxGradient::apart, SoftmaxGradient::over_dy, SoftmaxGradient::over_y}) {
    for (const OpCase& item : softmax_backward_cases(place)) {
      expect_matches(item, [&](Inputs in, Outputs expected) { backward_oracle(item, place, in, expected); });
    }
  }
}

TEST(Softmax, LargeNumbersAndRowsWithoutADistribution) {
  CpuContext context;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const SoftmaxMask mask : {SoftmaxMask::none, SoftmaxMask::causal}) {
      const CheckedRun instance(softmax_special_case(dtype, mask), context);
      EXPECT_LE(softmax_special_error(instance.output(0).values(), mask), 1e-6);
    }
  }
  const CheckedRun instance(softmax_large_case(-1e8), context);
  EXPECT_EQ(instance.output(0).values(), (std::vector<double>{0, 1, 0, 0, 0.5, 0.5}));
  const CheckedRun negated(softmax_large_case(1e8), context);
  EXPECT_EQ(negated.output(0).values(), (std::vector<double>{0.5, 0, 0.5, 1, 0, 0}));
}

TEST(Softmax, TheSameBitsForAnyNumberOfThreads) {
  for (const OpCase& item : {softmax_forward_case({300, 129}, DType::f32, SoftmaxMask::none),
                             softmax_forward_case({9, 101, 101}, DType::f64, SoftmaxMask::causal, true),
                             softmax_backward_case({300, 129}, DType::f32, SoftmaxGradient::over_dy)}) {
    expect_same_bits_for_threads(item);
  }
}

TEST(Softmax, GradientIsTheDerivative) {
  CpuContext context;
  for (const SoftmaxMask mask : {SoftmaxMask::none, SoftmaxMask::causal}) {
    const Shape shape{2, 3, 5};
    GuardedTensor x(shape, DType::f64, normal(1, 2)), y(shape, DType::f64), dy(shape, DType::f64, normal(2)),
        dx(shape, DType::f64);
    const auto forward = [&] {
      ops::softmax_forward(context, x, 0.7, mask, y);
      return weighted_sum(y, dy);
    };
    forward();
    ops::softmax_backward(context, y, dy, 0.7, dx);
    expect_gradients(forward, {{"x", x, dx}});
  }
}

TEST(Softmax, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor x(Shape{4, 5}, DType::f32, constant(1)), y(Shape{4, 5}, DType::f32), dx(Shape{4, 5}, DType::f32);
  expect_views_checked(
      {x, y},
      [&](const std::vector<TensorView>& v) { ops::softmax_forward(context, v[0], 1, SoftmaxMask::causal, v[1]); },
      true);
  expect_views_checked(
      {y, x, dx}, [&](const std::vector<TensorView>& v) { ops::softmax_backward(context, v[0], v[1], 1, v[2]); }, true);

  const auto forward = [&](const TensorView& in, double scale, SoftmaxMask mask, const TensorView& out) {
    ops::softmax_forward(context, in, scale, mask, out);
  };
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan(""), 0.0, -0.0, 1e39, -1e-46, 1e-39}) {
    EXPECT_THROW(forward(x, bad, SoftmaxMask::none, y), UsageError) << bad;
    EXPECT_THROW(ops::softmax_backward(context, y, x, bad, dx), UsageError) << bad;
  }
  const GuardedTensor wide(Shape{4, 5}, DType::f64);
  GuardedTensor to(Shape{4, 5}, DType::f64);
  EXPECT_NO_THROW(forward(wide, 1e39, SoftmaxMask::none, to)) << "finite in f64";
  EXPECT_NO_THROW(forward(wide, 1e-39, SoftmaxMask::none, to)) << "not 0 in f64";
  EXPECT_THROW(forward(wide, 0, SoftmaxMask::none, to), UsageError);
  EXPECT_THROW(forward(x, 1, static_cast<SoftmaxMask>(2), y), UsageError);
  const TensorView scalar = x.view().slice(0, 0, 1).slice(1, 0, 1).reshape(Shape{});
  EXPECT_THROW(forward(scalar, 1, SoftmaxMask::none, scalar), ShapeError);
  EXPECT_THROW(ops::softmax_backward(context, scalar, scalar, 1, scalar), ShapeError);
  const TensorView tall = x.view().reshape(Shape{5, 4});
  EXPECT_NO_THROW(forward(tall, 1, SoftmaxMask::none, tall));
  EXPECT_THROW(forward(tall, 1, SoftmaxMask::causal, tall), ShapeError) << "more queries than keys";
  const TensorView flat = x.view().reshape(Shape{20});
  EXPECT_NO_THROW(forward(flat, 1, SoftmaxMask::none, flat));
  EXPECT_THROW(forward(flat, 1, SoftmaxMask::causal, flat), ShapeError) << "no axis of queries";
  EXPECT_THROW(forward(flat.slice(0, 0, 18), 1, SoftmaxMask::none, flat.slice(0, 2, 20)), ShapeError);
  EXPECT_THROW(ops::softmax_backward(context, y, x, 1,
                                     TensorView(x.span<float>().data() + 1, DType::f32, Device::cpu(), Shape{4, 5})),
               ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
