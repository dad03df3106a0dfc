#include <lockstep/kernels/lars.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/kernels/momentum.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

/// Returns true if `squares` (see lars_update()) has a row for the segment.
bool has_row(const ArenaSegment& segment) {
  return segment.trainable && segment.count > 0;
}

void require_squares(std::string_view op, const ArenaUpdate& update, const TensorView& squares) {
  const Shape expected{lars_rows(update.segments), 2};
  require<DTypeError>(squares.dtype == DType::f64, op, ": squares are ", squares.dtype, ", expected f64");
  require<ShapeError>(squares.shape == expected && squares.is_contiguous(), op, ": squares are ", squares,
                      ", expected contiguous ", expected);
}

void require_lars_workspace(std::string_view op, const ArenaUpdate& update, const TensorView& velocity,
                            const TensorView& workspace, const TensorView& squares) {
  const std::size_t bytes = lars_workspace_bytes(update.segments);
  if (bytes == 0) {
    return;
  }
  require_workspace(op, workspace, bytes, alignof(double));
  for (const Operand& tensor :
       {Operand{update.learning_rate, "learning_rate"}, Operand{update.factor, "factor"}, Operand{update.skip, "skip"},
        Operand{update.parameters, "parameters"}, Operand{update.gradients, "gradients"}, Operand{update.copy, "copy"},
        Operand{velocity, "velocity"}}) {
    require<ShapeError>(!overlaps(workspace, tensor.view), op, ": workspace overlaps ", tensor.name,
                        ", expected memory of its own for each");
    require<ShapeError>(!squares.given() || !overlaps(squares, tensor.view), op, ": squares overlap ", tensor.name,
                        ", expected memory of its own for each");
  }
  require<ShapeError>(!squares.given() || !overlaps(workspace, squares), op,
                      ": workspace overlaps squares, expected memory of its own for each");
}

}  // namespace

std::int64_t lars_rows(std::span<const ArenaSegment> segments) {
  return std::count_if(segments.begin(), segments.end(), has_row);
}

std::int64_t backend::lars_first_row(std::span<const ArenaSegment> segments, std::int64_t begin) {
  return std::count_if(segments.begin(), segments.end(), [&](const ArenaSegment& segment) {
    return has_row(segment) && segment.offset + segment.count <= begin;
  });
}

void require_lars_options(std::string_view op, const LarsOptions& options) {
  require_momentum(op, {options.momentum, options.nesterov});
  require<UsageError>(std::isfinite(options.trust_coefficient) && options.trust_coefficient > 0, op,
                      ": trust_coefficient is ", options.trust_coefficient, ", expected a number above 0");
  require<UsageError>(std::isfinite(options.epsilon) && options.epsilon >= 0, op, ": epsilon is ", options.epsilon,
                      ", expected a number of at least 0");
}

// The workspace holds f64 numbers: one trust ratio per segment, then two partial sums per chunk of kLarsChunk elements.
std::size_t lars_workspace_bytes(std::span<const ArenaSegment> segments) {
  std::int64_t numbers = static_cast<std::int64_t>(segments.size());
  for (const ArenaSegment& segment : segments) {
    numbers += 2 * backend::lars_chunks(segment.count);
  }
  return static_cast<std::size_t>(numbers) * sizeof(double);
}

void lars_update(Context& context, const LarsOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                 const TensorView& workspace, const TensorView& squares) {
  constexpr std::string_view kOp = "lars_update";
  require_on(context.device(), kOp, {&workspace, &squares});
  require_arena_update(context, kOp, update, {{velocity, "velocity"}});
  require_lars_options(kOp, options);
  require<UsageError>(update.clip_value == 0, kOp, ": clip_value is ", update.clip_value,
                      ", expected 0: the trust ratio takes the norms of gradients that are not clipped by value");
  require<UsageError>(options.momentum == 0 || velocity.given(), kOp, ": momentum is ", options.momentum,
                      " and velocity is not given, expected it with momentum");
  const std::int64_t n = update.parameters.numel();
  for (std::size_t i = 0; i < update.segments.size() && !squares.given(); ++i) {
    const ArenaSegment& segment = update.segments[i];
    const auto [begin, end] = piece_of(segment, update.begin, n);
    require<ShapeError>(begin >= end || end - begin == segment.count, kOp, ": the range [", update.begin, ", ",
                        update.begin + n, ") cuts segment ", i, ", elements [", segment.offset, ", ",
                        segment.offset + segment.count, "), expected whole segments, or squares given");
  }
  if (squares.given()) {
    require_squares(kOp, update, squares);
  }
  require_lars_workspace(kOp, update, velocity, workspace, squares);
  dispatch(context, kOp, LOCKSTEP_BACKEND(lars_update, options, update, velocity, workspace, squares));
}

void lars_squares(Context& context, const ArenaUpdate& update, const TensorView& squares, const TensorView& workspace) {
  constexpr std::string_view kOp = "lars_squares";
  require_on(context.device(), kOp, {&workspace, &squares});
  require_arena_update(context, kOp, update, {});
  require_squares(kOp, update, squares);
  require_lars_workspace(kOp, update, {}, workspace, squares);
  dispatch(context, kOp, LOCKSTEP_BACKEND(lars_squares, update, squares, workspace));
}

}  // namespace lockstep::ops
