#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Copies src to dst, elementwise, on one device. With views of suitable strides (TensorView::permute, slice) this op
/// does transpose, permute, slice, padding into a larger tensor, and cast. `src` and `dst` have one shape of rank up to
/// 8, and each has any of the eight element types. Strides may be negative, and in `src` also 0 (broadcast).
/// Conversions are those of runtime's copy(): floating to integer truncates toward zero and stops at the limits of the
/// type, NaN gives 0; integer to a smaller integer keeps the low bits; conversion to a floating type rounds to nearest
/// even (to bf16 and f16 by way of f32), NaN stays a NaN, of any bits. If src and dst have one type, all bits are kept.
///
/// Throws ShapeError in five cases: the shapes differ; dst has stride 0 on an axis of more than one element; memory is
/// missing; both views are contiguous and overlap; an address is not a multiple of the element size. The views must not
/// overlap in any case, but an overlap is only checked if both are contiguous. Deterministic, no workspace.
void strided_copy(Context& context, const TensorView& src, const TensorView& dst);

namespace backend {  // the functions that strided_copy.cpp calls after its checks
LOCKSTEP_BACKENDS(strided_copy);
}  // namespace backend

}  // namespace lockstep::ops
