#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/pool2d.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// x, dx: (N, H, W, C), y, dy: (N, P, Q, C), contiguous; f32, f64 or bf16 on the host, f32, bf16 or f16
// on a GPU, with sums in f32. Deterministic, no workspace.

/// y = largest x in the window. Padding never wins; the first of equal values in row-major order wins; a NaN wins.
/// index (i32, shape of y, optional in inference): h * W + w of the winner. No tensors overlap. ShapeError with an
/// index for images of 2^31 pixels or more.
void max_pool2d_forward(Context& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index);
/// dx = sum of dy over the windows that the element won, in row-major order. dx is overwritten and is not dy. Windows
/// may overlap; an index outside its window is ignored. ShapeError for images of 2^31 pixels or more.
void max_pool2d_backward(Context& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx);

namespace backend {  // called after the checks of max_pool2d.cpp
LOCKSTEP_BACKENDS(max_pool2d_forward);
LOCKSTEP_BACKENDS(max_pool2d_backward);
}  // namespace backend

}  // namespace lockstep::ops
