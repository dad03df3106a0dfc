#include <algorithm>

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

namespace {

/// A user's UpdateRule.
class Own final : public Rule {
 public:
  explicit Own(std::shared_ptr<const UpdateRule> rule) : rule_(std::move(rule)) {
    const std::string name = rule_->name();
    require<UsageError>(!name.empty() && std::none_of(kBuiltInRules.begin(), kBuiltInRules.end(),
                                                      [&](const NamedRule& taken) { return taken.name == name; }),
                        "optimizer: a rule has the name '", name, "', expected one that is not taken");
  }
  [[nodiscard]] std::vector<std::string> states() const override { return rule_->states(); }
  void update(Context& context, const ops::ArenaUpdate& update, const Views& views) override {
    ops::ArenaUpdate without_copy = update;
    without_copy.copy = {};
    ops::require_arena_update(context, rule_->name(), without_copy, {});
    rule_->update(context, without_copy, {.arenas = views.states, .step = views.step});
    if (update.copy.given()) {
      ops::strided_copy(context, update.parameters, update.copy);
    }
  }

 private:
  std::shared_ptr<const UpdateRule> rule_;
};

}  // namespace

std::unique_ptr<Rule> make_own(Context& /*context*/, const ParameterSet& /*parameters*/,
                               const OptimizerOptions& options) {
  return std::make_unique<Own>(options.rule);
}

}  // namespace lockstep::nn
