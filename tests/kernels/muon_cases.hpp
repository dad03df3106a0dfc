#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <lockstep/kernels/muon.hpp>

#include "tests/kernels/arena_support.hpp"

namespace lockstep::testing {

/// Makes a test case of muon_direction(). The states are the velocity, with values as after several steps, and the
/// output direction, which starts with random values.
inline OpCase muon_direction_case(const ArenaParams& p, const ops::MuonOptions& options) {
  OpCase item = arena_case(concat("muon_direction", options.nesterov ? " nesterov" : ""), p,
                           {{"velocity", {}, {}, normal(3, 0.5)}, {"direction", {}, {}, normal(4)}}, {},
                           [=](Context& context, const ops::ArenaUpdate& update, Views own, Views, const TensorView&) {
                             ops::muon_direction(context, options, update, own[0], own[1]);
                           });
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

inline std::vector<ops::MuonOptions> muon_options() {
  return {{}, {0.6, false}};
}

/// Makes a test case of muon_factor(). Input: squares; output: factors. The squares are 1/16, 1, 16 and 0 in turn. For
/// 0 the factor is 1 / epsilon.
inline OpCase muon_factor_case(std::int64_t n, DType dtype) {
  OpCase item;
  item.name = concat("muon_factor ", dtype, " of ", n);
  item.dtype = dtype;
  item.inputs = {{"squares", Shape{n}, DType::f64, [](GuardedTensor& tensor) {
                    std::vector<double> values;
                    for (std::int64_t i = 0; i < tensor.view().numel(); ++i) {
                      values.push_back(i % 4 == 3 ? 0 : std::pow(16, static_cast<double>(i % 4) - 1));
                    }
                    tensor.assign(values);
                  }}};
  item.outputs = {{"factors", Shape{n}, dtype, Generator()}};
  item.run = [](Context& context, Views in, Views out, const TensorView&) {
    ops::muon_factor(context, 0x1p-10, in[0], out[0]);
  };
  item.bytes = static_cast<double>(n) * static_cast<double>(8 + size_of(dtype));
  return item;  // tolerance 0: all factors are powers of two
}

/// Makes a test case of muon_polynomial(). Inputs: x, and y unless in_place; output: z, which starts with the values of
/// y if in_place. The numbers are small integers, which every type represents exactly.
inline OpCase muon_polynomial_case(std::int64_t batch, std::int64_t k, DType dtype, bool in_place = false) {
  const Shape shape{batch, k, k};
  OpCase item;
  item.name = concat("muon_polynomial ", dtype, ' ', shape, in_place ? " in place" : "");
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, integers(1, -9, 9)}};
  add_if(!in_place, item.inputs, {"y", shape, dtype, integers(2, -9, 9)});
  item.outputs = {{"z", shape, dtype, in_place ? integers(2, -9, 9) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::muon_polynomial(context, {3.5, -4, 2}, in[0], in_place ? out[0] : in[1], out[0]);
  };
  item.bytes = 3 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  return item;  // tolerance 0: all sums are exact
}

/// Returns (batch, side) of square matrices: no matrix, no row, one element, odd sides, sides of whole 16-byte pieces,
/// and more elements than one CPU thread processes.
inline std::vector<std::pair<std::int64_t, std::int64_t>> muon_matrices() {
  return {{0, 3}, {2, 0}, {1, 1}, {3, 1}, {1, 7}, {5, 3}, {2, 16}, {3, 33}, {1, 200}};
}

inline std::vector<DeviceCase> muon_device_cases() {
  std::vector<DeviceCase> items;
  for (const ops::MuonOptions& options : muon_options()) {
    append(items, arena_device_cases([=](const ArenaParams& p) { return muon_direction_case(p, options); },
                                     arena_params_and_clipped(), {}, 1e-6));
  }
  for (const std::int64_t n : {0, 1, 300}) {
    items.push_back({muon_factor_case(n, DType::f32), muon_factor_case(n, DType::f32), 0});
  }
  for (const auto& [batch, k] : muon_matrices()) {
    append(items,
           device_cases([&, batch = batch, k = k](DType dtype) { return muon_polynomial_case(batch, k, dtype); }));
  }
  append(items, device_cases([](DType dtype) { return muon_polynomial_case(2, 16, dtype, true); }));
  return items;
}

}  // namespace lockstep::testing
