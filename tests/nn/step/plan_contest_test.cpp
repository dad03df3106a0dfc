#include <lockstep/nn/step/detail/plan_contest.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/random.hpp>

namespace lockstep::nn::detail {
namespace {

/// Plans whose times are made up: what a plan comes to on average, and how much of that is noise.
struct World {
  std::vector<Turn> truth;
  double exposed_noise = 0;  ///< relative
  double step_noise = 0;
  Random random{5, RandomUse::test};
  std::vector<std::pair<std::size_t, int>> calls{};

  Turn operator()(std::size_t plan, int steps) {
    calls.emplace_back(plan, steps);
    const auto draw = [&] { return static_cast<double>(random.below(2001)) / 1000 - 1; };
    const Turn& t = truth.at(plan);
    return {t.exposed_s * (1 + exposed_noise * draw()), t.step_s * (1 + step_noise * draw())};
  }
};

ContestResult hold(const std::vector<std::size_t>& buckets, const ContestOptions& options,
                   const std::function<Turn(std::size_t, int)>& measure) {
  std::vector<Turn> made;
  return hold_contest(
      buckets, options, [&](std::size_t plan, int steps) { made.push_back(measure(plan, steps)); },
      [&] { return std::exchange(made, {}); });
}
ContestResult hold(World& world, const std::vector<std::size_t>& buckets, const ContestOptions& options) {
  return hold(buckets, options, std::ref(world));
}

TEST(PlanContest, TheLeastExposedPlanWinsWherever) {
  int wins = 0;
  for (std::size_t best = 0; best < 7; ++best) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      World world{.truth = std::vector<Turn>(7, {4e-3, 0.1}),
                  .exposed_noise = 0.5,
                  .step_noise = 0.02,
                  .random = Random(seed, RandomUse::test)};
      world.truth[best].exposed_s = 1.5e-3;
      const ContestResult result = hold(world, {1, 2, 3, 4, 5, 6, 7}, {.steps = 64});
      EXPECT_LE(result.steps, 64);
      EXPECT_GE(result.steps, 56);
      wins += result.best == best ? 1 : 0;
    }
  }
  EXPECT_GE(wins, 133) << "of 140";
}

/// The chosen one of equal plans is the one that was lucky, so that the turns which chose it say too little.
TEST(PlanContest, WhatIsToldOfTheChosenPlanIsNotItsLuck) {
  constexpr int kSeeds = 200;
  double told = 0;
  double lucky = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world{
        .truth = std::vector<Turn>(7, {4e-3, 0.1}), .exposed_noise = 1, .random = Random(seed, RandomUse::test)};
    const ContestResult result = hold(world, {1, 2, 3, 4, 5, 6, 7}, {.steps = 64, .confirm_steps = 96});
    EXPECT_GE(result.confirmed.size(), 48U) << "what varies so much needs many steps";
    EXPECT_LE(result.confirmed.size(), 96U);
    const Estimate seen = exposed_of(result.confirmed);
    EXPECT_NEAR(seen.mean, 4e-3, 5 * seen.error);
    told += seen.mean / kSeeds;
    lucky += exposed_of(result.turns[result.best]).mean / kSeeds;
  }
  EXPECT_NEAR(told, 4e-3, 0.02 * 4e-3);
  EXPECT_LT(lucky, 0.85 * 4e-3) << "otherwise this test shows nothing";
}

TEST(PlanContest, TheChosenPlanIsMeasuredUntilItIsKnown) {
  World steady{.truth = {{3e-3, 0.1}, {2e-3, 0.1}}, .exposed_noise = 0.05};
  const ContestResult known = hold(steady, {1, 2}, {.steps = 20, .confirm_steps = 96});
  EXPECT_EQ(known.confirmed.size(), 16U);
  EXPECT_EQ(steady.calls.back().first, 1U);
  World few{.truth = steady.truth, .exposed_noise = 1};
  EXPECT_EQ(hold(few, {1, 2}, {.steps = 20, .turn = 3, .confirm_steps = 17}).confirmed.size(), 5U);
  World none{.truth = steady.truth};
  EXPECT_TRUE(hold(none, {1, 2}, {.steps = 20}).confirmed.empty());
  World hidden{.truth = {{0, 0.1}}};
  EXPECT_EQ(hold(hidden, {1}, {.steps = 20, .confirm_steps = 96}).confirmed.size(), 16U) << "0 is known at once";
}

TEST(PlanContest, AnEstimateOfFewTurns) {
  EXPECT_EQ(exposed_of({}).mean, 0);
  const std::vector<Turn> turns{{2, 9}, {4, 9}};
  EXPECT_EQ(exposed_of(std::span(turns).first(1)).mean, 2);
  EXPECT_EQ(exposed_of(std::span(turns).first(1)).error, 0);
  EXPECT_EQ(exposed_of(turns).mean, 3);
  EXPECT_DOUBLE_EQ(exposed_of(turns).error, 1);
}

/// Communication beside backward slows it down: who looks at what is exposed only is misled.
TEST(PlanContest, APlanThatHidesEverythingAndSlowsTheStepLoses) {
  World world{.truth = {{0.1e-3, 0.130}, {0.2e-3, 0.130}, {0.3e-3, 0.131}, {9e-3, 0.110}, {0.4e-3, 0.129}},
              .exposed_noise = 0.3,
              .step_noise = 0.03};
  EXPECT_EQ(hold(world, {9, 8, 7, 1, 6}, {.steps = 64}).best, 3U);
  // Steps that differ by less than their noise, and than a hundredth: what is exposed decides.
  World noise{.truth = {{5e-3, 0.1100}, {1e-3, 0.1105}, {5e-3, 0.1101}}, .exposed_noise = 0.3, .step_noise = 0.05};
  EXPECT_EQ(hold(noise, {1, 2, 3}, {.steps = 64}).best, 1U);
  World exact{.truth = {{5e-3, 0.1100}, {1e-3, 0.1105}, {5e-3, 0.1101}}};
  EXPECT_EQ(hold(exact, {1, 2, 3}, {.steps = 64}).best, 1U);
}

TEST(PlanContest, OfEqualsTheOneWithFewerBuckets) {
  World world{.truth = {{1.000e-3, 0.1}, {1.005e-3, 0.1}, {1.3e-3, 0.1}}};
  EXPECT_EQ(hold(world, {5, 3, 1}, {.steps = 30}).best, 1U);
  World nothing{.truth = std::vector<Turn>(4, {0, 0.1})};
  EXPECT_EQ(hold(nothing, {5, 3, 2, 4}, {.steps = 30}).best, 2U);
}

TEST(PlanContest, PlansTakeTurnsAndNoMoreStepsThanGiven) {
  World world{.truth = {{3e-3, 0.1}, {2e-3, 0.1}, {4e-3, 0.1}, {5e-3, 0.1}}};
  const ContestResult result = hold(world, {1, 2, 3, 4}, {.steps = 40, .turn = 2});
  EXPECT_TRUE(result.confirmed.empty());
  EXPECT_EQ(result.best, 1U);
  int steps = 0;
  for (std::size_t i = 0; i < world.calls.size(); ++i) {
    EXPECT_EQ(world.calls[i].second, 2);
    steps += world.calls[i].second;
  }
  EXPECT_EQ(steps, result.steps);
  EXPECT_LE(steps, 40);
  for (std::size_t i = 0; i < 4; ++i) {  // the first round
    EXPECT_EQ(world.calls[i].first, i);
  }
  EXPECT_EQ(result.turns[1].size(), result.turns[0].size()) << "the last two";
  EXPECT_GT(result.turns[0].size(), result.turns[2].size());
  EXPECT_GT(result.turns[2].size(), 0U);
  for (int few = 0; few < 12; ++few) {
    World small{.truth = world.truth};
    EXPECT_LE(hold(small, {1, 2, 3, 4}, {.steps = few, .turn = 3}).steps, few);
  }
  World one{.truth = {{3e-3, 0.1}}};
  EXPECT_EQ(hold(one, {1}, {.steps = 40}).steps, 0) << "there is nothing to choose";
}

TEST(PlanContest, OneStrangeStepDoesNotDecide) {
  int call = 0;
  const ContestResult result = hold({1, 2}, {.steps = 40}, [&](std::size_t plan, int) {
    return Turn{plan == 0 ? (++call == 3 ? 1.0 : 1e-3) : 2e-3, 0.1};
  });
  EXPECT_EQ(result.best, 0U);
}

TEST(PlanContest, TrimmedMean) {
  EXPECT_EQ(trimmed_mean({3}), 3);
  EXPECT_EQ(trimmed_mean({1, 2}), 1.5);
  EXPECT_EQ(trimmed_mean({100, 1, 2, 3, -50}), 2);
  EXPECT_EQ(trimmed_mean({9, 1, 2, 3}), 3.75);
}

}  // namespace
}  // namespace lockstep::nn::detail
