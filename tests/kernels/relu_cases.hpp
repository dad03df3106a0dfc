#pragma once

#include <vector>

#include <lockstep/kernels/relu.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Makes a test case of relu_forward(). Input: x; output: y. The in-place variant has no x, and y starts with the
/// values of x.
inline OpCase relu_forward_case(const Shape& shape, DType dtype, bool in_place = false) {
  OpCase item;
  item.name = concat("relu_forward ", dtype, ' ', shape, in_place ? " in place" : "");
  item.dtype = dtype;
  if (!in_place) {
    item.inputs = {{"x", shape, dtype, normal(1)}};
  }
  item.outputs = {{"y", shape, dtype, in_place ? normal(1) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::relu_forward(context, in_place ? out[0] : in[0], out[0]);
  };
  item.bytes = 2 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  return item;
}

/// Makes a test case of relu_backward(). Inputs: y, dy; output: dx. In the in-place variant dx starts with the values
/// of dy. Some y are 0, as in the output of a ReLU.
inline OpCase relu_backward_case(const Shape& shape, DType dtype, bool in_place = false) {
  OpCase item;
  item.name = concat("relu_backward ", dtype, ' ', shape, in_place ? " in place" : "");
  item.dtype = dtype;
  item.inputs = {{"y", shape, dtype, integers(1, 0, 2)}};
  add_if(!in_place, item.inputs, {"dy", shape, dtype, normal(2)});
  item.outputs = {{"dx", shape, dtype, in_place ? normal(2) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::relu_backward(context, in[0], in_place ? out[0] : in[1], out[0]);
  };
  item.bytes = 3 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  return item;
}

inline std::vector<Shape> relu_shapes() {
  return {Shape{},   Shape{1},        Shape{0, 3},  Shape{7},       Shape{31},
          Shape{33}, Shape{3, 5, 17}, Shape{16384}, Shape{5, 10007}};
}

inline std::vector<OpCase> relu_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : relu_shapes()) {
      for (const bool in_place : {false, true}) {
        items.push_back(relu_forward_case(shape, dtype, in_place));
        items.push_back(relu_backward_case(shape, dtype, in_place));
      }
    }
  }
  return items;
}

inline std::vector<DeviceCase> relu_device_cases() {
  std::vector<DeviceCase> items;
  for (const Shape& shape : relu_shapes()) {
    for (const bool in_place : {false, true}) {
      append(items, device_cases([&](DType dtype) { return relu_forward_case(shape, dtype, in_place); }));
      append(items, device_cases([&](DType dtype) { return relu_backward_case(shape, dtype, in_place); }));
    }
  }
  return items;
}

}  // namespace lockstep::testing
