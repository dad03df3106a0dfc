#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// The parameter-free shortcut of He et al. 2015 (option A): every stride-th pixel is kept, and new channels are zero. x
// and dx: (N, H, W, C), y and dy: (N, ceil(H / stride), ceil(W / stride), K), K >= C, contiguous; f32, f64 or bf16 on
// the host, f32, bf16 or f16 on a GPU. The C channels of x become the channels [(K - C) / 2, (K - C) / 2 + C) of y.
// Deterministic, no workspace.

/// Sets y[n, p, q, (K - C) / 2 + c] = x[n, p * stride, q * stride, c], and all other channels of y to 0.
void subsample_pad_forward(Context& context, std::int64_t stride, const TensorView& x, const TensorView& y);
/// Sets dx to the gradient of subsample_pad_forward, adds it to dx, or does nothing, as `mode` says. dx must not be dy.
void subsample_pad_backward(Context& context, std::int64_t stride, const TensorView& dy, GradMode mode,
                            const TensorView& dx);

namespace backend {  // the functions that subsample_pad.cpp calls after its checks
LOCKSTEP_BACKENDS(subsample_pad_forward);
LOCKSTEP_BACKENDS(subsample_pad_backward);
}  // namespace backend

}  // namespace lockstep::ops
