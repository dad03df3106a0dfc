#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/pool2d.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The elements by whose number a window's sum is divided: all of the window (padding counts as zeros), or only those
/// inside the image.
enum class AverageOver { window, inside };

// x, dx: (N, H, W, C), contiguous; f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU, with sums in f32. Nothing
// aliases. Deterministic, no workspace.

/// y (N, P, Q, C) = mean of x over each window; sums in row-major order.
void average_pool2d_forward(Context& context, const PoolDesc& desc, AverageOver over, const TensorView& x,
                            const TensorView& y);
/// dx = sum of dy (N, P, Q, C) over the windows that cover the element, in row-major order, each divided as in the
/// forward pass. dx is overwritten. Windows may overlap; an element that no window covers gets zero.
void average_pool2d_backward(Context& context, const PoolDesc& desc, AverageOver over, const TensorView& dy,
                             const TensorView& dx);

/// y (N, C) = mean over H and W of x (N, H, W, C). ShapeError for images without a pixel.
void global_average_pool_forward(Context& context, const TensorView& x, const TensorView& y);
/// dx[n, h, w, c] = dy[n, c] / (H * W).
void global_average_pool_backward(Context& context, const TensorView& dy, const TensorView& dx);

namespace backend {  // called after the checks of average_pool2d.cpp
LOCKSTEP_BACKENDS(average_pool2d_forward);
LOCKSTEP_BACKENDS(average_pool2d_backward);
LOCKSTEP_BACKENDS(global_average_pool_forward);
LOCKSTEP_BACKENDS(global_average_pool_backward);
}  // namespace backend

}  // namespace lockstep::ops
