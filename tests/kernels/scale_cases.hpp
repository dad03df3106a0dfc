#pragma once

#include <vector>

#include <lockstep/kernels/scale.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Makes a test case of scale(). Inputs: factor, x; output: y. The in-place variant has no x, and y starts with the
/// values of x. x holds small integers, which every type represents exactly.
inline OpCase scale_case(const Shape& shape, DType dtype, bool in_place = false) {
  OpCase item;
  item.name = concat("scale ", dtype, ' ', shape, in_place ? " in place" : "");
  item.dtype = dtype;
  item.inputs = {{"factor", Shape{}, ops::accumulation_dtype(dtype), constant(-0.3)}};
  add_if(!in_place, item.inputs, {"x", shape, dtype, integers(1, -99, 99)});
  item.outputs = {{"y", shape, dtype, in_place ? integers(1, -99, 99) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::scale(context, in[0], in_place ? out[0] : in[1], out[0]);
  };
  item.bytes = 2 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  return item;  // tolerance 0: every backend rounds the exact product once
}

/// Returns shapes: no element, one element, odd sizes, sizes near that of a warp, more elements than one CPU thread
/// processes, and more than a grid processes at once.
inline std::vector<Shape> scale_shapes() {
  return {Shape{}, Shape{1}, Shape{0, 3}, Shape{7}, Shape{31}, Shape{33}, Shape{3, 5, 16}, Shape{2, 20011}};
}

inline std::vector<OpCase> scale_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : scale_shapes()) {
      for (const bool in_place : {false, true}) {
        items.push_back(scale_case(shape, dtype, in_place));
      }
    }
  }
  return items;
}

inline std::vector<DeviceCase> scale_device_cases() {
  std::vector<DeviceCase> items =
      device_cases(scale_shapes(), [](const Shape& shape, DType dtype) { return scale_case(shape, dtype); });
  append(items, device_cases([](DType dtype) { return scale_case({1, 101}, dtype, true); }));
  return items;
}

}  // namespace lockstep::testing
