#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/arena_support.hpp"
#include "tests/support/op_checks.hpp"

/// Checks of the contract that every optimizer update follows (kernels/arena.hpp). Each check calls an op.
namespace lockstep::testing {

using MakeArenaCase = std::function<OpCase(const ArenaParams&)>;

/// Updates one element in double: changes the parameter p and its states according to the gradient g.
using ArenaRule = std::function<void(const ops::ArenaSegment& segment, double rate, double g, double& p,
                                     std::vector<double>& states)>;

/// Computes the expected outputs: applies the rule to each element with the options of its segment. Only for test cases
/// without ArenaParams::copy.
inline void arena_oracle(const ArenaParams& p, Inputs in, Outputs expected, const ArenaRule& rule) {
  if (p.skip.value_or(0) != 0) {
    return;
  }
  const double rate = in[0].values()[0];
  const std::vector<double> gradients = in[1].values();
  std::vector<std::vector<double>> tensors;
  for (const GuardedTensor& tensor : expected) {
    tensors.push_back(tensor.values());
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::int64_t place = p.begin + static_cast<std::int64_t>(i);
    for (const ops::ArenaSegment& s : p.segments) {
      if (place >= s.offset && place < s.offset + s.count && s.trainable) {
        std::vector<double> states;
        for (std::size_t t = 1; t < tensors.size(); ++t) {
          states.push_back(tensors[t][i]);
        }
        double gradient = p.factor.value_or(1) * gradients[i];
        if (p.clip_value > 0) {
          gradient = std::max(-p.clip_value, std::min(p.clip_value, gradient));
        }
        rule(s, rate * s.learning_rate_scale, gradient, tensors[0][i], states);
        for (std::size_t t = 1; t < tensors.size(); ++t) {
          tensors[t][i] = states[t - 1];
        }
      }
    }
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    expected[t].assign(tensors[t]);
  }
}

/// Returns a tensor with the initial bits of an output of a test case.
inline GuardedTensor start_of(const TensorSpec& output) {
  GuardedTensor tensor(output.shape, output.dtype);
  output.start(tensor);
  return tensor;
}

inline void expect_frozen_elements_kept(const MakeArenaCase& make, Context& context) {
  constexpr std::int64_t kCount = 1000;
  const OpCase item = make({kCount, DType::f32, mixed_segments(kCount, 17), 0});
  const CheckedRun instance(item, context);
  for (std::size_t output = 0; output < item.outputs.size(); ++output) {
    const GuardedTensor before = start_of(item.outputs[output]);
    const TensorView& after = instance.output(output);
    // Elements [600, 817) are the frozen fourth segment and the gap after it. They must not change.
    EXPECT_TRUE(has_same_bits(before.view().slice(0, 600, 817), after.slice(0, 600, 817)));
    EXPECT_FALSE(has_same_bits(before.view().slice(0, 599, 817), after.slice(0, 599, 817)));
    EXPECT_FALSE(has_same_bits(before.view().slice(0, 600, 818), after.slice(0, 600, 818)));
  }
}

/// Expects that skip != 0 leaves all bits unchanged, even where the gradient is NaN, and that skip == 0 gives the same
/// bits as no skip.
inline void expect_skip_obeyed(const MakeArenaCase& make, Context& context) {
  ArenaParams p{520, DType::f32, mixed_segments(520, 1), 0, 0.5, {}, DType::bf16, DType::bf16};
  const CheckedRun updated(make(p), context);
  for (const int skip : {0, 1, -1}) {
    p.skip = skip;
    OpCase item = make(p);
    if (skip != 0) {
      item.inputs[1].start = constant(std::nan(""));
      item.inputs[2].start = constant(HUGE_VAL);
    }
    const CheckedRun instance(item, context);
    for (std::size_t output = 0; output < item.outputs.size(); ++output) {
      const GuardedTensor before = start_of(item.outputs[output]);
      EXPECT_EQ(has_same_bits(before, instance.output(output)), skip != 0) << output;
      EXPECT_EQ(has_same_bits(updated.output(output), instance.output(output)), skip == 0) << output;
    }
  }
}

/// Expects that the copy of each updated parameter holds the parameter rounded to 16 bits, and that all other elements
/// of the copy keep their bits.
inline void expect_copy_rounded(const MakeArenaCase& make, Context& context,
                                const std::vector<ArenaParams>& params = arena_params_with_copy()) {
  for (const ArenaParams& p : params) {
    OpCase item = make(p);
    // The lower half of each f32 makes the number a tie of rounding to bf16, or a neighbour of a tie.
    item.outputs[0].start = [](GuardedTensor& tensor) {
      tensor.normal(2);
      std::int64_t i = 0;
      for (float& value : tensor.span<float>()) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        value = std::bit_cast<float>((bits & 0xffff0000U) | (i % 3 == 0 ? 0x8000U : i % 3 == 1 ? 0x8001U : 0x7fffU));
        ++i;
      }
    };
    const CheckedRun instance(item, context);
    const std::size_t last = item.outputs.size() - 1;
    const GuardedTensor before = start_of(item.outputs[last]);
    GuardedTensor expected = start_of(item.outputs[last]);
    const auto parameters = instance.output(0).span<float>();
    for (const ops::ArenaSegment& s : p.segments) {
      const auto [begin, end] = ops::piece_of(s, p.begin, p.count);
      for (std::int64_t i = begin; i < end && s.trainable && p.skip.value_or(0) == 0; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (*p.copy == DType::bf16) {
          expected.span<BFloat16>()[at] = BFloat16(parameters[at]);
        } else {
          expected.span<Float16>()[at] = Float16(parameters[at]);
        }
      }
    }
    expect_same_bits(instance.output(last), expected, item.name);
    EXPECT_EQ(has_same_bits(before, expected), p.skip.value_or(0) != 0);
  }
}

/// Compares the values of one parameter after each step with the expected values.
inline void expect_values(const std::vector<double>& values, const std::vector<double>& expected,
                          double tolerance = 1e-14) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], tolerance) << "after step " << i + 1;
  }
}

/// Expects that the update gives the same bits when it is done in one call and when it is done in ranges that end at
/// `cuts`. As a control, another learning rate changes the bits.
inline void expect_ranges_like_the_whole(const MakeArenaCase& make, Context& context, const ArenaParams& whole,
                                         const std::vector<std::int64_t>& cuts) {
  ArenaParams ranges = whole;
  ranges.cuts = cuts;
  compare(make(whole), context, make(ranges), context, 0);
  OpInstance first(make(whole), context);
  OpCase other = make(ranges);
  other.inputs[0].start = constant(0.1001);
  OpInstance second(other, context);
  first.run();
  second.run();
  EXPECT_FALSE(has_same_bits(first.output(0), second.output(0)));
}

/// Arguments of a call on the host. They are valid at first; each test then changes one.
struct ArenaArguments {
  std::vector<ops::ArenaSegment> segments{{0, 3}, {3, 3}};
  ops::ArenaUpdate update;
  std::vector<TensorView> states;
};

/// Expects that call() throws the errors that require_arena_update() specifies for invalid arguments. states: number of
/// the op's states.
inline void expect_arena_update_checked(std::size_t states, const std::function<void(const ArenaArguments&)>& call) {
  const GuardedTensor rate(Shape{}, DType::f64);
  const GuardedTensor factor(Shape{}, DType::f32);
  GuardedTensor skip(Shape{}, DType::i32);
  skip.constant(1);
  std::vector<GuardedTensor> tensors;
  for (std::size_t i = 0; i < 2 + states; ++i) {
    tensors.emplace_back(Shape{6}, DType::f32);
  }
  const GuardedTensor copy(Shape{6}, DType::bf16);
  ArenaArguments good;
  good.update = {.segments = {},
                 .begin = 0,
                 .learning_rate = rate,
                 .factor = factor,
                 .skip = skip,
                 .parameters = tensors[0],
                 .gradients = tensors[1],
                 .copy = copy};
  for (std::size_t i = 0; i < states; ++i) {
    good.states.push_back(tensors[2 + i]);
  }
  const auto with = [&](auto&& change) {
    ArenaArguments a = good;
    change(a);
    a.update.segments = a.segments;
    call(a);
  };
  EXPECT_NO_THROW(with([](ArenaArguments&) {}));
  EXPECT_NO_THROW(with([](ArenaArguments& a) { a.update.factor = a.update.skip = a.update.copy = {}; }));
  EXPECT_NO_THROW(with([](ArenaArguments& a) { a.update.gradients.dtype = DType::bf16; }));
  for (const double clip_value : {-1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(with([&](ArenaArguments& a) { a.update.clip_value = clip_value; }), UsageError) << clip_value;
  }

  using Pick = std::function<TensorView&(ArenaArguments&)>;
  const std::vector<Pick> scalars{[](ArenaArguments& a) -> TensorView& { return a.update.learning_rate; },
                                  [](ArenaArguments& a) -> TensorView& { return a.update.factor; },
                                  [](ArenaArguments& a) -> TensorView& { return a.update.skip; }};
  std::vector<Pick> vectors{[](ArenaArguments& a) -> TensorView& { return a.update.parameters; },
                            [](ArenaArguments& a) -> TensorView& { return a.update.gradients; },
                            [](ArenaArguments& a) -> TensorView& { return a.update.copy; }};
  for (std::size_t i = 0; i < states; ++i) {
    vectors.push_back([i](ArenaArguments& a) -> TensorView& { return a.states[i]; });
  }
  std::vector<Pick> all = scalars;
  all.insert(all.end(), vectors.begin(), vectors.end());
  for (const Pick& view : all) {
    EXPECT_THROW(with([&](ArenaArguments& a) { view(a).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(with([&](ArenaArguments& a) { view(a).dtype = DType::i64; }), DTypeError);
    EXPECT_THROW(with([&](ArenaArguments& a) { view(a).shape = Shape{2, 3}; }), ShapeError);
  }
  for (const Pick& view : {scalars[0], vectors[0], vectors[1]}) {
    EXPECT_THROW(with([&](ArenaArguments& a) { view(a) = {}; }), ShapeError) << "not given";
  }
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    EXPECT_THROW(with([&](ArenaArguments& a) { vectors[i](a).dtype = DType::f64; }), DTypeError) << i;
    EXPECT_THROW(with([&](ArenaArguments& a) { vectors[i](a).strides = Strides{2}; }), ShapeError) << i;
    for (const Pick& scalar : scalars) {
      EXPECT_THROW(with([&](ArenaArguments& a) { vectors[i](a).data = scalar(a).data; }), ShapeError) << i;
    }
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_THROW(with([&](ArenaArguments& a) { vectors[i](a).data = vectors[j](a).data; }), ShapeError) << i << j;
    }
  }
  EXPECT_THROW(with([](ArenaArguments& a) { a.update.gradients.dtype = DType::f16; }), DTypeError) << "copy is bf16";
  EXPECT_THROW(with([](ArenaArguments& a) { a.update.begin = -1; }), ShapeError);
  EXPECT_THROW(with([](ArenaArguments& a) { a.update.begin = std::numeric_limits<std::int64_t>::max() - 2; }),
               ShapeError);
  for (const auto& [offset, count] : {std::pair<std::int64_t, std::int64_t>{2, 3}, {3, -1}, {-1, 1}}) {
    EXPECT_THROW(
        with([o = offset, n = count](ArenaArguments& a) { a.segments[1].offset = o, a.segments[1].count = n; }),
        ShapeError);
  }
  EXPECT_THROW(with([](ArenaArguments& a) { std::swap(a.segments[0], a.segments[1]); }), ShapeError);
  EXPECT_THROW(with([](ArenaArguments& a) { a.segments[1].count = std::numeric_limits<std::int64_t>::max() - 1; }),
               ShapeError);
  EXPECT_THROW(with([](ArenaArguments& a) { a.segments[0].weight_decay = std::nan(""); }), UsageError);
  EXPECT_THROW(with([](ArenaArguments& a) { a.segments[0].learning_rate_scale = HUGE_VAL; }), UsageError);
}

}  // namespace lockstep::testing
