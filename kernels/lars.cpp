#include <lockstep/kernels/lars.hpp>

#include <cmath>

#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops {

void require_lars_options(std::string_view op, const LarsOptions& options) {
  require_momentum(op, {options.momentum, options.nesterov});
  require<UsageError>(std::isfinite(options.trust_coefficient) && options.trust_coefficient > 0, op,
                      ": trust_coefficient is ", options.trust_coefficient, ", expected a number above 0");
  require<UsageError>(std::isfinite(options.epsilon) && options.epsilon >= 0, op, ": epsilon is ", options.epsilon,
                      ", expected a number of at least 0");
}

// One ratio per segment, then two partial sums per chunk.
std::size_t lars_workspace_bytes(std::span<const ArenaSegment> segments) {
  std::int64_t numbers = static_cast<std::int64_t>(segments.size());
  for (const ArenaSegment& segment : segments) {
    numbers += 2 * backend::lars_chunks(segment.count);
  }
  return static_cast<std::size_t>(numbers) * sizeof(double);
}

void lars_update(Context& context, const LarsOptions& options, const ArenaUpdate& update, const TensorView& velocity,
                 const TensorView& workspace) {
  constexpr std::string_view kOp = "lars_update";
  require_on(context.device(), kOp, {&workspace});
  require_arena_update(context, kOp, update, {{velocity, "velocity"}});
  require_lars_options(kOp, options);
  require<UsageError>(update.clip_value == 0, kOp, ": clip_value is ", update.clip_value,
                      ", expected 0: the trust ratio takes the norms of gradients that are not clipped by value");
  require<UsageError>(options.momentum == 0 || velocity.given(), kOp, ": momentum is ", options.momentum,
                      ", but velocity is not given");
  const std::int64_t n = update.parameters.numel();
  for (std::size_t i = 0; i < update.segments.size(); ++i) {
    const ArenaSegment& segment = update.segments[i];
    const auto [begin, end] = piece_of(segment, update.begin, n);
    require<ShapeError>(begin >= end || end - begin == segment.count, kOp, ": the range [", update.begin, ", ",
                        update.begin + n, ") cuts segment ", i, ", elements [", segment.offset, ", ",
                        segment.offset + segment.count, "), expected whole segments");
  }
  if (const std::size_t bytes = lars_workspace_bytes(update.segments); bytes > 0) {
    require_workspace(kOp, workspace, bytes, alignof(double));
    for (const TensorView* view : {&update.learning_rate, &update.factor, &update.skip, &update.parameters,
                                   &update.gradients, &update.copy, &velocity}) {
      require<ShapeError>(!overlaps(workspace, *view), kOp, ": workspace overlaps a tensor");
    }
  }
  dispatch(context, kOp, [=](auto& c) -> decltype(backend::lars_update(c, options, update, velocity, workspace)) {
    backend::lars_update(c, options, update, velocity, workspace);
  });
}

}  // namespace lockstep::ops
