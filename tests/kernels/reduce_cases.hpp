#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <lockstep/kernels/reduce.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline OpCase reduce_rows_case(std::int64_t rows, std::int64_t columns, DType dtype,
                               ops::GradMode mode = ops::GradMode::overwrite) {
  const bool accumulate = mode == ops::GradMode::accumulate;
  return {.name = concat("reduce_rows ", dtype, ' ', Shape{rows, columns}, accumulate ? " accumulate" : ""),
          .dtype = dtype,
          .inputs = {{"x", Shape{rows, columns}, dtype, normal(1, 1, 0.25)}},
          .outputs = {{"sums", Shape{columns}, ops::accumulation_dtype(dtype), accumulate ? normal(2) : Generator{}}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView& workspace) { ops::reduce_rows(context, in[0], mode, out[0], workspace); },
          .workspace_bytes =
              [=](Context& context) {
                return ops::reduce_rows_workspace_bytes(
                    context, TensorView(nullptr, dtype, context.device(), Shape{rows, columns}));
              },
          .flops = static_cast<double>(rows * columns),
          .tolerance = dtype == DType::f64 ? 1e-14 : 1e-7};
}

/// Makes a test case of sum(), or of squared_norm() if `squares`.
inline OpCase sum_case(const Shape& shape, DType dtype, bool squares = false) {
  OpCase item;
  item.name = concat(squares ? "squared_norm " : "sum ", dtype, ' ', shape);
  item.dtype = dtype;
  item.inputs = {{"x", shape, dtype, normal(1, 1, squares ? 0 : 0.25)}};
  item.outputs = {{"result", Shape{}, DType::f64, {}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    (squares ? ops::squared_norm : ops::sum)(context, in[0], out[0], workspace);
  };
  item.workspace_bytes = [=](Context& context) {
    const TensorView x(nullptr, dtype, context.device(), shape);
    return squares ? ops::squared_norm_workspace_bytes(context, x) : ops::sum_workspace_bytes(context, x);
  };
  item.flops = (squares ? 2 : 1) * static_cast<double>(shape.numel());
  item.tolerance = squares ? 1e-14 : 1e-13;  // sum has more error, since terms of both signs cancel
  return item;
}

inline OpCase squared_norm_case(const Shape& shape, DType dtype) {
  return sum_case(shape, dtype, true);
}

/// Makes a test case of all_finite(). x is finite, except for `bad` at index `place` if place >= 0. The output `found`
/// starts with the value `before`.
inline OpCase all_finite_case(const Shape& shape, DType dtype, std::int64_t place = -1, double bad = 0,
                              int before = 0) {
  return {
      .name = concat("all_finite ", dtype, ' ', shape, place >= 0 ? concat(" but ", bad, " at ", place) : std::string(),
                     " found ", before),
      .dtype = dtype,
      .inputs = {{"x", shape, dtype,
                  [=](GuardedTensor& x) {
                    x.normal(1, 1000);
                    if (place >= 0) {
                      std::vector<double> list = x.values();
                      list[static_cast<std::size_t>(place)] = bad;
                      x.assign(list);
                    }
                  }}},
      .outputs = {{"found", Shape{}, DType::i32, constant(before)}},
      .run = [](Context& context, Views in, Views out, const TensorView&) { ops::all_finite(context, in[0], out[0]); }};
}

/// Returns shapes: no rows, one row, odd and prime sizes, more rows than a split or a chunk, and more columns than a
/// block or a pass handles.
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

/// Returns shapes: no element, fewer elements than a chunk, as many elements as a chunk, and more.
inline std::vector<Shape> sum_shapes() {
  return {Shape{0}, Shape{}, Shape{1}, Shape{3, 5}, Shape{16384}, Shape{16385}, Shape{7, 7001}, Shape{300007}};
}

inline std::vector<OpCase> sum_cases(bool squares) {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : sum_shapes()) {
      items.push_back(sum_case(shape, dtype, squares));
    }
  }
  return items;
}

/// Returns test cases: no element, one element, about as many as a vector holds, more than a block processes. Infinity,
/// -infinity or NaN is the first, the last or another element. The output `found` must keep its value if all elements
/// are finite.
inline std::vector<OpCase> all_finite_cases(const std::vector<DType>& dtypes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<OpCase> items;
  for (const DType dtype : dtypes) {
    for (const std::int64_t count : {0, 1, 7, 8, 9, 1031, 20011}) {
      items.push_back(all_finite_case(Shape{count}, dtype));
      items.push_back(all_finite_case(Shape{count}, dtype, -1, 0, 1));
      if (count > 0) {
        items.push_back(all_finite_case(Shape{count}, dtype, 0, kInfinity));
        items.push_back(all_finite_case(Shape{count}, dtype, count - 1, -kInfinity));
        items.push_back(all_finite_case(Shape{count}, dtype, count / 2, std::nan("")));
      }
    }
  }
  return items;
}

/// Returns the test cases for a GPU. The outputs are f32 or f64 for every input type, so no rounding is added to the
/// tolerance.
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
      continue;  // large shapes are skipped: smaller shapes already give each block several items
    }
    for (const ops::GradMode mode : {ops::GradMode::overwrite, ops::GradMode::accumulate}) {
      add([&](DType dtype) { return reduce_rows_case(shape[0], shape[1], dtype, mode); });
    }
  }
  for (const Shape& shape : sum_shapes()) {
    for (const bool squares : {false, true}) {
      add([&](DType dtype) { return sum_case(shape, dtype, squares); });
    }
  }
  for (const OpCase& item : all_finite_cases({DType::f32, DType::bf16, DType::f16})) {
    OpCase host = item;
    host.inputs[0].dtype = host.dtype = DType::f32;
    items.push_back({item, host, 0});
  }
  return items;
}

}  // namespace lockstep::testing
