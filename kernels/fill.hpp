#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Sets all elements of out to `value`, converted to the element type of out, which may be any type. For an integer
/// type, `value` is truncated toward zero. Throws UsageError if `value` is out of the type's range. out is contiguous,
/// has any shape, and may be empty. Memory traffic: writes out once. Deterministic. No workspace.
void fill(Context& context, double value, const TensorView& out);

namespace backend {  // the functions that fill.cpp calls after its checks
LOCKSTEP_BACKENDS(fill);
}  // namespace backend

}  // namespace lockstep::ops
