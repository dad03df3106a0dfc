#pragma once

#include <cstddef>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

struct LarsOptions {
  double momentum = 0;  ///< in [0, 1); if it is 0, velocity is not used and may be missing
  bool nesterov = false;
  double trust_coefficient = 0.001;  ///< factor of every trust ratio; above 0
  double epsilon = 1e-8;             ///< added to the divisor of every trust ratio; at least 0
};

/// Throws UsageError when an option is out of range; `op` names the caller.
void require_lars_options(std::string_view op, const LarsOptions& options);

/// Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017): SGD with momentum (sgd.hpp), with a separate learning
/// rate for every tensor. Each segment is one tensor:
///   g = factor * grad;  ratio = trust_coefficient * ||p|| / (||g|| + weight_decay * ||p|| + epsilon)
///   d = ratio * (g + weight_decay * p);  v = momentum * v + d;  p -= lr * (nesterov ? d + momentum * v : v)
/// with lr = learning_rate * learning_rate_scale. ratio is 1 for segments that do not adapt, and for segments with a
/// norm of 0. Algorithm 1 of the paper differs: there v contains lr.
///
/// Norms are computed in f64: each tensor is divided into fixed chunks, whose sums are added in order. The op reads p
/// and g twice and v once; it writes p, v and update.copy once. `workspace` is u8, aligned to 8, and has
/// lars_workspace_bytes(update.segments) bytes.
///
/// Without `squares`, the range of `update` must not cut a segment; lars_update() throws ShapeError if it does. So the
/// bits of an element do not depend on how the arena is divided into ranges.
///
/// If `squares` is given, the norms are computed from `squares`, so the range may cut segments. `squares` is f64,
/// contiguous, of shape (lars_rows(update.segments), 2); otherwise ShapeError is thrown. Row r belongs to the r-th of
/// the segments that are trainable and have elements. Column 0 is the sum of the squares of the segment's parameters.
/// Column 1 is the sum of the squares of the segment's gradients, not multiplied by `factor`.
///
/// Throws UsageError for options out of range, momentum without velocity, and a clip_value other than 0; and the errors
/// of require_arena_update().
[[nodiscard]] std::size_t lars_workspace_bytes(std::span<const ArenaSegment> segments);
void lars_update(Context& context, const LarsOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                 const TensorView& workspace, const TensorView& squares = {});

/// Returns the number of rows that `squares` must have: the number of trainable segments that have elements.
[[nodiscard]] std::int64_t lars_rows(std::span<const ArenaSegment> segments);
/// Adds sums of squares to `squares`, which has one row per segment (see lars_update()). Only elements in the range of
/// `update` count: squares of parameters are added to column 0, squares of gradients to column 1. Reads only segments,
/// begin, parameters and gradients of `update`. `workspace` is that of lars_update(). Throws the errors of
/// require_arena_update(), and ShapeError as lars_update() does for `squares`.
///
/// With this op, ranks that divide an arena can compute the norms of whole tensors. Each rank sets its `squares` to
/// zero and calls lars_squares() for each of its ranges; then the `squares` of all ranks are summed. If one range holds
/// a whole segment, the sum has the same bits as in lars_update(). If several ranges share a segment, the order of the
/// additions differs, so the bits may differ.
void lars_squares(Context& context, const ArenaUpdate& update, const TensorView& squares, const TensorView& workspace);

namespace backend {                               // the functions that lars.cpp calls after its checks
inline constexpr std::int64_t kLarsChunk = 4096;  // number of elements in a chunk

[[nodiscard]] constexpr std::int64_t lars_chunks(std::int64_t count) {
  return (count + kLarsChunk - 1) / kLarsChunk;
}
/// Returns the index of the row in `squares` of the first segment that a range from `begin` on may include.
[[nodiscard]] std::int64_t lars_first_row(std::span<const ArenaSegment> segments, std::int64_t begin);
LOCKSTEP_BACKENDS(lars_update);
LOCKSTEP_BACKENDS(lars_squares);
}  // namespace backend

}  // namespace lockstep::ops
