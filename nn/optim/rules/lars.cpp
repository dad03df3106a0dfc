#include <lockstep/kernels/lars.hpp>
#include <lockstep/kernels/momentum.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

Rule make_lars(Context& /*context*/, const ParameterSet& parameters, const OptimizerOptions& options) {
  require<UsageError>(options.clip_value == 0, "optimizer: clip_value is ", options.clip_value,
                      " with lars, expected 0: lars takes the norms of gradients that are not clipped by value");
  const ops::LarsOptions lars{options.momentum, options.nesterov, options.trust_coefficient, options.epsilon};
  ops::require_momentum("optimizer", {lars.momentum, lars.nesterov});
  ops::require_lars_options("optimizer", lars);
  const auto update = [lars](Context& context, const ops::ArenaUpdate& of, const Rule::Views& views) {
    const TensorView velocity = views.states.empty() ? TensorView() : views.states[0];
    ops::lars_update(context, lars, of, velocity, views.workspace, views.sums);
  };
  return {.states = momentum_states(lars.momentum),
          .counts = false,
          .by_tensor = true,
          .workspace_bytes = ops::lars_workspace_bytes(parameters.tensor_segments()),
          .update = update,
          .sum_rows = ops::lars_rows(parameters.tensor_segments()),
          .add_sums = ops::lars_squares};
}

}  // namespace lockstep::nn
