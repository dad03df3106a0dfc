#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Computes y = factor * x. x and y are contiguous and have one shape and type: f32, f64 or bf16 on the host, f32, bf16
/// or f16 on a GPU. factor is a scalar of that type (f32 with the 16-bit types), read when the op runs. y may be x, but
/// must not overlap factor. The product is rounded once, to the type of y. Deterministic, no workspace.
void scale(Context& context, const TensorView& factor, const TensorView& x, const TensorView& y);

namespace backend {  // the functions that scale.cpp calls after its checks
LOCKSTEP_BACKENDS(scale);
}  // namespace backend

}  // namespace lockstep::ops
