#include "tests/kernels/lerp_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

TEST(Lerp, ByHand) {
  CpuContext context;
  const double inf = std::numeric_limits<double>::infinity();
  GuardedTensor x(Shape{4}, DType::f64, {2, -3, 8, std::nan("")}), y(Shape{4}, DType::f64, {4, 1, 0, 1});
  ops::lerp(context, 0.25, x, y);
  EXPECT_EQ(to_doubles(y.view().slice(0, 0, 3)), (std::vector<double>{3.5, 0, 2}));
  EXPECT_TRUE(std::isnan(y.values()[3]));
  x.assign({2, -3, 8, 1});
  y.assign({inf, -inf, std::nan(""), 7});
  ops::lerp(context, 1, x, y);
  EXPECT_EQ(y.values(), (std::vector<double>{2, -3, 8, 1})) << "with weight 1 what was there does not matter";
  y.assign({0.1, 7, -2, 5});
  ops::lerp(context, 0, x, y);
  EXPECT_EQ(y.values(), (std::vector<double>{0.1, 7, -2, 5}));
}

TEST(Lerp, MatchesTheDefinition) {
  const auto weighted = [](double weight) {
    return [weight](Inputs in, Outputs expected) {
      std::vector<double> y = expected[0].values();
      const std::vector<double> x = in[0].values();
      for (std::size_t i = 0; i < y.size(); ++i) {
        y[i] = (1 - weight) * y[i] + weight * x[i];
      }
      expected[0].assign(y);
    };
  };
  for (const OpCase& item : lerp_cases()) {
    expect_matches(item, weighted(std::stod(item.name.substr(item.name.rfind(' ')))));
  }
  OpCase bf16 = lerp_case({301}, DType::bf16);
  bf16.tolerance = 0x1p-8;  // rounded once
  expect_matches(bf16, weighted(0.25));
}

TEST(Lerp, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(lerp_case({100003}, DType::f32, 1e-3));
  expect_same_bits_for_threads(lerp_case({100003}, DType::f64, 1e-3));
}

TEST(Lerp, AnAverageOfManyStepsIsTheWeightedSum) {
  CpuContext context;
  GuardedTensor x(Shape{1}, DType::f64), y(Shape{1}, DType::f64, {5});
  double expected = 5 * std::pow(0.9, 20);
  for (int step = 1; step <= 20; ++step) {
    x.assign({static_cast<double>(step * step)});
    ops::lerp(context, 0.1, x, y);
    expected += 0.1 * step * step * std::pow(0.9, 20 - step);
  }
  EXPECT_NEAR(y.values()[0], expected, 1e-11);
}

TEST(Lerp, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor x(Shape{4, 5}, DType::f32, constant(1)), y(Shape{4, 5}, DType::f32, constant(1));
  expect_views_checked({x, y}, [&](const std::vector<TensorView>& v) { ops::lerp(context, 0.5, v[0], v[1]); });
  EXPECT_THROW(ops::lerp(context, 0.5, x, x), ShapeError);
  for (const double weight : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(ops::lerp(context, weight, x, y), UsageError) << weight;
  }
}

}  // namespace
}  // namespace lockstep::testing
