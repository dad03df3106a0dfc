#include "tests/kernels/adam_cases.hpp"

#include <algorithm>
#include <cmath>

#include "tests/kernels/arena_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::AdamOptions;
using ops::ArenaSegment;

MakeArenaCase make(const AdamOptions& options) {
  return [=](const ArenaParams& p) { return adam_case(p, options); };
}

/// Returns the value of one parameter after each gradient of the list. The parameter starts at p, and the learning rate
/// is 0.1.
std::vector<double> trajectory(double p, const AdamOptions& options, const ArenaSegment& segment,
                               const std::vector<double>& gradients) {
  CpuContext context;
  double rate = 0.1;
  double m = 0;
  double v = 0;
  std::int64_t step = 0;
  std::vector<double> values;
  for (double gradient : gradients) {
    ++step;
    ops::adam_update(context, options,
                     {.segments = std::span(&segment, 1),
                      .learning_rate = TensorView(std::span(&rate, 1), Shape{}),
                      .parameters = TensorView(std::span(&p, 1), Shape{1}),
                      .gradients = TensorView(std::span(&gradient, 1), Shape{1})},
                     TensorView(std::span(&step, 1), Shape{}), TensorView(std::span(&m, 1), Shape{1}),
                     TensorView(std::span(&v, 1), Shape{1}));
    values.push_back(p);
  }
  return values;
}

TEST(Adam, StepsByHand) {
  // The gradient is constant. Both moments divided by their bias corrections are 1, so every step is 0.1 / (1 + 0.25).
  expect_values(trajectory(1, {0.9, 0.999, 0.25, false}, {0, 1}, {1, 1, 1, 1}), {0.92, 0.84, 0.76, 0.68});
  // m = 0.5, -0.75; m / (1 - 0.5^t) = 1, -1. v = 0.25, 1.1875; v / (1 - 0.75^t) = 1, 19 / 7.
  const double first = 1 - 0.1 / 1.5;
  expect_values(trajectory(1, {0.5, 0.75, 0.5, false}, {0, 1}, {1, -2}),
                {first, first + 0.1 / (std::sqrt(19.0 / 7) + 0.5)});
  // The decay is added to the gradient: g = 1 + 0.5 * 2 = 2. So the step is 0.1 * 2 / (2 + 2).
  expect_values(trajectory(2, {0.9, 0.999, 2, false}, {0, 1, 1, 0.5}, {1}), {1.95});
  // Decoupled decay: 2 (1 - 0.1 * 0.5) - 0.1 / (1 + 1); then 1.85 * 0.95 - 0.05.
  expect_values(trajectory(2, {0.9, 0.999, 1, true}, {0, 1, 1, 0.5}, {1, 1}), {1.85, 1.7075});
  // The segment's scale multiplies the learning rate, and the decay uses the scaled rate: 2 (1 - 0.2 * 0.5) - 0.2 / 2.
  expect_values(trajectory(2, {0.9, 0.999, 1, true}, {0, 1, 2, 0.5}, {1}), {1.7});
  expect_values(trajectory(2, {0.9, 0.999, 1, true}, {0, 1, 1, 0.5, false}, {1, 1}), {2, 2});
}

/// Computes step 3 of one element as the papers on Adam and AdamW write it: corrects the moments for bias first.
void oracle_rule(const AdamOptions& o, const ArenaSegment& s, double rate, double gradient, double& p,
                 std::vector<double>& moments) {
  const double g = gradient + (o.decoupled ? 0 : s.weight_decay * p);
  moments[0] = o.beta1 * moments[0] + (1 - o.beta1) * g;
  moments[1] = o.beta2 * moments[1] + (1 - o.beta2) * g * g;
  const double mean = moments[0] / (1 - o.beta1 * o.beta1 * o.beta1);
  const double square = moments[1] / (1 - o.beta2 * o.beta2 * o.beta2);
  const double decay = o.decoupled ? rate * s.weight_decay * p : 0;
  p = p - rate * mean / (std::sqrt(square) + o.epsilon) - decay;
}

TEST(Adam, MatchesTheNaiveFormula) {
  for (const AdamOptions& options : adam_options()) {
    for (const ArenaParams& p : arena_params_and_clipped()) {
      expect_matches(adam_case(p, options), [&](Inputs in, Outputs expected) {
        arena_oracle(p, in, expected,
                     [&](const ArenaSegment& s, double rate, double g, double& value, std::vector<double>& moments) {
                       oracle_rule(options, s, rate, g, value, moments);
                     });
      });
    }
  }
}

TEST(Adam, AStepBelow1CountsAs1) {
  CpuContext context;
  const ArenaParams p{101, DType::f64, mixed_segments(101, 3)};
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{-5}}) {
    compare(
        adam_case(p, {}, 1), context,
        [&] {
          OpCase item = adam_case(p, {}, 1);
          item.run = [=](Context& c, Views in, Views out, const TensorView& workspace) {
            std::int64_t other = step;
            std::vector<TensorView> inputs(in.begin(), in.end());
            inputs[4] = TensorView(std::span(&other, 1), Shape{});
            adam_case(p, {}, 1).run(c, inputs, out, workspace);
          };
          return item;
        }(),
        context, 0);
  }
}

TEST(Adam, PaddingStaysZero) {
  CpuContext context;
  for (const AdamOptions& options : adam_options()) {
    OpCase item = adam_case({17, DType::f32, {{0, 17, 1, 0.1}}}, options, 1);
    item.inputs[1].start = constant(0);
    for (auto& output : item.outputs) {
      output.start = constant(0);
    }
    const CheckedRun instance(item, context);
    for (const GuardedTensor& output : instance.outputs()) {
      expect_same_bits(output, GuardedTensor(Shape{17}, DType::f32).constant(0));
    }
  }
}

TEST(Adam, KeepsWhatItMustNotTouch) {
  CpuContext context({.threads = 2});
  for (const AdamOptions& options : adam_options()) {
    expect_frozen_elements_kept(make(options), context);
    expect_skip_obeyed(make(options), context);
    expect_copy_rounded(make(options), context);
  }
}

TEST(Adam, RangesOfTheArenaGiveTheBitsOfTheWhole) {
  CpuContext context({.threads = 2});
  constexpr std::int64_t kCount = 50021;
  for (const AdamOptions& options : adam_options()) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      expect_ranges_like_the_whole(make(options), context, {kCount, dtype, mixed_segments(kCount, 11), 0, 0.3},
                                   {1, 2, 33, 10004, 10004, 10013, 29999, 40020, 40021, 50000, 50021});
      expect_same_bits_for_threads(adam_case({kCount, dtype, mixed_segments(kCount, 11)}, options));
    }
  }
}

TEST(Adam, RefusesWhatTheContractExcludes) {
  CpuContext context;
  std::int64_t number = 1;
  const TensorView step(std::span(&number, 1), Shape{});
  expect_arena_update_checked(
      2, [&](const ArenaArguments& a) { ops::adam_update(context, {}, a.update, step, a.states[0], a.states[1]); });

  const GuardedTensor rate(Shape{}, DType::f64);
  const GuardedTensor p(Shape{6}, DType::f32);
  const GuardedTensor g(Shape{6}, DType::f32);
  const GuardedTensor m(Shape{6}, DType::f32);
  const GuardedTensor v(Shape{6}, DType::f32);
  const ops::ArenaUpdate update{.learning_rate = rate, .parameters = p, .gradients = g};
  const auto call = [&](const AdamOptions& options, const TensorView& count, const TensorView& first,
                        const TensorView& second) { ops::adam_update(context, options, update, count, first, second); };
  EXPECT_NO_THROW(call({}, step, m, v));
  for (const double beta : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THROW(call({beta, 0.999, 1e-8, false}, step, m, v), UsageError) << beta;
    EXPECT_THROW(call({0.9, beta, 1e-8, false}, step, m, v), UsageError) << beta;
  }
  for (const double epsilon : {0.0, -1e-8, 1e-60, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(call({0.9, 0.999, epsilon, false}, step, m, v), UsageError) << epsilon;
  }
  EXPECT_THROW(call({}, step, {}, v), UsageError);
  EXPECT_THROW(call({}, step, m, {}), UsageError);
  EXPECT_THROW(call({}, {}, m, v), ShapeError);
  EXPECT_THROW(call({}, rate, m, v), DTypeError);
  EXPECT_THROW(call({}, with(step, &TensorView::device, Device::cuda(0)), m, v), DeviceError);
  EXPECT_THROW(call({}, with(step, &TensorView::shape, Shape{2}), m, v), ShapeError);
  EXPECT_THROW(call({}, with(step, &TensorView::data, v.view().data), m, v), ShapeError) << "overlaps a moment";
}

}  // namespace
}  // namespace lockstep::testing
