#pragma once

#include <vector>

#include <lockstep/kernels/lerp.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Makes a test case of lerp(). Input: x; output: y, which starts as a random average and is updated in place.
inline OpCase lerp_case(const Shape& shape, DType dtype, double weight = 0.25) {
  return {.name = concat("lerp ", dtype, ' ', shape, " weight ", weight),
          .dtype = dtype,
          .inputs = {{"x", shape, dtype, integers(1, -99, 99)}},
          .outputs = {{"y", shape, dtype, integers(2, -99, 99)}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::lerp(context, weight, in[0], out[0]); },
          .bytes = 3 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype)),
          .tolerance = dtype == DType::f64 ? 1e-14 : 1e-6};
}

/// Returns shapes: no element, one element, odd sizes, sizes near that of a warp, more elements than one CPU thread
/// processes, and more than a grid processes at once.
inline std::vector<Shape> lerp_shapes() {
  return {Shape{}, Shape{1}, Shape{0, 3}, Shape{7}, Shape{31}, Shape{33}, Shape{3, 5, 16}, Shape{2, 20011}};
}

inline std::vector<OpCase> lerp_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : lerp_shapes()) {
      items.push_back(lerp_case(shape, dtype));
    }
    for (const double weight : {0.0, 1e-4, 0.7, 1.0}) {
      items.push_back(lerp_case({101}, dtype, weight));
    }
  }
  return items;
}

inline std::vector<DeviceCase> lerp_device_cases() {
  std::vector<DeviceCase> items =
      device_cases(lerp_shapes(), [](const Shape& shape, DType dtype) { return lerp_case(shape, dtype); });
  append(items, device_cases([](DType dtype) { return lerp_case({1, 101}, dtype, 0.0625); }));
  return items;
}

}  // namespace lockstep::testing
