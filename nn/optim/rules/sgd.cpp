#include <lockstep/kernels/sgd.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

namespace {

class Sgd final : public Rule {
 public:
  explicit Sgd(const ops::SgdOptions& options) : options_(options) { ops::require_momentum("optimizer", options); }
  [[nodiscard]] std::vector<std::string> states() const override { return momentum_states(options_.momentum); }
  [[nodiscard]] bool counts() const override { return false; }
  void update(Context& context, const ops::ArenaUpdate& update, const Views& views) override {
    ops::sgd_update(context, options_, update, views.states.empty() ? TensorView() : views.states[0]);
  }

 private:
  ops::SgdOptions options_;
};

}  // namespace

std::vector<std::string> momentum_states(double momentum) {
  return momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

std::unique_ptr<Rule> make_sgd(Context& /*context*/, const ParameterSet& /*parameters*/,
                               const OptimizerOptions& options) {
  return std::make_unique<Sgd>(ops::SgdOptions{options.momentum, options.nesterov});
}

}  // namespace lockstep::nn
