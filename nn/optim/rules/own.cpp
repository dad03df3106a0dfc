#include <algorithm>
#include <utility>

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

/// Makes the rule that calls the user's UpdateRule, OptimizerOptions::rule.
Rule make_own(Context& /*context*/, const ParameterSet& /*parameters*/, const OptimizerOptions& options) {
  const std::string name = options.rule->name();
  const auto taken = [&](const RuleTraits& rule) { return rule.name == name; };
  require<UsageError>(!name.empty() && std::ranges::none_of(built_in_rules(), taken),
                      "optimizer: a rule has the name '", name, "', expected one that is not taken");
  const auto update = [rule = options.rule](Context& context, ops::ArenaUpdate of, const Rule::Views& views) {
    const TensorView copy = std::exchange(of.copy, {});
    ops::require_arena_update(context, rule->name(), of, {});
    rule->update(context, of, {.arenas = views.states, .step = views.step});
    if (copy.given()) {
      ops::strided_copy(context, of.parameters, copy);
    }
  };
  return {.states = options.rule->states(), .update = update};
}

}  // namespace lockstep::nn
