#pragma once

#include <lockstep/runtime/context.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep {

/// dst = src, elementwise. Shapes must be equal, strides may be anything on both sides, element types may differ
/// (floating to integer truncates toward zero; beyond the integer's range it gives the nearest integer of the type, and
/// NaN gives 0; integer to a smaller integer keeps the low bits). The only way across devices. Enqueued on the
/// context's stream; the context's device must be that of src or dst, and a copy that touches a CUDA device needs its
/// CudaContext. Between devices, and on one CUDA device, both views must be contiguous and of one type
/// (UnsupportedError otherwise; ops::strided_copy does the rest on one device, with kernels, which runtime/ has none
/// of). Host memory taking part in a CUDA copy must stay alive until the stream has passed the copy; pageable memory
/// makes the call block. Overlapping views are not allowed (ShapeError when both are contiguous and overlap), nor is a
/// dst that has stride 0 on an axis of more than one element (ShapeError).
void copy(Context& context, const TensorView& src, const TensorView& dst);

}  // namespace lockstep
