#pragma once

#include <vector>

#include <lockstep/kernels/linear_epilogue.hpp>

#include "tests/kernels/activation_cases.hpp"
#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct LinearEpilogueParams {
  ops::Activation kind;
  Shape shape;
  DType dtype = DType::f32;
  bool bias = true;
  bool residual = true;                           ///< forward: adds a residual
  ops::GradMode mode = ops::GradMode::overwrite;  ///< backward: overwrite, accumulate or ignore dbias
  bool in_place = false;                          ///< y overwrites x; dx overwrites dy
};

inline std::string linear_epilogue_name(const char* direction, const LinearEpilogueParams& p) {
  return concat("linear_epilogue_", direction, ' ', ops::name_of(p.kind), ' ', p.dtype, ' ', p.shape,
                p.bias ? "" : " without bias", p.in_place ? " in place" : "");
}

/// Makes a test case of linear_epilogue_forward(). Inputs: x unless in_place, bias if p.bias, residual if p.residual;
/// output: y.
inline OpCase linear_epilogue_forward_case(const LinearEpilogueParams& p) {
  OpCase item;
  item.name = linear_epilogue_name("forward", p) + (p.residual ? " residual" : "");
  item.dtype = p.dtype;
  add_if(!p.in_place, item.inputs, {"x", p.shape, p.dtype, normal(1, 2)});
  add_if(p.bias, item.inputs, {"bias", Shape{p.shape.back()}, ops::accumulation_dtype(p.dtype), normal(2)});
  add_if(p.residual, item.inputs, {"residual", p.shape, p.dtype, normal(3)});
  item.outputs = {{"y", p.shape, p.dtype, p.in_place ? normal(1, 2) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    std::size_t next = 0;
    const TensorView x = p.in_place ? out[0] : in[next++];
    const TensorView bias = p.bias ? in[next++] : TensorView();
    ops::linear_epilogue_forward(context, p.kind, x, bias, p.residual ? in[next] : TensorView(), out[0]);
  };
  item.bytes = tensor_bytes(item) + (p.in_place ? TensorView(nullptr, p.dtype, Device::cpu(), p.shape).bytes() : 0);
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Makes a test case of linear_epilogue_backward(). Inputs: x, bias if p.bias, dy unless in_place; outputs: dx, and
/// dbias unless the mode is ignore.
inline OpCase linear_epilogue_backward_case(const LinearEpilogueParams& p) {
  const bool sums = p.mode != ops::GradMode::ignore;
  const bool add = p.mode == ops::GradMode::accumulate;
  const DType parameter = ops::accumulation_dtype(p.dtype);
  OpCase item;
  item.name = linear_epilogue_name("backward", p) + (add ? " accumulate" : "") + (sums ? "" : " ignore");
  item.dtype = p.dtype;
  item.inputs = {{"x", p.shape, p.dtype, normal(1, 2)}};
  add_if(p.bias, item.inputs, {"bias", Shape{p.shape.back()}, parameter, normal(2)});
  add_if(!p.in_place, item.inputs, {"dy", p.shape, p.dtype, normal(4)});
  item.outputs = {{"dx", p.shape, p.dtype, p.in_place ? normal(4) : Generator()}};
  if (sums) {
    item.outputs.push_back({"dbias", Shape{p.shape.back()}, parameter, add ? normal(5) : Generator()});
    item.workspace_bytes = workspace_for(ops::linear_epilogue_workspace_bytes, p.dtype, p.shape);
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::linear_epilogue_backward(context, p.kind, in[0], p.bias ? in[1] : TensorView(),
                                  p.in_place ? out[0] : in.back(), p.mode, out[0], sums ? out[1] : TensorView(),
                                  workspace);
  };
  item.bytes = tensor_bytes(item) + (p.in_place ? TensorView(nullptr, p.dtype, Device::cpu(), p.shape).bytes() : 0);
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 2e-6;
  return item;
}

/// Returns shapes: one element, one column, no rows, odd sizes, more 16-byte pieces than a grid has threads, numbers of
/// pieces near that of a warp, and more rows than a chunk.
inline std::vector<Shape> linear_epilogue_shapes() {
  return {Shape{1},      Shape{5, 1},   Shape{0, 5},    Shape{7},      Shape{2, 3, 31},
          Shape{67, 33}, Shape{3, 264}, Shape{3, 1104}, Shape{201, 40}};
}

/// Returns parameters of test cases: every activation, and for one activation every way to call the op on every shape.
inline std::vector<LinearEpilogueParams> linear_epilogue_params(DType dtype) {
  using ops::Activation;
  std::vector<LinearEpilogueParams> all;
  for (const Activation kind : kActivations) {
    all.push_back({kind, {5, 24}, dtype});
    all.push_back({kind, {5, 23}, dtype});
  }
  for (const Shape& shape : linear_epilogue_shapes()) {
    all.push_back({.kind = Activation::gelu_tanh, .shape = shape, .dtype = dtype, .mode = ops::GradMode::accumulate});
    all.push_back({.kind = Activation::identity, .shape = shape, .dtype = dtype, .residual = false});
  }
  for (const Shape& shape : {Shape{9, 33}, Shape{67, 40}}) {
    all.push_back({.kind = Activation::relu, .shape = shape, .dtype = dtype, .in_place = true});
    all.push_back({.kind = Activation::silu,
                   .shape = shape,
                   .dtype = dtype,
                   .bias = false,
                   .residual = false,
                   .mode = ops::GradMode::ignore});
  }
  return all;
}

inline std::vector<DeviceCase> linear_epilogue_device_cases() {
  return device_cases(linear_epilogue_params(DType::f32), linear_epilogue_forward_case, linear_epilogue_backward_case);
}

}  // namespace lockstep::testing
