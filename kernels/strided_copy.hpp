#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Copies src to dst, elementwise, on one device. With views of suitable strides (TensorView::permute, slice) this op
/// does transpose, permute, slice, padding into a larger tensor, and cast. `src` and `dst` have one shape of rank up to
/// 8, and each has any of the eight element types. Strides may be negative, and in `src` also 0 (broadcast). If src and
/// dst have one type, all bits are kept. Conversions are those of runtime's copy():
///   floating point to integer:   truncates toward zero; out of range: nearest limit of the type; NaN: 0
///   integer to smaller integer:  keeps the low bits
///   to floating point:           rounds to nearest even (to bf16 and f16 by way of f32); NaN stays a NaN, of any bits
///
/// The views must not overlap; an overlap is detected only if both views are contiguous. Throws ShapeError in five
/// cases: the shapes differ; dst has stride 0 on an axis of more than one element; memory is missing; both views are
/// contiguous and overlap; an address is not a multiple of the element size. Deterministic, no workspace.
void strided_copy(Context& context, const TensorView& src, const TensorView& dst);

namespace backend {  // the functions that strided_copy.cpp calls after its checks
LOCKSTEP_BACKENDS(strided_copy);
}  // namespace backend

}  // namespace lockstep::ops
