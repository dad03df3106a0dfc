#pragma once

#include <cstddef>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Adds bias, activation and residual to the product of a linear layer, in one pass over memory.
//
//   x, residual, y, dy, dx: (..., N) contiguous, rank and N at least 1; one shape and type: f32, f64 or bf16 on the
//                           host, f32, bf16 or f16 on a GPU, computed in f32 there
//   bias, dbias:            (N) contiguous, of x's type, f32 with the 16-bit types
//
// Sums have a fixed order: the bits do not depend on the number of threads. On a GPU the bits of dbias depend on the
// shape, and on whether all tensors allow 16-byte accesses.

/// Computes y = kind(x + bias) + residual. `bias` and `residual` are optional. `y` may be the tensor `x` or `residual`.
void linear_epilogue_forward(Context& context, Activation kind, const TensorView& x, const TensorView& bias,
                             const TensorView& residual, const TensorView& y);

/// Returns the bytes of workspace (u8, contiguous, aligned to 64 bytes) that linear_epilogue_backward needs on this
/// device for tensors of the shape and type of x. With mode ignore, no workspace is needed.
[[nodiscard]] std::size_t linear_epilogue_workspace_bytes(const Context& context, const TensorView& x);

/// Computes the gradients; x and bias are the inputs of forward:
///   dx    = dy * kind'(x + bias); may be missing
///   dbias = sum over the rows of the unrounded dx; set or added as mode says; may be missing if mode is ignore
/// The gradient of the residual is dy itself. If kind is identity, x and bias are not read, and x may be missing. `dx`
/// may be the tensor `dy` or `x`.
void linear_epilogue_backward(Context& context, Activation kind, const TensorView& x, const TensorView& bias,
                              const TensorView& dy, GradMode mode, const TensorView& dx, const TensorView& dbias,
                              const TensorView& workspace);

namespace backend {  // the functions that linear_epilogue.cpp calls after its checks
LOCKSTEP_BACKENDS(linear_epilogue_forward);
LOCKSTEP_BACKENDS(linear_epilogue_workspace_bytes);
LOCKSTEP_BACKENDS(linear_epilogue_backward);
}  // namespace backend

}  // namespace lockstep::ops
