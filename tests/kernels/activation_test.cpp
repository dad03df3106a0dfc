#include "tests/kernels/activation_cases.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <lockstep/kernels/linear_epilogue.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::Activation;

/// Computes an activation in long double (64-bit mantissa), by the formulas of the op's contract. gelu is computed with
/// erf here, and with erfc in the op.
long double function(Activation kind, long double x) {
  constexpr long double kPi = std::numbers::pi_v<long double>;
  switch (kind) {
    case Activation::gelu:
      return x / 2 * (1 + std::erf(x / std::sqrt(2.0L)));
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715L * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::relu:
      return std::fmax(x, 0.0L);
    case Activation::identity:
      return x;
  }
  return NAN;
}

/// Returns the derivative as a five-point difference, whose error is about 1e-13. relu has a kink at 0, so its
/// derivative is exact instead.
long double derivative(Activation kind, long double x) {
  if (kind == Activation::relu) {
    return x > 0 ? 1 : 0;
  }
  constexpr long double h = 1e-3L;
  const auto f = [&](long double at) { return function(kind, at); };
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

TEST(Activation, ByHand) {
  struct Row {
    Activation kind;
    std::vector<double> y;  // values at -3, -0.5, 0, 1, 2
  };
  const Row rows[] = {
      {Activation::gelu, {-0.00404969409489031, -0.15426876936299344, 0, 0.8413447460685429, 1.9544997361036416}},
      {Activation::gelu_tanh, {-0.0036373920817729943, -0.15428599017485606, 0, 0.8411919906082768, 1.954597694087775}},
      {Activation::silu, {-0.14227761953270035, -0.1887703343990727, 0, 0.7310585786300049, 1.7615941559557646}},
      {Activation::tanh, {-0.9950547536867305, -0.46211715726000974, 0, 0.7615941559557649, 0.9640275800758169}},
      {Activation::sigmoid, {0.04742587317756678, 0.3775406687981454, 0.5, 0.7310585786300049, 0.8807970779778823}},
      {Activation::relu, {0, 0, 0, 1, 2}},
      {Activation::identity, {-3, -0.5, 0, 1, 2}}};
  CpuContext context;
  for (const Row& row : rows) {
    std::vector<double> x{-3, -0.5, 0, 1, 2};
    std::vector<double> y(5, NAN);
    ops::activation_forward(context, row.kind, TensorView(std::span(x), Shape{5}), TensorView(std::span(y), Shape{5}));
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(y[i], row.y[i], 1e-15) << ops::name_of(row.kind) << " of " << x[i];
    }
  }
}

TEST(Activation, MatchesTheFormulas) {
  for (const Activation kind : kActivations) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const Shape& shape : activation_shapes()) {
        for (const bool in_place : {false, true}) {
          expect_matches(activation_forward_case(kind, shape, dtype, in_place), [&](Inputs in, Outputs expected) {
            std::vector<double> values = in_place ? expected[0].values() : in[0].values();
            for (double& value : values) {
              value = static_cast<double>(function(kind, value));
            }
            expected[0].assign(values);
          });
          OpCase backward = activation_backward_case(kind, shape, dtype, in_place);
          // The expected values come from difference quotients, which are only this accurate.
          backward.tolerance = dtype == DType::f64 ? 1e-12 : 1e-6;
          expect_matches(backward, [&](Inputs in, Outputs expected) {
            const std::vector<double> x = in[0].values();
            std::vector<double> dx = in_place ? expected[0].values() : in[1].values();
            for (std::size_t i = 0; i < dx.size(); ++i) {
              dx[i] *= static_cast<double>(derivative(kind, x[i]));
            }
            expected[0].assign(dx);
          });
        }
      }
    }
  }
}

/// Expects the limits of an activation and of its derivative for large |x|. The value tends to 0, 1, -1 or x.
template <class T>
void expect_limits() {
  CpuContext context;
  constexpr T kLargest = std::numeric_limits<T>::max();
  for (const Activation kind : kActivations) {
    for (const T far : {T(50), T(1000), T(1e20), kLargest}) {
      std::vector<T> x{far, -far};
      std::vector<T> y(2, NAN);
      std::vector<T> dx(2, NAN);
      std::vector<T> one(2, 1);
      const TensorView vx{std::span(x), Shape{2}};
      ops::activation_forward(context, kind, vx, TensorView(std::span(y), Shape{2}));
      ops::activation_backward(context, kind, vx, TensorView(std::span(one), Shape{2}),
                               TensorView(std::span(dx), Shape{2}));
      const bool linear = kind != Activation::tanh && kind != Activation::sigmoid;
      const std::string what = concat(ops::name_of(kind), " at ", far);
      const bool identity = kind == Activation::identity;
      EXPECT_EQ(y[0], linear ? far : T(1)) << what;
      EXPECT_NEAR(y[1], identity ? -far : (kind == Activation::tanh ? T(-1) : T(0)), 1e-19) << what;
      EXPECT_NEAR(dx[0], linear ? T(1) : T(0), 1e-19) << what;
      EXPECT_NEAR(dx[1], identity ? T(1) : T(0), 1e-19) << what;
    }
    std::vector<T> nan{NAN};
    std::vector<T> out{0};
    ops::activation_forward(context, kind, TensorView(std::span(nan), Shape{1}), TensorView(std::span(out), Shape{1}));
    EXPECT_TRUE(std::isnan(out[0])) << ops::name_of(kind);
    ops::activation_backward(context, kind, TensorView(std::span(nan), Shape{1}), TensorView(std::span(out), Shape{1}),
                             TensorView(std::span(out), Shape{1}));
    EXPECT_TRUE(std::isnan(out[0])) << ops::name_of(kind);
  }
}

TEST(Activation, FarOutNothingOverflows) {
  expect_limits<float>();
  expect_limits<double>();
}

/// Returns the error of `got` against `exact`, in units in the last place of a T near `exact`.
template <class T>
double places_off(T got, long double exact) {
  int exponent = 0;
  std::frexp(std::fmax(std::fabs(exact), static_cast<long double>(std::numeric_limits<T>::min())), &exponent);
  const long double place = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / place);
}

/// Returns nonnegative arguments: zero, denormal numbers, and numbers of every exponent up to 32. The mantissas are
/// spread over their range.
template <class T>
std::vector<T> arguments() {
  std::vector<T> x{0, std::numeric_limits<T>::denorm_min(), std::numeric_limits<T>::min(),
                   std::numeric_limits<T>::min() - std::numeric_limits<T>::denorm_min()};
  const int smallest = std::numeric_limits<T>::min_exponent;
  for (int exponent = smallest; exponent < 6; ++exponent) {
    const int count = exponent > -12 ? 4000 : 3;
    for (int i = 0; i < count; ++i) {
      const double fraction = std::fmod(0.5 + 0.6180339887498949 * (i + 1), 1.0);
      x.push_back(static_cast<T>(std::ldexp(0.5 + fraction / 2, exponent)));
    }
  }
  return x;
}

template <class T>
void expect_last_places(double most) {
  CpuContext context;
  for (const Activation kind : {Activation::tanh, Activation::sigmoid}) {
    for (const int sign : {1, -1}) {
      std::vector<T> x = arguments<T>();
      for (T& one : x) {
        one *= static_cast<T>(sign);
      }
      std::vector<T> y(x.size(), NAN);
      const Shape shape{static_cast<std::int64_t>(x.size())};
      ops::activation_forward(context, kind, TensorView(std::span(x), shape), TensorView(std::span(y), shape));
      double worst = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        worst = std::max(worst, places_off(y[i], function(kind, static_cast<long double>(x[i]))));
        if (kind == Activation::tanh) {
          ASSERT_EQ(std::signbit(y[i]), std::signbit(x[i])) << x[i];
          ASSERT_LE(std::abs(y[i]), T(1)) << x[i];
        }
      }
      EXPECT_LT(worst, most) << ops::name_of(kind) << " sign " << sign;
      EXPECT_GT(worst, 0.1);  // control: places_off() does measure an error
    }
  }
}

TEST(Activation, TanhAndSigmoidAreWithinAFewUnitsOfTheLastPlace) {
  expect_last_places<float>(3);
  expect_last_places<double>(3);
}

/// Control: the tanh of the standard library also errs by up to 3 units in the last place.
TEST(Activation, TanhIsAsNearAsThatOfTheStandardLibrary) {
  for (const double x : arguments<double>()) {
    ASSERT_LT(places_off(std::tanh(x), function(Activation::tanh, static_cast<long double>(x))), 3) << x;
  }
}

TEST(Activation, InfinityHasALimitAndNaNStays) {
  CpuContext context;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> x{kInfinity, -kInfinity, NAN, -0.0};
  std::vector<double> y(4);
  const TensorView vx{std::span(x), Shape{4}};
  const TensorView vy{std::span(y), Shape{4}};
  ops::activation_forward(context, Activation::tanh, vx, vy);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], -1);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_TRUE(y[3] == 0 && std::signbit(y[3]));
  ops::activation_forward(context, Activation::sigmoid, vx, vy);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 0);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.5);
  std::vector<double> smallest{-745, -720};  // numbers whose exponentials are denormal
  ops::activation_forward(context, Activation::sigmoid, TensorView(std::span(smallest), Shape{2}), vy.slice(0, 0, 2));
  EXPECT_EQ(y[0], std::exp(-745.0));
  EXPECT_NEAR(y[1] / std::exp(-720.0), 1, 1e-10);
}

/// Expects that an element's result has the same bits at every index and for every number of elements. Each code path
/// of the op is tried, forward and backward.
TEST(Activation, TheBitsOfAnElementDoNotDependOnTheNumberOfElements) {
  constexpr std::int64_t kMost = 1024;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    GuardedTensor x(Shape{kMost}, dtype, normal(1, 2)), dy(Shape{kMost}, dtype, normal(2)), y(Shape{kMost}, dtype),
        dx(Shape{kMost}, dtype);
    for (const Activation kind : kActivations) {
      CpuContext context;
      ops::activation_forward(context, kind, x, y);
      ops::activation_backward(context, kind, x, dy, dx);
      for (const std::int64_t count : {1, 2, 3, 7, 8, 31, 32, 33, 1023}) {
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1}, kMost - count}) {
          const auto part = [&](const GuardedTensor& whole) { return whole.view().slice(0, first, first + count); };
          const GuardedTensor out(Shape{count}, dtype);
          const std::string what = concat(ops::name_of(kind), ' ', dtype, ", ", count, " from ", first);
          ops::activation_forward(context, kind, part(x), out);
          expect_same_bits(out, part(y), what);
          ops::activation_backward(context, kind, part(x), part(dy), out);
          expect_same_bits(out, part(dx), what);
          const GuardedTensor row(Shape{1, count}, dtype);
          ops::linear_epilogue_forward(context, kind, part(x).reshape({1, count}), {}, {}, row);
          expect_same_bits(row.view().reshape({count}), part(y), what);
        }
      }
    }
  }
}

TEST(Activation, TheSameBitsForAnyNumberOfThreads) {
  for (const OpCase& item : {activation_forward_case(Activation::gelu, {2, 10007}, DType::f32),
                             activation_backward_case(Activation::silu, {2, 10007}, DType::f64)}) {
    expect_same_bits_for_threads(item);
  }
}

TEST(Activation, GradientIsTheDerivative) {
  CpuContext context;
  const Shape shape{5, 7};
  for (const Activation kind : kActivations) {
    GuardedTensor x(shape, DType::f64, normal(1)), y(shape, DType::f64), dy(shape, DType::f64, normal(2)),
        dx(shape, DType::f64);
    const auto forward = [&] {
      ops::activation_forward(context, kind, x, y);
      return weighted_sum(y, dy);
    };
    ops::activation_backward(context, kind, x, dy, dx);
    expect_gradients(forward, {{"x", x, dx}}, 1e-8, ops::name_of(kind));
  }
}

TEST(Activation, TheGradientMayReplaceTheInput) {
  CpuContext context;
  GuardedTensor x(Shape{37}, DType::f32, normal(1)), dy(Shape{37}, DType::f32, normal(2)), dx(Shape{37}, DType::f32);
  ops::activation_backward(context, Activation::gelu, x, dy, dx);
  ops::activation_backward(context, Activation::gelu, x, dy, x);
  expect_same_bits(x, dx);
}

TEST(Activation, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor a(Shape{4, 3}, DType::f32), b(Shape{4, 3}, DType::f32), c(Shape{4, 3}, DType::f32);
  std::vector<TensorView> views{a, b, c};
  Activation kind = Activation::gelu;
  const auto forward = [&] { ops::activation_forward(context, kind, views[0], views[1]); };
  const auto backward = [&] { ops::activation_backward(context, kind, views[0], views[1], views[2]); };
  expect_views_checked(
      {a, b}, [&](const auto& v) { ops::activation_forward(context, kind, v[0], v[1]); }, true);
  expect_views_checked(
      {a, b, c}, [&](const auto& v) { ops::activation_backward(context, kind, v[0], v[1], v[2]); }, true);
  for (TensorView& view : views) {
    view.dtype = DType::f16;
  }
  EXPECT_THROW(forward(), DTypeError) << "on the host";
  EXPECT_THROW(backward(), DTypeError) << "on the host";
  for (TensorView& view : views) {
    view.dtype = DType::f32;
  }
  kind = static_cast<Activation>(7);
  EXPECT_THROW(forward(), UsageError);
  EXPECT_THROW(backward(), UsageError);

  const GuardedTensor memory(Shape{40}, DType::f32);
  const TensorView first(memory.view().data, DType::f32, Device::cpu(), Shape{4, 3});
  const TensorView shifted(memory.span<float>().data() + 1, DType::f32, Device::cpu(), Shape{4, 3});
  EXPECT_THROW(ops::activation_forward(context, Activation::tanh, first, shifted), ShapeError);
  EXPECT_THROW(ops::activation_backward(context, Activation::tanh, b, first, shifted), ShapeError);
  EXPECT_THROW(ops::activation_backward(context, Activation::tanh, first, b, shifted), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
