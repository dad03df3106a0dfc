#include "tests/kernels/sgd_cases.hpp"

#include <array>
#include <cmath>
#include <span>

#include "tests/kernels/arena_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::ArenaSegment;
using ops::SgdOptions;

MakeArenaCase make(const SgdOptions& options) {
  return [=](const ArenaParams& p) { return sgd_case(p, options); };
}

/// Returns the value of one parameter after each of five steps with a constant gradient of 1. The parameter starts at
/// p.
std::vector<double> trajectory(double p, const SgdOptions& options, double rate, const ArenaSegment& segment) {
  CpuContext context;
  double gradient = 1;
  double velocity = 0;
  std::vector<double> values;
  for (int step = 0; step < 5; ++step) {
    ops::sgd_update(context, options,
                    {.segments = std::span(&segment, 1),
                     .learning_rate = TensorView(std::span(&rate, 1), Shape{}),
                     .parameters = TensorView(std::span(&p, 1), Shape{1}),
                     .gradients = TensorView(std::span(&gradient, 1), Shape{1})},
                    TensorView(std::span(&velocity, 1), Shape{1}));
    values.push_back(p);
  }
  return values;
}

TEST(Sgd, FiveStepsByHand) {
  expect_values(trajectory(1, {}, 0.1, {0, 1}), {0.9, 0.8, 0.7, 0.6, 0.5});
  // weight decay alone: p' = p - 0.1 (1 + 0.5 p) = 0.95 p - 0.1
  expect_values(trajectory(2, {}, 0.1, {0, 1, 1, 0.5}), {1.8, 1.61, 1.4295, 1.258025, 1.09512375});
  // v = 1, 1.9, 2.71, 3.439, 4.0951
  expect_values(trajectory(1, {0.9, false}, 0.1, {0, 1}), {0.9, 0.71, 0.439, 0.0951, -0.31441});
  // steps 1 + 0.9 v = 1.9, 2.71, 3.439, 4.0951, 4.68559
  expect_values(trajectory(1, {0.9, true}, 0.1, {0, 1}), {0.81, 0.539, 0.1951, -0.21441, -0.682969});
  // g = 1 + 0.5 p = 2, 1.9, 1.755, 1.59475, 1.4348875; v = 2, 2.9, 3.205, 3.19725, 3.0335125
  expect_values(trajectory(2, {0.5, false}, 0.1, {0, 1, 1, 0.5}), {1.8, 1.51, 1.1895, 0.869775, 0.56642375});
  // The segment's scale multiplies the learning rate and nothing else.
  expect_values(trajectory(2, {0.5, false}, 0.2, {0, 1, 0.5, 0.5}), {1.8, 1.51, 1.1895, 0.869775, 0.56642375});
  // g = 2, 1.85, 1.68625; v = 2, 2.85, 3.11125; steps g + v / 2 = 3, 3.275, 3.241875
  const auto nesterov = trajectory(2, {0.5, true}, 0.1, {0, 1, 1, 0.5});
  expect_values({nesterov.begin(), nesterov.begin() + 3}, {1.7, 1.3725, 1.0483125});
  expect_values(trajectory(2, {0.5, true}, 0.1, {0, 1, 1, 0.5, false}), {2, 2, 2, 2, 2});
}

TEST(Sgd, MatchesTheNaiveFormula) {
  for (const SgdOptions& options : sgd_options()) {
    const double mu = options.momentum;
    const auto rule = [=](const ArenaSegment& s, double rate, double gradient, double& p, std::vector<double>& states) {
      const double g = gradient + s.weight_decay * p;
      const double velocity = mu > 0 ? mu * states[0] + g : g;
      if (mu > 0) {
        states[0] = velocity;
      }
      p -= rate * (options.nesterov ? g + mu * velocity : velocity);
    };
    for (const ArenaParams& p : arena_params_and_clipped()) {
      expect_matches(sgd_case(p, options), [&](Inputs in, Outputs expected) { arena_oracle(p, in, expected, rule); });
    }
  }
}

TEST(Sgd, WhatIsNotANumberIsNotClipped) {
  CpuContext context;
  const ArenaSegment segment{0, 3};
  double rate = 1;
  std::array<float, 3> p{};
  std::array<float, 3> gradients{std::nanf(""), HUGE_VALF, -HUGE_VALF};
  ops::sgd_update(context, {},
                  {.segments = std::span(&segment, 1),
                   .learning_rate = TensorView(std::span(&rate, 1), Shape{}),
                   .parameters = TensorView(std::span(p), Shape{3}),
                   .gradients = TensorView(std::span(gradients), Shape{3}),
                   .clip_value = 2},
                  {});
  EXPECT_TRUE(std::isnan(p[0]));
  EXPECT_EQ(p[1], -2);
  EXPECT_EQ(p[2], 2);
}

TEST(Sgd, KeepsWhatItMustNotTouch) {
  CpuContext context({.threads = 2});
  expect_frozen_elements_kept(make({0.9, true}), context);
  for (const SgdOptions& options : sgd_options()) {
    expect_skip_obeyed(make(options), context);
  }
}

TEST(Sgd, TheCopyIsRoundedToNearestEven) {
  CpuContext context({.threads = 2});
  for (const SgdOptions& options : sgd_options()) {
    expect_copy_rounded(make(options), context);
  }
}

TEST(Sgd, RangesOfTheArenaGiveTheBitsOfTheWhole) {
  CpuContext context({.threads = 2});
  constexpr std::int64_t kCount = 50021;
  for (const SgdOptions& options : sgd_options()) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      ArenaParams whole{kCount, dtype, mixed_segments(kCount, 11), 0};
      const std::vector<std::int64_t> cuts{1, 2, 33, 10004, 10004, 10013, 29999, 40020, 40021, 50000, 50021};
      expect_ranges_like_the_whole(make(options), context, whole, cuts);
      whole.factor = 0.3;
      expect_ranges_like_the_whole(make(options), context, whole, cuts);
    }
  }
}

TEST(Sgd, AFactorOf1IsTheSameAsNone) {
  CpuContext context({.threads = 2});
  for (const SgdOptions& options : sgd_options()) {
    ArenaParams p{20011, DType::f32, mixed_segments(20011, 11), 0};
    OpCase none = sgd_case(p, options);
    none.inputs[2].start = constant(1);
    p.factor = 1;
    compare(none, context, sgd_case(p, options), context, 0);
  }
}

TEST(Sgd, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const SgdOptions& options : sgd_options()) {
      const ArenaParams p{50021, dtype, mixed_segments(50021, 5), 0, 0.3};
      expect_same_bits_for_threads(sgd_case(p, options));
    }
  }
}

TEST(Sgd, WithoutMomentumVelocityIsNotTouched) {
  CpuContext context;
  GuardedTensor tensors[3] = {{Shape{5}, DType::f32}, {Shape{5}, DType::f32}, {Shape{5}, DType::f32}};
  tensors[0].normal(1);
  tensors[1].normal(2);
  const GuardedTensor poison(Shape{5}, DType::f32);
  GuardedTensor rate(Shape{1}, DType::f64, constant(0.1));
  const ArenaSegment segment{0, 5};
  ops::sgd_update(
      context, {},
      {.segments = std::span(&segment, 1), .learning_rate = rate, .parameters = tensors[0], .gradients = tensors[1]},
      tensors[2]);
  expect_same_bits(tensors[2], poison);
  EXPECT_FALSE(std::isnan(tensors[0].values()[0]));
}

TEST(Sgd, RefusesWhatTheContractExcludes) {
  CpuContext context;
  SgdOptions options{0.9, true};
  const auto call = [&](const ArenaArguments& a) { ops::sgd_update(context, options, a.update, a.states[0]); };
  expect_arena_update_checked(1, call);

  const GuardedTensor rate(Shape{}, DType::f64);
  const GuardedTensor parameters(Shape{6}, DType::f32);
  const GuardedTensor gradients(Shape{6}, DType::f32);
  const GuardedTensor velocity(Shape{6}, DType::f32);
  const ops::ArenaUpdate update{.learning_rate = rate, .parameters = parameters, .gradients = gradients};
  for (const double momentum : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THROW(ops::sgd_update(context, {momentum, false}, update, velocity), UsageError) << momentum;
  }
  EXPECT_THROW(ops::sgd_update(context, {0, true}, update, velocity), UsageError) << "nesterov without momentum";
  EXPECT_THROW(ops::sgd_update(context, options, update, {}), UsageError) << "momentum without velocity";
  EXPECT_NO_THROW(ops::sgd_update(context, {}, update, {}));
}

}  // namespace
}  // namespace lockstep::testing
