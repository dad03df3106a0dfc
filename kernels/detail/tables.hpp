#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <lockstep/kernels/operands.hpp>

/// Argument checks for tables. A table is a tensor of f64 on a device. It has stride 1 on the last axis and any strides
/// on the other axes, so that its rows may be views into larger tensors.
namespace lockstep::ops {

/// Checks that `table` is given, is f64, has the shape `shape`, and has stride 1 on its last axis.
inline void require_table(std::string_view op, const Operand& table, const Shape& shape) {
  const auto& [view, name] = table;
  require<ShapeError>(view.given(), op, ": ", name, " are not given, expected ", shape);
  require<DTypeError>(view.dtype == DType::f64, op, ": ", name, " are ", view.dtype, ", expected f64");
  require<ShapeError>(view.shape == shape, op, ": ", name, " are ", view.shape, ", expected ", shape);
  require<ShapeError>(view.numel() == 0 || view.strides.back() == 1, op, ": ", name, ' ', view.shape, " have strides ",
                      view.strides, ", expected stride 1 on the last axis");
}

/// Throws ShapeError if `out`, which is contiguous, shares a byte with the memory from the first to the last element of
/// `table`. This memory includes the bytes between the rows of the table.
inline void require_apart_from_table(std::string_view op, const Operand& out, const Operand& table) {
  const TensorView& view = table.view;
  if (!view.given() || view.numel() == 0) {
    return;
  }
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (int axis = 0; axis < view.shape.rank(); ++axis) {
    const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis];
    first += std::min<std::int64_t>(reach, 0);
    last += std::max<std::int64_t>(reach, 0);
  }
  auto* const begin = static_cast<double*>(view.data) + first;
  require_apart(op, out, {{TensorView(begin, DType::f64, view.device, Shape{last - first + 1}), table.name}});
}

}  // namespace lockstep::ops
