#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Computes y = y + weight * (x - y), for example to update a moving average y by a new value x. With weight 1, y
/// becomes x, whatever y was. torch.lerp uses this formula for a weight below 0.5 only; for larger weights it computes
/// x - (x - y) * (1 - weight), which rounds differently.
///
/// x and y are contiguous, have one shape and type, and share no memory: f32, f64 or bf16 on the host, f32, bf16 or f16
/// on a GPU. `weight` is passed from the host and must be in [0, 1] (otherwise UsageError). Computes in the tensors'
/// type (f32 for the 16-bit types). Reads x and y once, writes y once. No workspace. Deterministic: each element's bits
/// depend only on its x and y.
void lerp(Context& context, double weight, const TensorView& x, const TensorView& y);

namespace backend {  // the functions that lerp.cpp calls after its checks
LOCKSTEP_BACKENDS(lerp);
}  // namespace backend

}  // namespace lockstep::ops
