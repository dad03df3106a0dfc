#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/sgd.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct SgdParams {
  std::int64_t count = 1;
  DType dtype = DType::f32;
  ops::SgdOptions options;
  std::vector<ops::ArenaSegment> segments;
  std::int64_t begin = 0;
};

/// Segments of different groups over [0, count): with and without weight decay, one frozen, one with its own learning
/// rate, and a gap of `gap` elements that belongs to none.
inline std::vector<ops::ArenaSegment> mixed_segments(std::int64_t count, std::int64_t gap) {
  std::vector<ops::ArenaSegment> segments;
  const std::int64_t part = count / 5;
  segments.push_back({0, part, 1, 0.1, true});
  segments.push_back({part, part, 1, 0, true});
  segments.push_back({2 * part, part, 0.5, 0.01, true});
  segments.push_back({3 * part, part, 1, 0.1, false});
  segments.push_back({4 * part + gap, count - 4 * part - gap, 2, 0.05, true});
  return segments;
}

/// `number` segments of about the same length, of three groups in turn; every seventh is frozen.
inline std::vector<ops::ArenaSegment> many_segments(std::int64_t count, std::int64_t number) {
  std::vector<ops::ArenaSegment> segments;
  for (std::int64_t i = 0; i < number; ++i) {
    const std::int64_t begin = i * count / number;
    segments.push_back(
        {begin, (i + 1) * count / number - begin, i % 3 == 0 ? 0.5 : 1, i % 3 == 1 ? 0.0 : 0.1, i % 7 != 6});
  }
  return segments;
}

/// inputs: learning rate, gradients; outputs: parameters, velocity (absent without momentum), both started at random.
inline OpCase sgd_case(const SgdParams& p) {
  OpCase item;
  item.name = concat("sgd_update ", p.dtype, ' ', Shape{p.count}, " momentum ", p.options.momentum,
                     p.options.nesterov ? " nesterov" : "", " segments ", p.segments.size(), " begin ", p.begin);
  item.dtype = p.dtype;
  const Shape shape{p.count};
  item.inputs = {{"learning_rate", Shape{}, DType::f64, constant(0.1)}, {"gradients", shape, p.dtype, normal(1)}};
  item.outputs = {{"parameters", shape, p.dtype, normal(2)}};
  if (p.options.momentum > 0) {
    item.outputs.push_back({"velocity", shape, p.dtype, normal(3)});
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::sgd_update(context, p.options, p.segments, p.begin, in[0], out[0], in[1],
                    out.size() > 1 ? out[1] : TensorView());
  };
  const double element = static_cast<double>(size_of(p.dtype));
  item.bytes = static_cast<double>(p.count) * element * (p.options.momentum > 0 ? 5 : 3);
  item.tolerance = p.dtype == DType::f64 ? 1e-15 : 2e-7;
  return item;
}

/// Nothing, one, odd and prime counts, more than one thread's share; whole arenas and ranges that cut segments.
inline std::vector<SgdParams> sgd_params() {
  std::vector<SgdParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const ops::SgdOptions& options :
         {ops::SgdOptions{}, ops::SgdOptions{0.9, false}, ops::SgdOptions{0.9, true}}) {
      for (const std::int64_t count : {0, 1, 7, 101, 40009}) {
        all.push_back({count, dtype, options, {{0, count, 1, 0.0005, true}}, 0});
        all.push_back({count, dtype, options, mixed_segments(count + 60, 3), 29});
        all.push_back({count, dtype, options, {}, 5});
      }
      all.push_back({40009, dtype, options, many_segments(41000, 150), 501});
    }
  }
  return all;
}

inline std::vector<OpCase> sgd_cases() {
  std::vector<OpCase> items;
  for (const SgdParams& p : sgd_params()) {
    items.push_back(sgd_case(p));
  }
  return items;
}

inline std::vector<DeviceCase> sgd_device_cases() {
  std::vector<DeviceCase> items;
  for (const SgdParams& p : sgd_params()) {
    if (p.dtype == DType::f32) {
      const OpCase item = sgd_case(p);
      items.push_back({item, item, item.tolerance});
    }
  }
  return items;
}

}  // namespace lockstep::testing
