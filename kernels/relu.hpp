#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Types are f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU.

/// Computes y = max(x, 0). NaN stays NaN. x and y are contiguous and have one shape and type; y may be x.
/// Deterministic, no workspace.
void relu_forward(Context& context, const TensorView& x, const TensorView& y);

/// Computes dx = dy if y > 0, otherwise 0; y is the output of relu_forward(). y, dy and dx are contiguous and have one
/// shape and type; dx may be dy.
void relu_backward(Context& context, const TensorView& y, const TensorView& dy, const TensorView& dx);

namespace backend {  // the functions that relu.cpp calls after its checks
LOCKSTEP_BACKENDS(relu_forward);
LOCKSTEP_BACKENDS(relu_backward);
}  // namespace backend

}  // namespace lockstep::ops
