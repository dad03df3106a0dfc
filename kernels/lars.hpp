#pragma once

#include <cstddef>

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

struct LarsOptions {
  double momentum = 0;  ///< in [0, 1); with 0 velocity is not touched and may be missing
  bool nesterov = false;
  double trust_coefficient = 0.001;  ///< above 0
  double epsilon = 1e-8;             ///< at least 0
};

/// Throws UsageError when an option is out of range; `op` names the caller.
void require_lars_options(std::string_view op, const LarsOptions& options);

/// Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017): SGD with momentum (sgd.hpp), and a separate learning
/// rate for every tensor. A segment is one tensor:
///   g = factor * grad;  ratio = trust_coefficient * ||p|| / (||g|| + weight_decay * ||p|| + epsilon)
///   v = momentum * v + ratio * (g + weight_decay * p);  p -= lr * (nesterov ? ratio * (..) + momentum * v : v)
/// with lr = learning_rate * learning_rate_scale. ratio is 1 for segments that do not adapt, and if a norm is 0. The
/// learning rate is that of the current step, as in sgd, and not part of v as in the paper's algorithm 1. Norms are
/// computed in f64 over fixed chunks of a tensor, which are joined in order. Reads p and g twice, v once; writes p, v
/// and the copy once. workspace: u8, aligned to 8, of lars_workspace_bytes(segments of the call). The range must hold
/// whole segments: then the bits of an element do not depend on how the arena is cut. Throws ShapeError if begin or
/// begin + n lies inside a segment; UsageError for options out of range and momentum without velocity; and the errors
/// of ArenaUpdate.
///
/// With `squares` the norms are taken from squares instead of the range, and the range may cut segments. squares is
/// (rows, 2), f64, contiguous. Row r belongs to the r-th segment that is trainable and has elements: the sum of the
/// squares of its parameters, and of its gradients without the factor. squares is only read. Throws ShapeError unless
/// squares has lars_rows() rows.
[[nodiscard]] std::size_t lars_workspace_bytes(std::span<const ArenaSegment> segments);
void lars_update(Context& context, const LarsOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                 const TensorView& workspace, const TensorView& squares = {});

/// Returns the number of rows that `squares` must have.
[[nodiscard]] std::int64_t lars_rows(std::span<const ArenaSegment> segments);
/// Adds the sums of squares of the part of each segment that lies in the range to `squares`. Of `update` it reads
/// segments, begin, parameters and gradients. So ranks that divide an arena can compute the norms of whole tensors:
/// each rank starts from zeros and calls this op for each of its ranges; then the ranks add their results. Chunks and
/// order are those of lars_update(): one range of whole segments, added to 0, gives the same bits; several ranges give
/// the bits of another order. Workspace and errors are those of lars_update().
void lars_squares(Context& context, const ArenaUpdate& update, const TensorView& squares, const TensorView& workspace);

namespace backend {                               // the functions that lars.cpp calls after its checks
inline constexpr std::int64_t kLarsChunk = 4096;  // number of elements in a chunk, which has two partial sums

[[nodiscard]] constexpr std::int64_t lars_chunks(std::int64_t count) {
  return (count + kLarsChunk - 1) / kLarsChunk;
}
/// Returns the index in `squares` of the first segment that a range from `begin` on may touch.
[[nodiscard]] std::int64_t lars_first_row(std::span<const ArenaSegment> segments, std::int64_t begin);
LOCKSTEP_BACKENDS(lars_update);
LOCKSTEP_BACKENDS(lars_squares);
}  // namespace backend

}  // namespace lockstep::ops
