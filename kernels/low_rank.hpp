#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// The parts of low-rank gradient compression (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithm 1;
// comm/gradients/sums) that are not matrix products. Tensors are contiguous, of one type: f32 or f64 on the host, f32
// on a GPU. The ops are deterministic, with the same bits for any number of threads; no workspace.

/// What orthonormalise() did with a column.
enum class Column : std::int32_t {
  dropped = 0,  ///< the column depended linearly on the columns before that column, up to rounding, and was set to 0
  kept = 1,
  not_finite = 2,  ///< an element of x was NaN or infinite: now all of x is NaN, and all columns are not_finite
};

/// Makes the columns of x (rows, r), rows and r at least 1, orthogonal and of length 1, in place. From each column its
/// components along the columns before it are subtracted, twice (Gram-Schmidt); then it is divided by its length. A
/// column is dropped if at most `epsilon` times its length remains, as this rest is rounding. 0 < epsilon < 1 (else
/// UsageError), for example the square root of the precision of the type. columns (i32, r) receives a Column for each.
/// Sums are in f64.
void orthonormalise(Context& context, double epsilon, const TensorView& x, const TensorView& columns);

/// Computes error (m, n) = x (m, n) - p (m, r) q (n, r)^T, where the r terms are subtracted in order from x. If columns
/// (i32, r) are not_finite, error does not change. error shares memory with no other tensor.
void low_rank_residual(Context& context, const TensorView& x, const TensorView& p, const TensorView& q,
                       const TensorView& columns, const TensorView& error);

/// Copies the columns of `from` (n, r) that are `kept` to `to` (n, r); the other columns of `to` do not change.
void keep_columns(Context& context, const TensorView& from, const TensorView& columns, const TensorView& to);

namespace backend {  // the functions that low_rank.cpp calls after its checks
LOCKSTEP_BACKENDS(orthonormalise);
LOCKSTEP_BACKENDS(low_rank_residual);
LOCKSTEP_BACKENDS(keep_columns);
}  // namespace backend

}  // namespace lockstep::ops
