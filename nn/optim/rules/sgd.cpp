#include <lockstep/kernels/sgd.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

std::vector<std::string> momentum_states(double momentum) {
  return momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

Rule make_sgd(Context& /*context*/, const ParameterSet& /*parameters*/, const OptimizerOptions& options) {
  const ops::SgdOptions sgd{options.momentum, options.nesterov};
  ops::require_momentum("optimizer", sgd);
  const auto update = [sgd](Context& context, const ops::ArenaUpdate& of, const Rule::Views& views) {
    ops::sgd_update(context, sgd, of, views.states.empty() ? TensorView() : views.states[0]);
  };
  return {.states = momentum_states(sgd.momentum), .counts = false, .update = update};
}

}  // namespace lockstep::nn
