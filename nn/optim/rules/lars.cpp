#include <lockstep/kernels/lars.hpp>
#include <lockstep/kernels/momentum.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>

namespace lockstep::nn {

namespace {

class Lars final : public Rule {
 public:
  Lars(const ParameterSet& parameters, const ops::LarsOptions& options)
      : segments_(parameters.tensor_segments()), options_(options) {
    ops::require_momentum("optimizer", {options.momentum, options.nesterov});
    ops::require_lars_options("optimizer", options);
  }
  [[nodiscard]] std::vector<std::string> states() const override { return momentum_states(options_.momentum); }
  [[nodiscard]] bool counts() const override { return false; }
  [[nodiscard]] bool by_tensor() const override { return true; }
  [[nodiscard]] std::size_t workspace_bytes() const override { return ops::lars_workspace_bytes(segments_); }
  [[nodiscard]] std::int64_t sum_rows() const override { return ops::lars_rows(segments_); }
  void add_sums(Context& context, const ops::ArenaUpdate& update, const TensorView& sums,
                const TensorView& workspace) const override {
    ops::lars_squares(context, update, sums, workspace);
  }
  void update(Context& context, const ops::ArenaUpdate& update, const Views& views) override {
    ops::lars_update(context, options_, update, views.states.empty() ? TensorView() : views.states[0], views.workspace,
                     views.sums);
  }

 private:
  std::span<const ops::ArenaSegment> segments_;
  ops::LarsOptions options_;
};

}  // namespace

std::unique_ptr<Rule> make_lars(Context& /*context*/, const ParameterSet& parameters, const OptimizerOptions& options) {
  require<UsageError>(options.clip_value == 0, "optimizer: clip_value is ", options.clip_value,
                      " with lars, expected 0: lars takes the norms of gradients that are not clipped by value");
  return std::make_unique<Lars>(parameters, ops::LarsOptions{.momentum = options.momentum,
                                                             .nesterov = options.nesterov,
                                                             .trust_coefficient = options.trust_coefficient,
                                                             .epsilon = options.epsilon});
}

}  // namespace lockstep::nn
