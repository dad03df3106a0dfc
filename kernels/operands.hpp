#pragma once

#include <initializer_list>
#include <string_view>

#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// A tensor argument of an op, with its name in the op's documentation.
struct Operand {
  const TensorView& view;
  std::string_view name;
};

/// Checks the operands of an elementwise op. All must be contiguous, and have the shape and type of the first operand;
/// their device must support this type.
inline void require_alike(std::string_view op, std::initializer_list<Operand> operands) {
  const auto& [first, first_name] = *operands.begin();
  require_compute_dtype(op, first_name, first);
  for (const auto& [view, name] : operands) {
    require<DTypeError>(view.dtype == first.dtype, op, ": ", name, " is ", view.dtype, ", expected ", first.dtype);
    require<ShapeError>(view.shape == first.shape, op, ": ", name, " is ", view.shape, ", expected ", first.shape);
    require<ShapeError>(view.is_contiguous(), op, ": ", name, " ", view.shape, " with strides ", view.strides,
                        " is not contiguous, expected a contiguous tensor");
  }
}

/// Checks that a tensor is (..., C): its rank is at least 1, and its rows have at least one element.
inline void require_rows(std::string_view op, const Operand& operand) {
  const Shape& shape = operand.view.shape;
  require<ShapeError>(shape.rank() >= 1 && shape.back() >= 1, op, ": ", operand.name, " is ", shape,
                      ", expected (..., C) with C at least 1");
}

/// Checks that a tensor is (N, H, W, C), contiguous, and of a type that its device supports.
inline void require_images(std::string_view op, const Operand& operand) {
  require_alike(op, {operand});
  require<ShapeError>(operand.view.shape.rank() == 4, op, ": ", operand.name, " is ", operand.view.shape,
                      ", expected (N, H, W, C)");
}

/// Checks that a tensor is given and has one element of type dtype; its rank may be any.
inline void require_scalar(std::string_view op, const Operand& operand, DType dtype) {
  const auto& [view, name] = operand;
  require<ShapeError>(view.given() && view.numel() == 1, op, ": ", name, " is ", view.shape, ", expected a scalar");
  require<DTypeError>(view.dtype == dtype, op, ": ", name, " is ", view.dtype, ", expected ", dtype);
}

/// Throws ShapeError when `out` overlaps `in`, but does not begin at the same address.
inline void require_same_or_apart(std::string_view op, const Operand& out, const Operand& in) {
  require<ShapeError>(out.view.data == in.view.data || !overlaps(out.view, in.view), op, ": ", out.name, " overlaps ",
                      in.name, ", expected the same memory or memory apart");
}

/// Checks that a tensor is given, is contiguous, and has type `dtype` and shape `shape`.
inline void require_tensor(std::string_view op, const Operand& operand, DType dtype, const Shape& shape) {
  const auto& [view, name] = operand;
  require<ShapeError>(view.given(), op, ": ", name, " is not given, expected ", shape);
  require<DTypeError>(view.dtype == dtype, op, ": ", name, " is ", view.dtype, ", expected ", dtype);
  require<ShapeError>(view.shape == shape, op, ": ", name, " is ", view.shape, ", expected ", shape);
  require<ShapeError>(view.is_contiguous(), op, ": ", name, " ", view.shape, " with strides ", view.strides,
                      " is not contiguous, expected a contiguous tensor");
}

/// These two functions call require_scalar() and require_tensor() unless the tensor is missing.
inline void require_scalar_if_given(std::string_view op, const Operand& operand, DType dtype) {
  if (operand.view.given()) {
    require_scalar(op, operand, dtype);
  }
}
inline void require_tensor_if_given(std::string_view op, const Operand& operand, DType dtype, const Shape& shape) {
  if (operand.view.given()) {
    require_tensor(op, operand, dtype, shape);
  }
}

/// Checks the weights of a loss, if they are given. They must be contiguous, of type dtype, and have either the shape
/// of the elements that the loss compares, (N, ...), or one number per sample, (N).
inline void require_weights(std::string_view op, const TensorView& weights, DType dtype, const Shape& elements) {
  require_tensor_if_given(op, {weights, "weights"}, dtype,
                          weights.shape.rank() == 1 && elements.rank() > 1 ? Shape{elements[0]} : elements);
}

/// Throws ShapeError when `out` shares memory with one of `others`. A view that is not given shares no memory.
inline void require_apart(std::string_view op, const Operand& out, std::initializer_list<Operand> others) {
  for (const Operand& other : others) {
    require<ShapeError>(!overlaps(out.view, other.view), op, ": ", out.name, " overlaps ", other.name,
                        ", expected memory of its own for each");
  }
}

}  // namespace lockstep::ops
