#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/arena.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Parameters that the updates of all optimizers have in common.
struct ArenaParams {
  std::int64_t count = 1;
  DType dtype = DType::f32;
  std::vector<ops::ArenaSegment> segments;
  std::int64_t begin = 0;
  std::optional<double> factor{};
  std::optional<int> skip{};
  std::optional<DType> gradients{};  ///< type of the gradients; empty: the type of the parameters
  std::optional<DType> copy{};
  double clip_value = 0;
  std::vector<std::int64_t> cuts{};  ///< ends of ranges, each updated by its own call; empty: one call
};

inline std::string to_text(const ArenaParams& p) {
  std::string text = concat(p.dtype, ' ', Shape{p.count}, " segments ", p.segments.size(), " begin ", p.begin);
  text += p.factor ? concat(" factor ", *p.factor) : "";
  text += p.skip ? concat(" skip ", *p.skip) : "";
  text += p.gradients ? concat(" gradients ", *p.gradients) : "";
  text += p.copy ? concat(" copy ", *p.copy) : "";
  text += p.clip_value > 0 ? concat(" clipped at ", p.clip_value) : "";
  return text;
}

/// Returns segments of different groups over [0, count): some with weight decay, one frozen, some with their own
/// learning rate, one without adaptation. A gap of `gap` elements belongs to no segment.
inline std::vector<ops::ArenaSegment> mixed_segments(std::int64_t count, std::int64_t gap) {
  std::vector<ops::ArenaSegment> segments;
  const std::int64_t part = count / 5;
  segments.push_back({0, part, 1, 0.1, true});
  segments.push_back({part, part, 1, 0, true, false});
  segments.push_back({2 * part, part, 0.5, 0.01, true});
  segments.push_back({3 * part, part, 1, 0.1, false});
  segments.push_back({4 * part + gap, count - 4 * part - gap, 2, 0.05, true});
  return segments;
}

/// Returns `number` segments of about the same length. Their options repeat every three segments, and every seventh
/// segment is frozen.
inline std::vector<ops::ArenaSegment> many_segments(std::int64_t count, std::int64_t number) {
  std::vector<ops::ArenaSegment> segments;
  for (std::int64_t i = 0; i < number; ++i) {
    const std::int64_t begin = i * count / number;
    segments.push_back({begin, (i + 1) * count / number - begin, i % 3 == 0 ? 0.5 : 1, i % 3 == 1 ? 0.0 : 0.1,
                        i % 7 != 6, i % 5 != 4});
  }
  return segments;
}

/// Calls the update op. states: views of its states; more: views of the inputs that only this op has.
using RunUpdate = std::function<void(Context& context, const ops::ArenaUpdate& update, Views states, Views more,
                                     const TensorView& workspace)>;

/// Makes a test case of the optimizer update `op`. Inputs: learning rate, gradients, factor, skip, `more`; outputs:
/// parameters, states, and the copy if p.copy is set. All outputs have random initial values.
inline OpCase arena_case(const std::string& op, const ArenaParams& p, const std::vector<TensorSpec>& states,
                         std::vector<TensorSpec> more, const RunUpdate& run) {
  OpCase item;
  item.name = concat(op, ' ', to_text(p));
  item.dtype = p.dtype;
  const Shape shape{p.count};
  item.inputs = {{"learning_rate", Shape{}, DType::f64, constant(0.1)},
                 {"gradients", shape, p.gradients.value_or(p.dtype), normal(1)},
                 {"factor", Shape{}, p.dtype, constant(p.factor.value_or(77))},
                 {"skip", Shape{}, DType::i32, constant(p.skip.value_or(77))}};
  for (TensorSpec& spec : more) {
    item.inputs.push_back(std::move(spec));
  }
  item.outputs = {{"parameters", shape, p.dtype, normal(2)}};
  for (const TensorSpec& state : states) {
    item.outputs.push_back({state.name, shape, p.dtype, state.start});
  }
  if (p.copy) {
    item.outputs.push_back({"copy", shape, *p.copy, normal(9)});
  }
  item.run = [=, number = states.size()](Context& context, Views in, Views out, const TensorView& workspace) {
    std::int64_t begin = 0;
    for (const std::int64_t end : p.cuts.empty() ? std::vector<std::int64_t>{p.count} : p.cuts) {
      std::vector<TensorView> own;
      for (std::size_t s = 0; s < number; ++s) {
        own.push_back(out[1 + s].slice(0, begin, end));
      }
      run(context,
          {.segments = p.segments,
           .begin = p.begin + begin,
           .learning_rate = in[0],
           .factor = p.factor ? in[2] : TensorView(),
           .skip = p.skip ? in[3] : TensorView(),
           .parameters = out[0].slice(0, begin, end),
           .gradients = in[1].slice(0, begin, end),
           .copy = p.copy ? out[1 + number].slice(0, begin, end) : TensorView(),
           .clip_value = p.clip_value},
          own, in.subspan(4), workspace);
      begin = end;
    }
  };
  const auto bytes = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  item.bytes = static_cast<double>(p.count) * (bytes(p.dtype) * static_cast<double>(2 + 2 * states.size()) +
                                               bytes(p.gradients.value_or(p.dtype)) + (p.copy ? bytes(*p.copy) : 0.0));
  item.tolerance = p.dtype == DType::f64 ? 1e-15 : 2e-7;
  return item;
}

/// Returns parameters of test cases: no element, one element, odd and prime counts, more elements than one CPU thread
/// processes; whole arenas and ranges that cut segments; a factor, a skip, 16-bit gradients.
inline std::vector<ArenaParams> arena_params() {
  std::vector<ArenaParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t count : {0, 1, 7, 101, 20011}) {
      all.push_back({count, dtype, {{0, count, 1, 0.0005, true}}, 0});
      all.push_back({count, dtype, mixed_segments(count + 60, 3), 29, 0.25, 0});
    }
    all.push_back({101, dtype, {}, 5});
    all.push_back({101, dtype, mixed_segments(101, 3), 0, 0.5, 3});
    all.push_back({20011, dtype, many_segments(21000, 150), 501});
  }
  for (const DType half : {DType::bf16, DType::f16}) {
    all.push_back({4099, DType::f32, mixed_segments(4200, 3), 29, 0.5, 0, half});
  }
  return all;
}

/// Returns arena_params(), and parameters of test cases that clip gradients by value: with and without a factor, and
/// with 16-bit gradients. Some bounds clip many gradients, one clips none.
inline std::vector<ArenaParams> arena_params_and_clipped() {
  std::vector<ArenaParams> all = arena_params();
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double clip_value : {0.0625, 0.5, 100.0}) {
      ArenaParams p{4099, dtype, mixed_segments(4200, 3), 29};
      p.clip_value = clip_value;
      all.push_back(p);
      p.factor = 0.25;
      all.push_back(p);
      if (dtype == DType::f32) {
        p.gradients = DType::bf16;
        all.push_back(p);
      }
    }
  }
  return all;
}

/// Returns parameters of test cases that also write a 16-bit copy of the parameters. The test compares the copy with
/// the parameters that the same call writes.
inline std::vector<ArenaParams> arena_params_with_copy() {
  std::vector<ArenaParams> all;
  for (const DType half : {DType::bf16, DType::f16}) {
    all.push_back({4099, DType::f32, mixed_segments(4200, 3), 29, {}, {}, {}, half});
    all.push_back({4099, DType::f32, mixed_segments(4200, 3), 29, 0.5, 0, half, half});
    all.push_back({77, DType::f32, mixed_segments(77, 3), 0, 0.5, 1, half, half});
  }
  return all;
}

/// Returns the test cases for a GPU. make: makes the op's test case from parameters. A copy may differ from the host's
/// in its last bit, because the f32 parameters of GPU and host may round to different 16-bit numbers.
inline std::vector<DeviceCase> arena_device_cases(const std::function<OpCase(const ArenaParams&)>& make,
                                                  const std::vector<ArenaParams>& params,
                                                  const std::vector<ArenaParams>& with_copy, double tolerance) {
  std::vector<DeviceCase> items;
  for (const ArenaParams& p : params) {
    if (p.dtype == DType::f32) {
      items.push_back({make(p), make(p), tolerance});
    }
  }
  for (const ArenaParams& p : with_copy) {
    items.push_back({make(p), make(p), 4e-3});
  }
  return items;
}
inline std::vector<DeviceCase> arena_device_cases(const std::function<OpCase(const ArenaParams&)>& make,
                                                  double tolerance) {
  return arena_device_cases(make, arena_params_and_clipped(), arena_params_with_copy(), tolerance);
}

}  // namespace lockstep::testing
