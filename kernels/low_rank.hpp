#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// The parts of low-rank gradient compression (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithm 1;
// comm/gradients/sums) that are no matrix products. Tensors are contiguous, of one
// type: f32 or f64 on the host, f32 on a GPU. Deterministic, the same bits for any number of threads; no workspace.

/// What orthonormalise() made of a column.
enum class Column : std::int32_t {
  dropped = 0,  ///< it depends on the columns before it: it is 0 now
  kept = 1,
  not_finite = 2,  ///< x had an element that is NaN or infinite: all elements of x are NaN now, all columns are this
};

/// The columns of x (rows, r), rows and r at least 1, become orthogonal and of length 1, in place: each loses, twice,
/// its parts along the columns before it (Gram-Schmidt) and is divided by its length. A column of whose length no more
/// than `epsilon` times remains is rounding, and dropped: 0 < epsilon < 1 (UsageError), e.g. the square root of the
/// precision of the type. columns: i32 (r), out, a Column each. Sums are in f64.
void orthonormalise(Context& context, double epsilon, const TensorView& x, const TensorView& columns);

/// error (m, n) = x (m, n) - p (m, r) q (n, r)^T, with the sum over r subtracted in order from x; unchanged when the
/// columns (i32, r) are not finite. error shares memory with no other tensor.
void low_rank_residual(Context& context, const TensorView& x, const TensorView& p, const TensorView& q,
                       const TensorView& columns, const TensorView& error);

/// The columns of `to` (n, r) that are `kept` become those of `from` (n, r); the others do not change.
void keep_columns(Context& context, const TensorView& from, const TensorView& columns, const TensorView& to);

namespace backend {  // called after the checks of low_rank.cpp
LOCKSTEP_BACKENDS(orthonormalise);
LOCKSTEP_BACKENDS(low_rank_residual);
LOCKSTEP_BACKENDS(keep_columns);
}  // namespace backend

}  // namespace lockstep::ops
