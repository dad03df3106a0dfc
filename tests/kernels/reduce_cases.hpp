#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/reduce.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline OpCase reduce_rows_case(std::int64_t rows, std::int64_t columns, DType dtype,
                               ops::GradMode mode = ops::GradMode::overwrite) {
  const bool accumulate = mode == ops::GradMode::accumulate;
  OpCase item;
  item.name = concat("reduce_rows ", dtype, ' ', Shape{rows, columns}, accumulate ? " accumulate" : "");
  item.dtype = dtype;
  item.inputs = {{"x", Shape{rows, columns}, dtype, normal(1, 1, 0.25)}};
  item.outputs = {{"sums", Shape{columns}, ops::accumulation_dtype(dtype), accumulate ? normal(2) : Generator{}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::reduce_rows(context, in[0], mode, out[0], workspace);
  };
  item.workspace_bytes = [=](Context& context) {
    return ops::reduce_rows_workspace_bytes(context,
                                            TensorView(nullptr, dtype, context.device(), Shape{rows, columns}));
  };
  item.bytes = tensor_bytes(item);
  item.flops = static_cast<double>(rows * columns);
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-7;
  return item;
}

inline OpCase squared_norm_case(const Shape& shape, DType dtype) {
  OpCase item;
  item.name = concat("squared_norm ", dtype, ' ', shape);
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, normal(1)}};
  item.outputs = {{"result", Shape{}, DType::f64, {}}};
  item.run = [](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::squared_norm(context, in[0], out[0], workspace);
  };
  item.workspace_bytes = [=](Context& context) {
    return ops::squared_norm_workspace_bytes(context, TensorView(nullptr, dtype, context.device(), shape));
  };
  item.bytes = tensor_bytes(item);
  item.flops = 2 * static_cast<double>(shape.numel());
  item.tolerance = 1e-14;
  return item;
}

/// No rows, one, odd and prime sizes, more rows than a split or chunk, more columns than a block and than a pass.
inline std::vector<Shape> reduce_rows_shapes() {
  return {Shape{0, 5},      Shape{1, 1},     Shape{4, 0},     Shape{7, 3},    Shape{13, 64},
          Shape{31, 67},    Shape{256, 9},   Shape{257, 32},  Shape{5, 4211}, Shape{1024, 1},
          Shape{1537, 129}, Shape{20011, 5}, Shape{8209, 300}};
}

inline std::vector<OpCase> reduce_rows_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const ops::GradMode mode : {ops::GradMode::overwrite, ops::GradMode::accumulate}) {
      for (const Shape& shape : reduce_rows_shapes()) {
        items.push_back(reduce_rows_case(shape[0], shape[1], dtype, mode));
      }
    }
  }
  return items;
}

/// Empty, below, at and beyond a chunk.
inline std::vector<Shape> squared_norm_shapes() {
  return {Shape{0}, Shape{}, Shape{1}, Shape{3, 5}, Shape{16384}, Shape{16385}, Shape{7, 7001}, Shape{300007}};
}

inline std::vector<OpCase> squared_norm_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : squared_norm_shapes()) {
      items.push_back(squared_norm_case(shape, dtype));
    }
  }
  return items;
}

inline std::vector<OpCase> reduce_cases() {
  std::vector<OpCase> items = reduce_rows_cases();
  for (OpCase& item : squared_norm_cases()) {
    items.push_back(std::move(item));
  }
  return items;
}

/// Outputs are f32 and f64 in all types, so that no rounding comes on top.
inline std::vector<DeviceCase> reduce_device_cases() {
  std::vector<DeviceCase> items;
  const auto add = [&](const auto& make) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const OpCase host = make(DType::f32);
      items.push_back({make(dtype), host, host.tolerance});
    }
  };
  for (const Shape& shape : reduce_rows_shapes()) {
    if (shape.numel() > 1000000) {
      continue;  // the others have several items a block already
    }
    for (const ops::GradMode mode : {ops::GradMode::overwrite, ops::GradMode::accumulate}) {
      add([&](DType dtype) { return reduce_rows_case(shape[0], shape[1], dtype, mode); });
    }
  }
  for (const Shape& shape : squared_norm_shapes()) {
    add([&](DType dtype) { return squared_norm_case(shape, dtype); });
  }
  return items;
}

}  // namespace lockstep::testing
