#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// out[i] = value, converted to the element type of out: any type; integers truncate toward zero, and a value that does
/// not fit is a UsageError. out: contiguous, any shape, may be empty. Bytes: writes out once. Deterministic. No
/// workspace.
void fill(Context& context, double value, const TensorView& out);

namespace backend {  // called after the checks of fill.cpp
LOCKSTEP_BACKENDS(fill);
}  // namespace backend

}  // namespace lockstep::ops
