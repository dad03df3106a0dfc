#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/pool2d.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The number by which the sum over a window is divided. `window`: the number of all elements of the window, where
/// padding counts as zeros. `inside`: the number of the window's elements that are inside the image.
enum class AverageOver { window, inside };

// x and dx: (N, H, W, C), contiguous; f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU, which sums in f32. No
// two tensors share memory. The ops are deterministic and need no workspace.

/// Sets y (N, P, Q, C) to the mean of x over each window; sums run in row-major order.
void average_pool2d_forward(Context& context, const PoolDesc& desc, AverageOver over, const TensorView& x,
                            const TensorView& y);
/// Sets each element of dx to the sum of dy (N, P, Q, C) over the windows that cover the element, in row-major order.
/// Each element of dy is divided as in the forward pass. Windows may overlap; outside all windows dx gets zero.
void average_pool2d_backward(Context& context, const PoolDesc& desc, AverageOver over, const TensorView& dy,
                             const TensorView& dx);

/// Sets y (N, C) to the mean over H and W of x (N, H, W, C). Throws ShapeError for images without a pixel.
void global_average_pool_forward(Context& context, const TensorView& x, const TensorView& y);
/// Sets dx[n, h, w, c] = dy[n, c] / (H * W).
void global_average_pool_backward(Context& context, const TensorView& dy, const TensorView& dx);

namespace backend {  // the functions that average_pool2d.cpp calls after its checks
LOCKSTEP_BACKENDS(average_pool2d_forward);
LOCKSTEP_BACKENDS(average_pool2d_backward);
LOCKSTEP_BACKENDS(global_average_pool_forward);
LOCKSTEP_BACKENDS(global_average_pool_backward);
}  // namespace backend

}  // namespace lockstep::ops
