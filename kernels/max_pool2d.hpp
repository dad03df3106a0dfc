#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/pool2d.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// x and dx: (N, H, W, C), y and dy: (N, P, Q, C), contiguous; f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU,
// which sums in f32. The ops are deterministic and need no workspace.

/// Sets each element of y to the largest x in its window. Padding is never the largest. Of equal values the first in
/// row-major order counts as the largest, and NaN counts as larger than every number. `index` (i32, shape of y,
/// optional in inference) receives h * W + w of the largest x. No tensors may overlap. If `index` is given, throws
/// ShapeError for images of 2^31 pixels or more.
void max_pool2d_forward(Context& context, const PoolDesc& desc, const TensorView& x, const TensorView& y,
                        const TensorView& index);
/// Sets each element of dx to the sum of dy over the windows whose maximum is this element of x, as `index` says. The
/// windows are added in row-major order. dx is overwritten and must not be dy. Windows may overlap; an `index` that is
/// outside of its window is ignored. Throws ShapeError for images of 2^31 pixels or more.
void max_pool2d_backward(Context& context, const PoolDesc& desc, const TensorView& dy, const TensorView& index,
                         const TensorView& dx);

namespace backend {  // the functions that max_pool2d.cpp calls after its checks
LOCKSTEP_BACKENDS(max_pool2d_forward);
LOCKSTEP_BACKENDS(max_pool2d_backward);
}  // namespace backend

}  // namespace lockstep::ops
