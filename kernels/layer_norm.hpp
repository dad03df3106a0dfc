#pragma once

#include <cstddef>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Layer normalisation (Ba, Kiros and Hinton, 2016) over the last axis: each row of C elements is normalised separately.
//
//   x, y, dy, dx:                 (..., C) contiguous, rank and C at least 1, M = numel / C rows; of one type: f32, f64
//                                 or bf16 on the host, f32, bf16 or f16 on a GPU
//   weight, bias, dweight, dbias: (C) contiguous, of x's type, f32 with the 16-bit types
//   mean, inv_std:                (M) contiguous, of the type of weight
//
// Sums over a row and over rows have a fixed order: the bits do not depend on the number of threads. On a GPU the bits
// depend on the shape, and on whether all tensors allow 16-byte accesses.

/// Computes y = (x - mean) * inv_std * weight + bias, with the mean of the row and inv_std = 1 / sqrt(variance +
/// epsilon). The variance is biased (divided by C) and computed from the deviations. `mean` and `inv_std` are outputs,
/// which layer_norm_backward() reads: both must be given, or neither. `epsilon` is above 0. `y` may be the tensor `x`.
void layer_norm_forward(Context& context, const TensorView& x, const TensorView& weight, const TensorView& bias,
                        double epsilon, const TensorView& y, const TensorView& mean, const TensorView& inv_std);

/// Returns the bytes of workspace (u8, contiguous, aligned to 64 bytes) that layer_norm_backward needs for x on this
/// device.
[[nodiscard]] std::size_t layer_norm_workspace_bytes(const Context& context, const TensorView& x);

/// Computes the gradients, with xhat = (x - mean) * inv_std and g = dy * weight:
///   dx      = inv_std * (g - (sum of g + xhat * sum of g * xhat) / C), with sums over the row; may be missing
///   dweight = sum over rows of dy * xhat, dbias = sum over rows of dy, set or added as mode says; both may be missing
///             with mode ignore
/// `dx` may be the tensor `dy`.
void layer_norm_backward(Context& context, const TensorView& dy, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& inv_std, GradMode mode, const TensorView& dx,
                         const TensorView& dweight, const TensorView& dbias, const TensorView& workspace);

namespace backend {  // the functions that layer_norm.cpp calls after its checks
LOCKSTEP_BACKENDS(layer_norm_workspace_bytes);
LOCKSTEP_BACKENDS(layer_norm_forward);
LOCKSTEP_BACKENDS(layer_norm_backward);
}  // namespace backend

}  // namespace lockstep::ops
