#pragma once

#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Types: x is f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU. Sums run in fixed chunks joined in order: the
// bits do not depend on the number of threads or multiprocessors. Workspaces are u8, aligned to 8; the function before
// each op returns their bytes, and they may be missing when that is 0.

/// sums (C) = or += sum over the rows of x (M, C): the gradient of a bias. Contiguous; sums are of the type of x, f32
/// with 16-bit types. Accumulated in f64 (on a GPU runs of 8 rows in f32). mode ignore is a UsageError.
[[nodiscard]] std::size_t reduce_rows_workspace_bytes(const Context& context, const TensorView& x);
void reduce_rows(Context& context, const TensorView& x, GradMode mode, const TensorView& sums,
                 const TensorView& workspace);

/// result (f64 scalar) = sum of x: contiguous, any shape, accumulated in f64.
[[nodiscard]] std::size_t sum_workspace_bytes(const Context& context, const TensorView& x);
void sum(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace);

/// result (f64 scalar) = sum of squares of x: contiguous, any shape, accumulated in f64.
[[nodiscard]] std::size_t squared_norm_workspace_bytes(const Context& context, const TensorView& x);
void squared_norm(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace);

/// found (i32 scalar) = 1 when an element of x (contiguous, any shape) is infinite or NaN; otherwise found does not
/// change, so that several tensors can share one.
void all_finite(Context& context, const TensorView& x, const TensorView& found);

namespace backend {                               // called after the checks of reduce.cpp
inline constexpr std::int64_t kSumChunk = 16384;  // elements per partial sum; a partial sum is an f64 in the workspace
inline constexpr std::int64_t kReduceRowsChunk = 256;  // rows per row of partial sums (f64) on a GPU
LOCKSTEP_BACKENDS(reduce_rows);
LOCKSTEP_BACKENDS(sum);
LOCKSTEP_BACKENDS(squared_norm);
LOCKSTEP_BACKENDS(all_finite);
}  // namespace backend

}  // namespace lockstep::ops
