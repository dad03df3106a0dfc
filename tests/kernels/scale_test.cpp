#include "tests/kernels/scale_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

TEST(Scale, ByHand) {
  CpuContext context;
  const double inf = std::numeric_limits<double>::infinity();
  GuardedTensor factor(Shape{1, 1}, DType::f64, constant(-0.5)), x(Shape{5}, DType::f64, {2, -3, 0, inf, std::nan("")}),
      y(Shape{5}, DType::f64);
  ops::scale(context, factor, x, y);
  EXPECT_EQ(to_doubles(y.view().slice(0, 0, 4)), (std::vector<double>{-1, 1.5, 0, -inf}));
  EXPECT_TRUE(std::isnan(y.values()[4]));
}

TEST(Scale, MatchesTheDefinition) {
  for (const OpCase& item : scale_cases()) {
    expect_matches(item, [&](Inputs in, Outputs expected) {
      std::vector<double> y = in.size() > 1 ? in[1].values() : expected[0].values();
      for (double& value : y) {  // products of f32 numbers are exact in double; assign() rounds them
        value *= in[0].values()[0];
      }
      expected[0].assign(y);
    });
  }
}

TEST(Scale, ReadsTheFactorWhenItRuns) {
  Stream stream = Stream::host_worker("scale");
  CpuContext context({.stream = &stream});
  GuardedTensor factor(Shape{}, DType::f32, constant(2)), x(Shape{3}, DType::f32, constant(3)), y(Shape{3}, DType::f32);
  context.stream().enqueue([&] { factor.constant(5); });
  ops::scale(context, factor, x, y);
  context.synchronize();
  EXPECT_EQ(y.values(), (std::vector<double>{15, 15, 15}));
}

TEST(Scale, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(scale_case({100003}, DType::f32));
  expect_same_bits_for_threads(scale_case({100003}, DType::f64, true));
}

TEST(Scale, TheSameCallOnDyIsTheGradient) {
  CpuContext context;
  GuardedTensor factor(Shape{}, DType::f64, constant(1.7)), x(Shape{11}, DType::f64, normal(1)),
      y(Shape{11}, DType::f64), dy(Shape{11}, DType::f64, normal(2)), dx(Shape{11}, DType::f64);
  const auto forward = [&] {
    ops::scale(context, factor, x, y);
    return weighted_sum(y, dy);
  };
  ops::scale(context, factor, dy, dx);
  expect_gradients(forward, {{"x", x, dx}});
}

TEST(Scale, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor factor(Shape{}, DType::f32, constant(1)), x(Shape{4, 5}, DType::f32, constant(1)),
      y(Shape{4, 5}, DType::f32);
  expect_views_checked(
      {x, y}, [&](const std::vector<TensorView>& v) { ops::scale(context, factor, v[0], v[1]); }, true);
  EXPECT_NO_THROW(ops::scale(context, factor, x, x)) << "y may be x";
  EXPECT_THROW(ops::scale(context, {}, x, y), ShapeError);
  EXPECT_THROW(ops::scale(context, x, x, y), ShapeError) << "more than one factor";
  EXPECT_THROW(ops::scale(context, GuardedTensor(Shape{}, DType::f64), x, y), DTypeError);
  EXPECT_THROW(ops::scale(context, TensorView(factor.view().data, DType::f32, Device::cuda(0), Shape{}), x, y),
               DeviceError);
  EXPECT_THROW(ops::scale(context, y.view().slice(0, 3, 4).slice(1, 4, 5), x, y), ShapeError) << "a factor in y";
  const TensorView flat = x.view().reshape(Shape{20});
  EXPECT_THROW(ops::scale(context, factor, flat.slice(0, 0, 18), flat.slice(0, 2, 20)), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
