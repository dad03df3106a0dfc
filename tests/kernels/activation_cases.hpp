#pragma once

#include <vector>

#include <lockstep/kernels/activation.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline constexpr ops::Activation kActivations[] = {
    ops::Activation::gelu,    ops::Activation::gelu_tanh, ops::Activation::silu,    ops::Activation::tanh,
    ops::Activation::sigmoid, ops::Activation::relu,      ops::Activation::identity};

/// Makes a test case of the forward pass. Input: x; output: y. The in-place variant has no x, and y starts with the
/// values of x.
inline OpCase activation_forward_case(ops::Activation kind, const Shape& shape, DType dtype, bool in_place = false) {
  OpCase item;
  item.name = concat("activation_forward ", ops::name_of(kind), ' ', dtype, ' ', shape, in_place ? " in place" : "");
  item.dtype = dtype;
  if (!in_place) {
    item.inputs = {{"x", shape, dtype, normal(1, 2)}};
  }
  item.outputs = {{"y", shape, dtype, in_place ? normal(1, 2) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::activation_forward(context, kind, in_place ? out[0] : in[0], out[0]);
  };
  item.bytes = 2 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Makes a test case of the backward pass. Inputs: x, dy; output: dx. In the in-place variant dx starts with the values
/// of dy.
inline OpCase activation_backward_case(ops::Activation kind, const Shape& shape, DType dtype, bool in_place = false) {
  OpCase item;
  item.name = concat("activation_backward ", ops::name_of(kind), ' ', dtype, ' ', shape, in_place ? " in place" : "");
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, normal(1, 2)}};
  add_if(!in_place, item.inputs, {"dy", shape, dtype, normal(2)});
  item.outputs = {{"dx", shape, dtype, in_place ? normal(2) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::activation_backward(context, kind, in[0], in_place ? out[0] : in[1], out[0]);
  };
  item.bytes = 3 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Returns shapes: no element, one element, odd sizes, sizes near that of a warp, and more elements than one CPU thread
/// processes.
inline std::vector<Shape> activation_shapes() {
  return {Shape{}, Shape{1}, Shape{0, 3}, Shape{7}, Shape{31}, Shape{33}, Shape{3, 5, 17}, Shape{2, 10007}};
}

inline std::vector<DeviceCase> activation_device_cases() {
  std::vector<DeviceCase> items;
  for (const ops::Activation kind : kActivations) {
    for (const Shape& shape : activation_shapes()) {
      append(items, device_cases([&](DType dtype) { return activation_forward_case(kind, shape, dtype); }));
      append(items, device_cases([&](DType dtype) { return activation_backward_case(kind, shape, dtype); }));
    }
    append(items, device_cases([&](DType dtype) { return activation_forward_case(kind, {101}, dtype, true); }));
    append(items, device_cases([&](DType dtype) { return activation_backward_case(kind, {101}, dtype, true); }));
  }
  return items;
}

}  // namespace lockstep::testing
