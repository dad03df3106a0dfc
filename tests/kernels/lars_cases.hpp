#pragma once

#include <vector>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/lars.hpp>

#include "tests/kernels/arena_support.hpp"

namespace lockstep::testing {

/// Makes a test case of lars_update(). The state is the velocity; without momentum there is no state.
inline OpCase lars_case(const ArenaParams& p, const ops::LarsOptions& options) {
  std::vector<TensorSpec> states;
  if (options.momentum > 0) {
    states.push_back({"velocity", {}, {}, normal(3)});
  }
  OpCase item =
      arena_case(concat("lars_update momentum ", options.momentum, options.nesterov ? " nesterov" : ""), p, states, {},
                 [=](Context& context, const ops::ArenaUpdate& update, Views own, Views, const TensorView& workspace) {
                   ops::lars_update(context, options, update, own.empty() ? TensorView() : own[0], workspace);
                 });
  item.workspace_bytes = [=](Context&) { return ops::lars_workspace_bytes(p.segments); };
  item.bytes +=
      static_cast<double>(p.count) * static_cast<double>(size_of(p.dtype) + size_of(p.gradients.value_or(p.dtype)));
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 3e-7;
  return item;
}

/// Makes lars_case() with the arena divided into ranges, as among ranks: the squares are computed range by range and
/// added, and then each range is updated. p.cuts may divide segments.
inline OpCase lars_divided_case(const ArenaParams& p, const ops::LarsOptions& options) {
  const std::int64_t rows = ops::lars_rows(p.segments);
  const std::size_t own = ops::lars_workspace_bytes(p.segments);
  const auto workspace_of = [=](const TensorView& all) { return all.slice(0, 0, static_cast<std::int64_t>(own)); };
  const auto squares_of = [=](const TensorView& all) {
    return TensorView(static_cast<std::byte*>(all.data) + own, DType::f64, all.device, {rows, 2});
  };
  OpCase item = lars_case(p, options);
  item.name = "divided " + item.name;
  const RunOp squares =
      arena_case("squares", p, {}, {},
                 [=](Context& context, const ops::ArenaUpdate& update, Views, Views, const TensorView& all) {
                   ops::ArenaUpdate range = update;
                   range.copy = {};
                   ops::lars_squares(context, range, squares_of(all), workspace_of(all));
                 })
          .run;
  std::vector<TensorSpec> states;
  if (options.momentum > 0) {
    states.push_back({"velocity", {}, {}, {}});
  }
  const RunOp update =
      arena_case("update", p, states, {},
                 [=](Context& context, const ops::ArenaUpdate& range, Views velocity, Views, const TensorView& all) {
                   ops::lars_update(context, options, range, velocity.empty() ? TensorView() : velocity[0],
                                    workspace_of(all), squares_of(all));
                 })
          .run;
  item.run = [=](Context& context, Views in, Views out, const TensorView& all) {
    if (rows > 0) {
      ops::fill(context, 0, squares_of(all));
    }
    squares(context, in, out, all);
    update(context, in, out, all);
  };
  item.workspace_bytes = [=](Context&) { return own + static_cast<std::size_t>(rows) * 2 * sizeof(double); };
  return item;
}

inline std::vector<ArenaParams> lars_divided_params() {
  std::vector<ArenaParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    ArenaParams p{25021, dtype, mixed_segments(25021, 3), 0, 0.25, 0};
    p.cuts = {128, 5003, 5004, 20013, 25021};
    all.push_back(p);
    p = {20011, dtype, many_segments(21000, 150), 501};
    p.cuts = {1, 9000, 9000, 20011};
    all.push_back(p);
    all.push_back({101, dtype, {}, 5});
  }
  ArenaParams half{8200, DType::f32, mixed_segments(8200, 3), 0, 0.5, 0, DType::bf16};
  half.cuts = {4096, 8200};
  all.push_back(half);
  return all;
}

inline std::vector<ops::LarsOptions> lars_options() {
  return {{.trust_coefficient = 0.5},
          {.momentum = 0.9, .trust_coefficient = 0.5, .epsilon = 0.1},
          {.momentum = 0.9, .nesterov = true, .trust_coefficient = 0.02}};
}

/// Returns parameters of test cases like arena_params(), but only with ranges that do not cut segments.
inline std::vector<ArenaParams> lars_params() {
  std::vector<ArenaParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t count : {0, 1, 7, 101, 20483}) {
      all.push_back({count, dtype, {{0, count, 1, 0.0005, true}}, 0});
    }
    all.push_back({25021, dtype, mixed_segments(25021, 3), 0, 0.25, 0});
    all.push_back({208, dtype, mixed_segments(260, 3), 52});  // range that begins with the second segment
    all.push_back({101, dtype, {}, 5});
    all.push_back({101, dtype, mixed_segments(101, 3), 0, -0.5, 3});
    all.push_back({20011, dtype, many_segments(20011, 150), 0});
  }
  for (const DType half : {DType::bf16, DType::f16}) {
    all.push_back({8200, DType::f32, mixed_segments(8200, 3), 0, 0.5, 0, half});
  }
  return all;
}

inline std::vector<ArenaParams> lars_params_with_copy() {
  std::vector<ArenaParams> all;
  for (const DType half : {DType::bf16, DType::f16}) {
    all.push_back({4099, DType::f32, mixed_segments(4099, 3), 0, {}, {}, {}, half});
    all.push_back({4099, DType::f32, mixed_segments(4099, 3), 0, 0.5, 0, half, half});
  }
  return all;
}

inline std::vector<DeviceCase> lars_device_cases() {
  std::vector<DeviceCase> items;
  for (const ops::LarsOptions& options : lars_options()) {
    append(items, arena_device_cases([=](const ArenaParams& p) { return lars_case(p, options); }, lars_params(),
                                     lars_params_with_copy(), 3e-7));
    append(items, arena_device_cases([=](const ArenaParams& p) { return lars_divided_case(p, options); },
                                     lars_divided_params(), {}, 3e-7));
  }
  return items;
}

}  // namespace lockstep::testing
