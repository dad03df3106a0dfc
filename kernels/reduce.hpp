#pragma once

#include <cstddef>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep::ops {

// Sums in fixed chunks joined in order: the bits do not depend on the number of threads.

/// sums (C) = or += sum over the rows of x (M, C): the gradient of a bias. Contiguous, one type, f32 or f64.
void reduce_rows(Context& context, const TensorView& x, GradMode mode, const TensorView& sums);

/// result (f64 scalar) = sum of squares of x: contiguous, any shape, f32 or f64, accumulated in f64.
/// `workspace`: squared_norm_workspace_bytes(x).
[[nodiscard]] std::size_t squared_norm_workspace_bytes(const Context& context, const TensorView& x);
void squared_norm(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace);

namespace backend {  // called after the checks of reduce.cpp
void reduce_rows(CpuContext&, const TensorView& x, GradMode mode, const TensorView& sums);
void squared_norm(CpuContext&, const TensorView& x, const TensorView& result, const TensorView& workspace);
}  // namespace backend

}  // namespace lockstep::ops
