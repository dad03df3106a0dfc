#include <lockstep/kernels/adam.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

namespace {

/// adam and adamw, which differ in ops::AdamOptions::decoupled.
class Adam final : public Rule {
 public:
  explicit Adam(const ops::AdamOptions& options) : options_(options) {}
  [[nodiscard]] std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(Context& context, const ops::ArenaUpdate& update, const Views& views) override {
    ops::adam_update(context, options_, update, views.step, views.states[0], views.states[1]);
  }

 private:
  ops::AdamOptions options_;
};

}  // namespace

ops::AdamOptions adam_options(const OptimizerOptions& options, DType dtype) {
  const ops::AdamOptions adam{.beta1 = options.beta1,
                              .beta2 = options.beta2,
                              .epsilon = options.epsilon,
                              .decoupled = options.kind != OptimizerKind::adam};
  ops::require_adam_options("optimizer", adam, dtype);
  return adam;
}

std::unique_ptr<Rule> make_adam(Context& /*context*/, const ParameterSet& parameters, const OptimizerOptions& options) {
  return std::make_unique<Adam>(adam_options(options, parameters.dtype()));
}

}  // namespace lockstep::nn
