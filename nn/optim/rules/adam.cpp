#include <lockstep/kernels/adam.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

ops::AdamOptions adam_options(const OptimizerOptions& options, DType dtype) {
  const bool decoupled = options.kind != OptimizerKind::adam;
  const ops::AdamOptions adam{options.beta1, options.beta2, options.epsilon, decoupled};
  ops::require_adam_options("optimizer", adam, dtype);
  return adam;
}

/// Makes the rule adam or adamw, which differ only in AdamOptions.
Rule make_adam(Context& /*context*/, const ParameterSet& parameters, const OptimizerOptions& options) {
  const ops::AdamOptions adam = adam_options(options, parameters.dtype());
  const auto update = [adam](Context& context, const ops::ArenaUpdate& of, const Rule::Views& views) {
    ops::adam_update(context, adam, of, views.step, views.states[0], views.states[1]);
  };
  return {.states = {"exp_avg", "exp_avg_sq"}, .update = update};
}

}  // namespace lockstep::nn
