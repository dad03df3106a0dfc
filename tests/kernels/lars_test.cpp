#include "tests/kernels/lars_cases.hpp"

#include <cmath>
#include <vector>

#include "tests/kernels/arena_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::ArenaSegment;
using ops::LarsOptions;

MakeArenaCase make(const LarsOptions& options) {
  return [=](const ArenaParams& p) { return lars_case(p, options); };
}

/// Returns a tensor of two parameters after `steps` updates with the gradient g. The parameters start at (3, 4), and
/// the learning rate is 0.1.
std::vector<double> after(int steps, const LarsOptions& options, const ArenaSegment& segment, std::vector<double> g,
                          double factor = 1) {
  CpuContext context;
  std::vector<double> p{3, 4};
  std::vector<double> v{0, 0};
  double rate = 0.1;
  std::vector<double> workspace(8);
  const TensorView space(workspace.data(), DType::u8, Device::cpu(), Shape{64});
  for (int step = 0; step < steps; ++step) {
    ops::lars_update(context, options,
                     {.segments = std::span(&segment, 1),
                      .learning_rate = TensorView(std::span(&rate, 1), Shape{}),
                      .factor = TensorView(std::span(&factor, 1), Shape{}),
                      .parameters = TensorView(std::span(p), Shape{2}),
                      .gradients = TensorView(std::span(g), Shape{2})},
                     TensorView(std::span(v), Shape{2}), space);
  }
  return p;
}

TEST(Lars, StepsByHand) {
  const LarsOptions plain{.trust_coefficient = 0.1, .epsilon = 0};
  // ||p|| = 5, ||g|| = 1: ratio 0.5.
  expect_values(after(1, plain, {0, 2}, {0, 1}), {3, 3.95});
  // The step does not depend on the length of the gradient or on the factor.
  expect_values(after(1, plain, {0, 2}, {0, 8}), {3, 3.95});
  expect_values(after(1, plain, {0, 2}, {0, 1}, 16), {3, 3.95});
  // Decay: ratio 0.1 * 5 / (1 + 0.2 * 5) = 0.25 of (0.6, 1.8).
  expect_values(after(1, plain, {0, 2, 1, 0.2}, {0, 1}), {2.985, 3.955});
  // epsilon 1: ratio 0.25.
  expect_values(after(1, {.trust_coefficient = 0.1, .epsilon = 1}, {0, 2}, {0, 1}), {3, 3.975});
  // Momentum: the velocity is 0.5 after the first step, and 0.5 * 0.5 + 0.1 * sqrt(9 + 3.95^2) after the second.
  const double ratio = 0.1 * std::sqrt(9 + 3.95 * 3.95);
  expect_values(after(2, {.momentum = 0.5, .trust_coefficient = 0.1, .epsilon = 0}, {0, 2}, {0, 1}),
                {3, 3.95 - 0.1 * (0.25 + ratio)});
  // Nesterov: 0.5 + 0.5 * 0.5.
  expect_values(after(1, {.momentum = 0.5, .nesterov = true, .trust_coefficient = 0.1, .epsilon = 0}, {0, 2}, {0, 1}),
                {3, 3.925});
  // The trust ratio is 1 for a segment that does not adapt and for a gradient of 0.
  expect_values(after(1, plain, {0, 2, 1, 0, true, false}, {0, 1}), {3, 3.9});
  expect_values(after(1, plain, {0, 2, 1, 0.5}, {0, 0}), {2.85, 3.8});
  expect_values(after(1, plain, {0, 2, 1, 0.5, false}, {0, 1}), {3, 4});
}

/// Returns the norm of those elements of a segment that are in the range of the call. begin: arena index of the first
/// element of the range.
double norm_of(const GuardedTensor& tensor, const ArenaSegment& s, std::int64_t begin) {
  const std::vector<double> values = tensor.values();
  double sum = 0;
  for (std::int64_t i = 0; i < s.count; ++i) {
    const std::int64_t at = s.offset + i - begin;
    if (at >= 0 && at < static_cast<std::int64_t>(values.size())) {
      sum += values[static_cast<std::size_t>(at)] * values[static_cast<std::size_t>(at)];
    }
  }
  return std::sqrt(sum);
}

/// Compares lars_update() with the formula. The norms cover only the elements in the range of the call, even if the
/// range begins inside a segment.
void expect_the_naive_formula(const std::vector<ArenaParams>& params, bool divided) {
  for (const LarsOptions& o : lars_options()) {
    for (const ArenaParams& p : params) {
      const auto oracle = [&](Inputs in, Outputs expected) {
        std::vector<double> ratios;
        for (const ArenaSegment& s : p.segments) {
          const double w = norm_of(expected[0], s, p.begin);
          const double g = norm_of(in[1], s, p.begin) * std::abs(p.factor.value_or(1));
          ratios.push_back(s.adapts && w > 0 && g > 0 ? o.trust_coefficient * w / (g + s.weight_decay * w + o.epsilon)
                                                      : 1);
        }
        arena_oracle(
            p, in, expected,
            [&](const ArenaSegment& s, double rate, double gradient, double& value, std::vector<double>& states) {
              const double ratio = ratios[static_cast<std::size_t>(&s - p.segments.data())];
              const double g = ratio * (gradient + s.weight_decay * value);
              double step = g;
              if (!states.empty()) {
                states[0] = o.momentum * states[0] + g;
                step = o.nesterov ? g + o.momentum * states[0] : states[0];
              }
              value -= rate * step;
            });
      };
      expect_matches(divided ? lars_divided_case(p, o) : lars_case(p, o), oracle);
    }
  }
}

TEST(Lars, MatchesTheNaiveFormula) {
  expect_the_naive_formula(lars_params(), false);
}

TEST(Lars, DividedOverRangesMatchesTheNaiveFormula) {
  expect_the_naive_formula(lars_divided_params(), true);
}

/// If a single range covers the arena, its squares are summed in the order of lars_update(). So the divided update must
/// give the bits of lars_update().
TEST(Lars, SquaresOfOneRangeGiveTheBitsOfTheWhole) {
  CpuContext context({.threads = 2});
  for (const LarsOptions& o : lars_options()) {
    for (const ArenaParams& p : lars_params()) {
      compare(lars_divided_case(p, o), context, lars_case(p, o), context, 0);
    }
    expect_same_bits_for_threads(lars_divided_case({50021, DType::f32, mixed_segments(50021, 11), 0, 0.3}, o));
  }
}

TEST(Lars, RefusesSquaresOfOtherRows) {
  CpuContext context;
  const GuardedTensor rate(Shape{}, DType::f64);
  const GuardedTensor p(Shape{6}, DType::f32);
  const GuardedTensor g(Shape{6}, DType::f32);
  std::vector<double> memory(32);
  const TensorView workspace(memory.data(), DType::u8, Device::cpu(), Shape{128});
  // The second segment is frozen and the third is empty, so lars_rows() counts two.
  const std::vector<ArenaSegment> segments{{0, 4}, {4, 4, 1, 0, false}, {8, 0}, {8, 6}};
  EXPECT_EQ(ops::lars_rows(segments), 2);
  const ops::ArenaUpdate update{
      .segments = segments, .begin = 3, .learning_rate = rate, .parameters = p, .gradients = g};
  const TensorView squares(memory.data() + 20, DType::f64, Device::cpu(), Shape{2, 2});
  EXPECT_NO_THROW(ops::lars_squares(context, update, squares, workspace));
  EXPECT_NO_THROW(ops::lars_update(context, {}, update, {}, workspace, squares));
  const auto both = [&](const TensorView& bad, const TensorView& space, auto&& expect) {
    expect([&] { ops::lars_squares(context, update, bad, space); });
    expect([&] { ops::lars_update(context, {}, update, {}, space, bad); });
  };
  const auto shape_error = [](auto&& call) { EXPECT_THROW(call(), ShapeError); };
  both(TensorView(memory.data() + 20, DType::f64, Device::cpu(), Shape{4}), workspace, shape_error);
  both(TensorView(memory.data() + 20, DType::f64, Device::cpu(), Shape{3, 2}), workspace, shape_error);
  both(TensorView(memory.data() + 4, DType::f64, Device::cpu(), Shape{2, 2}), workspace, shape_error);
  both(squares, workspace.slice(0, 0, 8), shape_error);
  both(TensorView(memory.data() + 20, DType::f32, Device::cpu(), Shape{2, 2}), workspace,
       [](auto&& call) { EXPECT_THROW(call(), DTypeError); });
  TensorView elsewhere = squares;
  elsewhere.device = Device::cuda(0);
  both(elsewhere, workspace, [](auto&& call) { EXPECT_THROW(call(), DeviceError); });
  EXPECT_THROW(ops::lars_squares(context, update, {}, workspace), DTypeError);
}

TEST(Lars, KeepsWhatItMustNotTouch) {
  CpuContext context({.threads = 2});
  for (const LarsOptions& options : lars_options()) {
    expect_frozen_elements_kept(make(options), context);
    expect_skip_obeyed(make(options), context);
    expect_copy_rounded(make(options), context, lars_params_with_copy());
  }
}

TEST(Lars, TheSameBitsForAnyNumberOfThreadsAndTensorByTensor) {
  CpuContext context({.threads = 2});
  for (const LarsOptions& options : lars_options()) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const ArenaParams whole{50021, dtype, mixed_segments(50021, 11), 0, 0.3};
      expect_same_bits_for_threads(lars_case(whole, options));
      expect_ranges_like_the_whole(make(options), context, whole, {10004, 10004, 30012, 40020, 50021});
    }
  }
}

TEST(Lars, RefusesWhatTheContractExcludes) {
  CpuContext context;
  std::vector<double> memory(16);
  const TensorView workspace(memory.data(), DType::u8, Device::cpu(), Shape{128});
  expect_arena_update_checked(1, [&](const ArenaArguments& a) {
    ops::lars_update(context, {.momentum = 0.9}, a.update, a.states[0], workspace);
  });

  const GuardedTensor rate(Shape{}, DType::f64);
  const GuardedTensor p(Shape{6}, DType::f32);
  const GuardedTensor g(Shape{6}, DType::f32);
  const GuardedTensor v(Shape{6}, DType::f32);
  const std::vector<ArenaSegment> segments{{0, 6}, {6, 6}, {12, 6}};
  ops::ArenaUpdate update{.segments = segments, .begin = 6, .learning_rate = rate, .parameters = p, .gradients = g};
  const auto call = [&](const LarsOptions& options, const TensorView& velocity, const TensorView& space) {
    ops::lars_update(context, options, update, velocity, space);
  };
  EXPECT_NO_THROW(call({.momentum = 0.9}, v, workspace));
  EXPECT_NO_THROW(call({}, {}, workspace));
  for (const double bad : {-0.1, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(call({.momentum = bad}, v, workspace), UsageError) << bad;
    EXPECT_THROW(call({.trust_coefficient = bad}, v, workspace), UsageError) << bad;
    EXPECT_THROW(call({.epsilon = bad}, v, workspace), UsageError) << bad;
  }
  EXPECT_THROW(call({.trust_coefficient = 0}, v, workspace), UsageError);
  EXPECT_THROW(call({.nesterov = true}, v, workspace), UsageError);
  EXPECT_THROW(call({.momentum = 0.9}, {}, workspace), UsageError);

  EXPECT_EQ(ops::lars_workspace_bytes(segments), 72U);
  EXPECT_THROW(call({}, v, {}), ShapeError);
  EXPECT_THROW(call({}, v, workspace.slice(0, 0, 71)), ShapeError);
  EXPECT_THROW(call({}, v, workspace.slice(0, 1, 128)), ShapeError) << "off its boundary";
  EXPECT_THROW(call({}, v, with(workspace, &TensorView::dtype, DType::i32)), DTypeError);
  EXPECT_THROW(call({}, v, with(workspace, &TensorView::device, Device::cuda(0))), DeviceError);
  EXPECT_THROW(call({}, v, with(workspace, &TensorView::data, g.view().data)), ShapeError) << "overlaps the gradients";
  for (const std::int64_t begin : {5, 7}) {
    update.begin = begin;
    EXPECT_THROW(call({}, v, workspace), ShapeError) << "cuts a segment";
  }
}

}  // namespace
}  // namespace lockstep::testing
