#pragma once

#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep::ops {

// Sums in fixed chunks joined in order: the bits do not depend on the number of threads.

/// sums (C) = or += sum over the rows of x (M, C), accumulated in f64: the gradient of a bias. Contiguous, one type,
/// f32 or f64. mode ignore is a UsageError. No workspace.
void reduce_rows(Context& context, const TensorView& x, GradMode mode, const TensorView& sums);

/// result (f64 scalar) = sum of squares of x: contiguous, any shape, f32 or f64, accumulated in f64.
/// `workspace`: u8, at least squared_norm_workspace_bytes(context, x) bytes, aligned to 8.
[[nodiscard]] std::size_t squared_norm_workspace_bytes(const Context& context, const TensorView& x);
void squared_norm(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace);

namespace backend {                                       // called after the checks of reduce.cpp
inline constexpr std::int64_t kSquaredNormChunk = 16384;  // elements behind one partial sum, an f64 in the workspace
void reduce_rows(CpuContext&, const TensorView& x, GradMode mode, const TensorView& sums);
void squared_norm(CpuContext&, const TensorView& x, const TensorView& result, const TensorView& workspace);
}  // namespace backend

}  // namespace lockstep::ops
