// Tests the fit of latency and bandwidth (alpha, beta) on simulated machines whose parameters are known.
#include <lockstep/comm/cost/cost_fit.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::comm {
namespace {

/// Returns the times that `model` predicts for 24 sizes from 8 B on. Each time has a random error factor of e^(noise *
/// u), with u uniform in [-1, 1].
std::vector<TimedSize> times_of(const CostModel& model, double noise, std::uint64_t seed = 1) {
  lockstep::Random random(seed, lockstep::RandomUse::test);
  std::vector<TimedSize> points;
  for (int i = 0; i < 24; ++i) {
    const double bytes = std::ldexp(8.0, i);
    const double u = 2 * random.uniform() - 1;
    points.push_back({bytes, model.predict(bytes) * std::exp(noise * u)});
  }
  return points;
}

const CostModel kHockney{{{0, 2e-6, 1e-10}}};                                             // 2 us, 10 GB/s
const CostModel kSwitching{{{0, 2e-6, 5e-10}, {6e3, 6e-6, 2e-10}, {3e6, -4e-4, 4e-10}}};  // jumps twice

TEST(CostFit, OneHockneyLineIsFoundAgain) {
  for (const double noise : {0.0, 0.05}) {
    const CostModel model = fit_cost(times_of(kHockney, noise));
    ASSERT_EQ(model.pieces.size(), 1U) << model.text();
    EXPECT_NEAR(model.latency_s() / 2e-6, 1, 0.02 + noise / 2);
    EXPECT_NEAR(model.bandwidth() / 1e10, 1, 0.02 + noise / 2);
    EXPECT_EQ(model.pieces[0].first_bytes, 0);
    EXPECT_NO_THROW(check(model, "fit"));
  }
}

TEST(CostFit, ChangesOfProtocolAreFoundAndOneLineIsNotEnough) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<TimedSize> points = times_of(kSwitching, 0.05, seed);
    const CostModel model = fit_cost(points);
    ASSERT_EQ(model.pieces.size(), 5U) << model.text();  // three regimes and the two transitions between them
    EXPECT_EQ(model.pieces[1].first_bytes, 4096);
    EXPECT_EQ(model.pieces[2].first_bytes, 8192);
    EXPECT_NEAR(std::log2(model.pieces[4].first_bytes / 3e6), 0, 2) << model.text();
    EXPECT_NEAR(model.latency_s() / 2e-6, 1, 0.1);
    EXPECT_NEAR(model.bandwidth() * 4e-10, 1, 0.1);
    const CostErrors all = held_out_errors(points);
    EXPECT_EQ(all.count, 12);
    EXPECT_LT(all.median, 0.10);
    EXPECT_LT(all.p90, 0.20);
    // Control: a model with a single latency and bandwidth must have a large error.
    const CostErrors line = held_out_errors(points, {.most_regimes = 1});
    EXPECT_GT(line.p90, 0.30);
  }
}

TEST(CostFit, OneWildSizeBendsNothing) {
  std::vector<TimedSize> points = times_of(kHockney, 0.02);
  points[15].seconds *= 8;
  const CostModel model = fit_cost(points);
  EXPECT_NEAR(model.latency_s() / 2e-6, 1, 0.1) << model.text();
  EXPECT_NEAR(model.bandwidth() / 1e10, 1, 0.1) << model.text();
  EXPECT_NEAR(model.predict(points[15].bytes) / kHockney.predict(points[15].bytes), 1, 0.3) << model.text();
}

TEST(CostFit, FewOrOddTimesAreTakenAsTheyAre) {
  EXPECT_TRUE(fit_cost({}).empty());
  EXPECT_EQ(fit_cost({{64, 3e-6}}).pieces, (CostModel{{{0, 3e-6, 0}}}).pieces);
  const CostModel two = fit_cost({{0, 1e-6}, {1000, 2e-6}});
  EXPECT_NEAR(two.latency_s(), 1e-6, 1e-9);
  EXPECT_NEAR(two.predict(1000), 2e-6, 1e-9);

  const CostModel equal = fit_cost({{8, 5e-6}, {16, 5e-6}, {32, 5e-6}, {64, 5e-6}});
  ASSERT_EQ(equal.pieces.size(), 1U);
  EXPECT_NEAR(equal.latency_s(), 5e-6, 1e-9);
  EXPECT_LT(equal.pieces[0].beta_s, 1e-12);
  EXPECT_GT(equal.bandwidth(), 1e12);

  const CostModel falling = fit_cost({{8, 5.2e-6}, {16, 5.1e-6}, {32, 5e-6}, {64, 4.9e-6}});
  ASSERT_EQ(falling.pieces.size(), 1U);
  EXPECT_EQ(falling.pieces[0].beta_s, 0);
  EXPECT_TRUE(std::isinf(falling.bandwidth()));
  EXPECT_NEAR(falling.latency_s(), 5.05e-6, 0.1e-6);

  // If all sizes are large, the fitted latency must not be negative.
  const CostModel large = fit_cost({{1e6, 1e-4}, {2e6, 2.2e-4}, {4e6, 4.8e-4}, {8e6, 1e-3}});
  EXPECT_GE(large.latency_s(), 0);
  for (const CostModel& model : {two, equal, falling, large}) {
    EXPECT_NO_THROW(check(model, "fit"));
  }
}

TEST(CostFit, WhatNoMeasurementLooksLikeIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using lockstep::UsageError;
  EXPECT_THROW((void)fit_cost({{16, 1e-6}, {8, 1e-6}}), UsageError);
  EXPECT_THROW((void)fit_cost({{8, 1e-6}, {8, 1e-6}}), UsageError);
  EXPECT_THROW((void)fit_cost({{-1, 1e-6}}), UsageError);
  EXPECT_THROW((void)fit_cost({{8, 0}}), UsageError);
  EXPECT_THROW((void)fit_cost({{8, nan}}), UsageError);
  EXPECT_THROW((void)fit_cost({{nan, 1e-6}}), UsageError);
  EXPECT_THROW((void)fit_cost({{8, 1e-6}}, {.most_regimes = 0}), UsageError);
  EXPECT_THROW((void)fit_cost({{8, 1e-6}}, {.noise = 0}), UsageError);
}

TEST(CostFit, ErrorsAreOfTheOtherSizes) {
  const std::vector<TimedSize> points = times_of(kHockney, 0);
  EXPECT_EQ(held_out_errors({points.begin(), points.begin() + 3}).count, 0);
  EXPECT_LT(held_out_errors(points).worst, 1e-3);
  std::vector<TimedSize> doubled = points;
  for (std::size_t i = 1; i < doubled.size(); i += 2) {
    doubled[i].seconds *= 2;  // changes only sizes that the fit holds out
  }
  EXPECT_NEAR(held_out_errors(doubled).median, 0.5, 1e-3);
  const CostErrors ten = cost_errors(kHockney, {points.begin(), points.begin() + 10});
  EXPECT_EQ(ten.count, 10);
  EXPECT_LT(ten.p90, 1e-9);
}

}  // namespace
}  // namespace lockstep::comm
