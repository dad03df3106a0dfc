#include <lockstep/kernels/sgd.hpp>

namespace lockstep::ops {

void require_momentum(std::string_view op, const MomentumOptions& options) {
  const auto& [momentum, nesterov] = options;
  require<UsageError>(momentum >= 0 && momentum < 1, op, ": momentum is ", momentum,
                      ", expected at least 0 and below 1");
  require<UsageError>(!nesterov || momentum > 0, op, ": nesterov is on and momentum is 0, expected a momentum above 0");
}

void sgd_update(Context& context, const SgdOptions& options, const ArenaUpdate& update, const TensorView& velocity) {
  constexpr std::string_view kOp = "sgd_update";
  require_arena_update(context, kOp, update, {{velocity, "velocity"}});
  require_momentum(kOp, options);
  require<UsageError>(options.momentum == 0 || velocity.given(), kOp, ": momentum is ", options.momentum,
                      " and velocity is not given, expected it with momentum");
  dispatch(context, kOp, LOCKSTEP_BACKEND(sgd_update, options, update, velocity));
}

}  // namespace lockstep::ops
