#pragma once

#include <vector>

#include <lockstep/kernels/add.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline OpCase add_case(const Shape& shape, DType dtype) {
  return {
      .name = concat("add ", dtype, ' ', shape),
      .dtype = dtype,
      .inputs = {{"a", shape, dtype, normal(1)}, {"b", shape, dtype, normal(2)}},
      .outputs = {{"out", shape, dtype, {}}},
      .run = [](Context& context, Views in, Views out, const TensorView&) { ops::add(context, in[0], in[1], out[0]); }};
}

/// Returns shapes: no element, one element, odd and prime sizes, and more elements than one CPU thread processes.
inline std::vector<Shape> add_shapes() {
  return {Shape{}, Shape{0}, Shape{1}, Shape{7, 3}, Shape{101}, Shape{131101}};
}

inline std::vector<OpCase> add_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : add_shapes()) {
      items.push_back(add_case(shape, dtype));
    }
  }
  return items;
}

inline std::vector<DeviceCase> add_device_cases() {
  return device_cases(add_shapes(), add_case);
}

}  // namespace lockstep::testing
