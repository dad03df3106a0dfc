#pragma once

#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Types: x is f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU. Sums run in fixed chunks, which are joined in
// order: the bits do not depend on the number of threads or multiprocessors. Workspaces are u8, aligned to 8. For an op
// X with a workspace, X_workspace_bytes() returns the size in bytes; a workspace of 0 bytes may be missing.

/// Sets `sums` (C) to the sum of the rows of x (M, C), or adds the sum to `sums`, as `mode` says. One use is the
/// gradient of a bias. x and sums are contiguous. sums has the type of x, f32 for 16-bit x. Accumulates in f64 (on a
/// GPU in f32 within runs of 8 rows). Throws UsageError for mode ignore.
[[nodiscard]] std::size_t reduce_rows_workspace_bytes(const Context& context, const TensorView& x);
void reduce_rows(Context& context, const TensorView& x, GradMode mode, const TensorView& sums,
                 const TensorView& workspace);

/// Sets `result` (f64 scalar) to the sum of the elements of x (contiguous, any shape), accumulated in f64.
[[nodiscard]] std::size_t sum_workspace_bytes(const Context& context, const TensorView& x);
void sum(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace);

/// Sets `result` (f64 scalar) to the sum of squares of the elements of x (contiguous, any shape), accumulated in f64.
[[nodiscard]] std::size_t squared_norm_workspace_bytes(const Context& context, const TensorView& x);
void squared_norm(Context& context, const TensorView& x, const TensorView& result, const TensorView& workspace);

/// Sets found (i32 scalar) to 1 if an element of x (contiguous, any shape) is infinite or NaN. Otherwise found does not
/// change, so that one `found` can serve several tensors.
void all_finite(Context& context, const TensorView& x, const TensorView& found);

namespace backend {                                    // the functions that reduce.cpp calls after its checks
inline constexpr std::int64_t kSumChunk = 16384;       // number of elements per f64 partial sum
inline constexpr std::int64_t kReduceRowsChunk = 256;  // number of rows of x per f64 partial sum of a column, on a GPU
LOCKSTEP_BACKENDS(reduce_rows);
LOCKSTEP_BACKENDS(sum);
LOCKSTEP_BACKENDS(squared_norm);
LOCKSTEP_BACKENDS(all_finite);
}  // namespace backend

}  // namespace lockstep::ops
