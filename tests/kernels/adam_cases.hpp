#pragma once

#include <vector>

#include <lockstep/kernels/adam.hpp>

#include "tests/kernels/arena_support.hpp"

namespace lockstep::testing {

/// Makes a test case of adam_update(). The states are the two moments, with values as after several steps. The fifth
/// input is the step number.
inline OpCase adam_case(const ArenaParams& p, const ops::AdamOptions& options, std::int64_t step = 3) {
  OpCase item =
      arena_case(concat("adam_update", options.decoupled ? " decoupled" : "", " step ", step), p,
                 {{"first_moment", {}, {}, normal(3, 0.5)}, {"second_moment", {}, {}, uniform(4, 0, 2)}},
                 {{"step", Shape{}, DType::i64, constant(static_cast<double>(step))}},
                 [=](Context& context, const ops::ArenaUpdate& update, Views own, Views more, const TensorView&) {
                   ops::adam_update(context, options, update, more[0], own[0], own[1]);
                 });
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

inline std::vector<ops::AdamOptions> adam_options() {
  return {{}, {0.8, 0.9, 1e-3, true}};
}

inline std::vector<DeviceCase> adam_device_cases() {
  std::vector<DeviceCase> items;
  for (const ops::AdamOptions& options : adam_options()) {
    append(items, arena_device_cases([=](const ArenaParams& p) { return adam_case(p, options); }, 1e-6));
  }
  for (const std::int64_t step : {0, 1, 100'000}) {
    const OpCase item = adam_case({101, DType::f32, mixed_segments(101, 3)}, {}, step);
    items.push_back({item, item, 1e-6});
  }
  return items;
}

}  // namespace lockstep::testing
