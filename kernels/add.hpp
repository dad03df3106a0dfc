#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Computes out = a + b for each element. The tensors are contiguous and have one shape and one type: f32, f64 or bf16
/// on the host, f32, bf16 or f16 on a GPU. out may be a or b. The function is deterministic and needs no workspace.
void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& out);

namespace backend {  // the functions that add.cpp calls after its checks
LOCKSTEP_BACKENDS(add);
}  // namespace backend

}  // namespace lockstep::ops
