#pragma once

#include <vector>

#include <lockstep/kernels/layer_norm.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline constexpr double kLayerNormEpsilon = 1e-5;

inline Shape layer_norm_channels(const Shape& shape) {
  return Shape{shape.back()};
}
inline Shape layer_norm_rows(const Shape& shape) {
  return Shape{shape.numel() / shape.back()};
}

/// Makes a test case of layer_norm_forward(). Inputs: x, weight, bias; outputs: y; mean and inv_std unless inference.
inline OpCase layer_norm_forward_case(const Shape& shape, DType dtype, bool inference = false) {
  const DType statistics = ops::accumulation_dtype(dtype);
  OpCase item;
  item.name = concat("layer_norm_forward ", dtype, ' ', shape, inference ? " inference" : "");
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, normal(1, 2, 3)},
                 {"weight", layer_norm_channels(shape), statistics, normal(2, 1, 1)},
                 {"bias", layer_norm_channels(shape), statistics, normal(3)}};
  item.outputs = {{"y", shape, dtype, {}}};
  if (!inference) {
    item.outputs.push_back({"mean", layer_norm_rows(shape), statistics, {}});
    item.outputs.push_back({"inv_std", layer_norm_rows(shape), statistics, {}});
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::layer_norm_forward(context, in[0], in[1], in[2], kLayerNormEpsilon, out[0], inference ? TensorView() : out[1],
                            inference ? TensorView() : out[2]);
  };
  item.tolerance = dtype == DType::f64 ? 1e-13 : 3e-6;
  return item;
}

/// Makes a test case of layer_norm_backward(). Inputs: x, weight, mean, inv_std; dy unless in_place. Outputs: dx;
/// dweight and dbias unless `mode` ignores them. With in_place, dx starts with the values of dy. mean and inv_std are
/// random numbers, not statistics of x.
inline OpCase layer_norm_backward_case(const Shape& shape, DType dtype, ops::GradMode mode, bool in_place = false) {
  const DType statistics = ops::accumulation_dtype(dtype);
  const bool parameters = mode != ops::GradMode::ignore;
  const Generator before = mode == ops::GradMode::accumulate ? normal(6) : Generator();
  OpCase item;
  item.name = concat("layer_norm_backward ", dtype, ' ', shape, mode == ops::GradMode::accumulate ? " accumulate" : "",
                     parameters ? "" : " ignore", in_place ? " in place" : "");
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, normal(1, 2, 3)},
                 {"weight", layer_norm_channels(shape), statistics, normal(2, 1, 1)},
                 {"mean", layer_norm_rows(shape), statistics, normal(4, 0.1, 3)},
                 {"inv_std", layer_norm_rows(shape), statistics, uniform(5, 0.3, 1)}};
  add_if(!in_place, item.inputs, {"dy", shape, dtype, normal(7)});
  item.outputs = {{"dx", shape, dtype, in_place ? normal(7) : Generator()}};
  if (parameters) {
    item.outputs.push_back({"dweight", layer_norm_channels(shape), statistics, before});
    item.outputs.push_back({"dbias", layer_norm_channels(shape), statistics, before});
    item.workspace_bytes = workspace_for(ops::layer_norm_workspace_bytes, dtype, shape);
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::layer_norm_backward(context, in_place ? out[0] : in[4], in[0], in[1], in[2], in[3], mode, out[0],
                             parameters ? out[1] : TensorView(), parameters ? out[2] : TensorView(), workspace);
  };
  item.tolerance = dtype == DType::f64 ? 1e-12 : 5e-6;
  return item;
}

/// Returns shapes: one element, one channel, one row, no row, sizes near that of a warp, rows that need a whole block,
/// and more rows than a chunk.
inline std::vector<Shape> layer_norm_shapes() {
  return {Shape{1},     Shape{5, 1},    Shape{7},       Shape{0, 5},    Shape{3, 5, 31}, Shape{9, 33},
          Shape{4, 64}, Shape{70, 129}, Shape{3, 1025}, Shape{2, 2048}, Shape{259, 16},  Shape{200, 264}};
}

inline std::vector<DeviceCase> layer_norm_device_cases() {
  std::vector<DeviceCase> items;
  for (const Shape& shape : layer_norm_shapes()) {
    append(items, device_cases([&](DType dtype) { return layer_norm_forward_case(shape, dtype); }));
    append(items,
           device_cases([&](DType dtype) { return layer_norm_backward_case(shape, dtype, ops::GradMode::overwrite); }));
  }
  for (const Shape& shape : {Shape{9, 33}, Shape{67, 64}}) {
    append(items, device_cases([&](DType dtype) { return layer_norm_forward_case(shape, dtype, true); }));
    for (const ops::GradMode mode : {ops::GradMode::accumulate, ops::GradMode::ignore}) {
      append(items, device_cases([&](DType dtype) { return layer_norm_backward_case(shape, dtype, mode); }));
    }
    append(items, device_cases([&](DType dtype) {
             return layer_norm_backward_case(shape, dtype, ops::GradMode::overwrite, true);
           }));
  }
  return items;
}

}  // namespace lockstep::testing
