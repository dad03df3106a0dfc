#pragma once

#include <cstddef>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// The first layer of a transformer, as in GPT (Radford et al., 2018, section 3.1). Each token gets a table row, plus a
// learned row for its position in the sequence.
//
//   ids:        (..., T) i32, rank at least 1: M tokens in sequences of length T
//   table:      (V, D), positions: (T, D), y, dy: (..., T, D); all of one type: f32, f64 or bf16 on the host, f32, bf16
//               or f16 on a GPU
// All tensors are contiguous. Outputs share no memory with other operands.

/// Computes y = table[id] + positions[t] for token t of a sequence, rounded once. Without positions y = table[id]. For
/// an id outside [0, V), sets the row of y to zeros and reads no table row. Adds to bad_ids (f64 scalar, optional) the
/// number of ids outside [0, V) among the first `valid` entries of the first axis of ids. valid (i64 scalar, optional)
/// is clamped to [0, number of entries]; without valid, all entries count. y does not depend on valid, and has a row
/// for every id.
void embedding_forward(Context& context, const TensorView& table, const TensorView& ids, const TensorView& positions,
                       const TensorView& valid, const TensorView& y, const TensorView& bad_ids);

/// Returns the bytes of workspace (u8, contiguous, aligned to 4) that embedding_backward needs for dtable; 0 on the
/// host.
[[nodiscard]] std::size_t embedding_backward_workspace_bytes(const Context& context, const TensorView& dtable);

/// Computes the gradient of the table. For each id, sums the rows of dy at the id's tokens. Sets the id's row of dtable
/// (V, D) to this sum (mode overwrite), or adds the sum to the row (accumulate). With overwrite, rows of ids that do
/// not occur become 0. Tokens with an id outside [0, V) are skipped.
///
/// dtable has the type of dy, or f32 if dy has a 16-bit type; sums have the type of dtable. A sum starts from 0
/// (overwrite) or from the row (accumulate), and adds in the order of the tokens. So the result is deterministic.
/// Throws UsageError for mode ignore, ShapeError for 2^31 tokens or more.
///
/// To get the gradient of positions, call reduce_rows() for dy as a tensor (M / T, T * D).
void embedding_backward(Context& context, const TensorView& dy, const TensorView& ids, GradMode mode,
                        const TensorView& dtable, const TensorView& workspace);

namespace backend {  // the functions that embedding.cpp calls after its checks
LOCKSTEP_BACKENDS(embedding_forward);
LOCKSTEP_BACKENDS(embedding_backward);
}  // namespace backend

}  // namespace lockstep::ops
