#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Ops for low-rank gradient compression (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithm 1). comm/gradients/sums
// combines these ops with matrix products. Tensors are contiguous, of one type: f32 or f64 on the host, f32 on a GPU.
// The ops are deterministic, with the same bits for any number of threads; no workspace.

/// The result of orthonormalise() for a column.
enum class Column : std::int32_t {
  dropped = 0,  ///< now all zeros: up to rounding, the column was a linear combination of the columns before it
  kept = 1,
  not_finite = 2,  ///< an element of x was NaN or infinite: now all elements of x are NaN, and all columns not_finite
};

/// Makes the columns of x (rows, r) orthogonal and of length 1, in place; rows and r are at least 1. The columns are
/// taken from the first to the last (Gram-Schmidt). From each column its components along the columns before it are
/// subtracted, twice because of rounding. Then the column is divided by its length. A column is dropped if at most
/// `epsilon` times its old length remains, because such a remainder is rounding error. `epsilon` is between 0 and 1
/// (else UsageError), for example the square root of the type's precision. `columns` (i32, r) receives one Column value
/// per column. Sums are in f64.
void orthonormalise(Context& context, double epsilon, const TensorView& x, const TensorView& columns);

/// Computes error (m, n) = x (m, n) - p (m, r) q (n, r)^T, where the r terms are subtracted in order from x. If the
/// first of `columns` (i32, r) is not_finite, error does not change. `error` shares memory with no other tensor.
void low_rank_residual(Context& context, const TensorView& x, const TensorView& p, const TensorView& q,
                       const TensorView& columns, const TensorView& error);

/// Copies to `to` (n, r) those columns of `from` (n, r) whose value in `columns` (i32, r) is Column::kept. The other
/// columns of `to` do not change.
void keep_columns(Context& context, const TensorView& from, const TensorView& columns, const TensorView& to);

namespace backend {  // the functions that low_rank.cpp calls after its checks
LOCKSTEP_BACKENDS(orthonormalise);
LOCKSTEP_BACKENDS(low_rank_residual);
LOCKSTEP_BACKENDS(keep_columns);
}  // namespace backend

}  // namespace lockstep::ops
