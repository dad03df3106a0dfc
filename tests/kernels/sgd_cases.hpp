#pragma once

#include <vector>

#include <lockstep/kernels/sgd.hpp>

#include "tests/kernels/arena_support.hpp"

namespace lockstep::testing {

/// Makes a test case of sgd_update(). The state is the velocity; without momentum there is no state.
inline OpCase sgd_case(const ArenaParams& p, const ops::SgdOptions& options) {
  std::vector<TensorSpec> states;
  if (options.momentum > 0) {
    states.push_back({"velocity", {}, {}, normal(3)});
  }
  return arena_case(concat("sgd_update momentum ", options.momentum, options.nesterov ? " nesterov" : ""), p, states,
                    {}, [=](Context& context, const ops::ArenaUpdate& update, Views own, Views, const TensorView&) {
                      ops::sgd_update(context, options, update, own.empty() ? TensorView() : own[0]);
                    });
}

inline std::vector<ops::SgdOptions> sgd_options() {
  return {{}, {0.9, false}, {0.9, true}};
}

inline std::vector<DeviceCase> sgd_device_cases() {
  std::vector<DeviceCase> items;
  for (const ops::SgdOptions& options : sgd_options()) {
    append(items, arena_device_cases([=](const ArenaParams& p) { return sgd_case(p, options); }, 2e-7));
  }
  return items;
}

}  // namespace lockstep::testing
