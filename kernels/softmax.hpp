#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Says which columns a row of x sees. With `none`, a row sees all columns. With `causal`, x is (..., T, K) with K at
/// least T, and row t of the T rows sees columns 0 .. t + (K - T). So if the rows are queries at the last T of K
/// positions, a query sees its own position and all positions before it. This is the mask of decoders (Vaswani et al.
/// 2017, section 3.2.3).
enum class SoftmaxMask : std::uint8_t { none, causal };

// Softmax over the last axis, row by row. x, y, dy, dx: (..., K) contiguous, rank at least 1 (2 with causal), of one
// shape and type: f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU. Sums over a row have a fixed order: the bits
// do not depend on the number of threads. On a GPU the bits depend on the shape and on whether all tensors allow
// 16-byte accesses. No workspace. Throws UsageError for a scale that is infinite, NaN, 0 or subnormal in the type of
// the tensors (in f32 for 16-bit types).

/// Computes y = exp(v - max v) / sum of exp(v - max v) with v = scale * x, over the columns that the row sees. y is 0
/// in the other columns, whose x may be anything. A finite x never gives an infinite v, however large scale * x is.
/// Where v is -inf in a row with finite numbers, y is 0. A row that sees a NaN, a v of +inf, or only -inf becomes NaN
/// in all columns that it sees. y may be x.
void softmax_forward(Context& context, const TensorView& x, double scale, SoftmaxMask mask, const TensorView& y);

/// Computes dx = scale * y * (dy - sum over the row of dy * y). Where y is 0 (masked, or too small), dx is 0, and dy
/// may be anything, even NaN. dx may be dy or y.
void softmax_backward(Context& context, const TensorView& y, const TensorView& dy, double scale, const TensorView& dx);

namespace backend {  // the functions that softmax.cpp calls after its checks
LOCKSTEP_BACKENDS(softmax_forward);
LOCKSTEP_BACKENDS(softmax_backward);
}  // namespace backend

}  // namespace lockstep::ops
