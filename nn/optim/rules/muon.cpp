#include <algorithm>
#include <cmath>
#include <optional>

#include <lockstep/kernels/adam.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/muon.hpp>
#include <lockstep/kernels/sgd.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>
#include <lockstep/nn/optim/orthogonalizer.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

namespace {

class Muon final : public Rule {
 public:
  Muon(Context& context, const ParameterSet& parameters, const OptimizerOptions& options)
      : momentum_{.momentum = options.momentum, .nesterov = options.nesterov} {
    require<UsageError>(parameters.state_shards().empty(),
                        "optimizer: muon beside states that are divided over ranks (zero1), expected ddp");
    adam_ = adam_options(options, parameters.dtype());
    ops::require_muon_options("optimizer", momentum_);
    std::vector<Orthogonalizer::Matrix> matrices;
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      const ParameterInfo& info = parameters.parameters()[i];
      ops::ArenaSegment& matrix = matrix_segments_.emplace_back(parameters.tensor_segments()[i]);
      ops::ArenaSegment& other = other_segments_.emplace_back(matrix);
      if (!is_hidden_matrix(info.spec)) {
        matrix.trainable = false;
        continue;
      }
      other.trainable = false;
      const std::int64_t rows = info.spec.shape[0];
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, info.spec.shape.numel() / rows)));
      matrix.learning_rate_scale *= scale;
      matrix.weight_decay /= scale;  // the update multiplies it by the rate
      matrices.push_back({info.offset, rows, info.numel / rows});
    }
    const DType compute = parameters.rounds() ? parameters.weight_dtype() : parameters.dtype();
    orthogonalizer_.emplace(context, matrices, parameters.dtype(), compute);
    const std::int64_t numel = parameters.trainable_numel();
    memory_ = Buffer(static_cast<std::size_t>(numel) * size_of(parameters.dtype()), context);
    direction_ = TensorView(memory_.data(), parameters.dtype(), context.device(), {numel});
    ops::fill(context, 0, direction_);
  }

  [[nodiscard]] std::vector<std::string> states() const override { return {"exp_avg", "exp_avg_sq"}; }
  [[nodiscard]] std::size_t bytes() const override { return memory_.bytes() + orthogonalizer_->bytes(); }

  void update(Context& context, const ops::ArenaUpdate& update, const Views& views) override {
    require<ShapeError>(update.begin == 0 && update.parameters.numel() == direction_.numel(),
                        "optimizer: muon updates elements from ", update.begin, " on, ", update.parameters.numel(),
                        " of them, expected all ", direction_.numel());
    ops::ArenaUpdate of_matrices = update;
    of_matrices.segments = matrix_segments_;
    of_matrices.copy = {};
    ops::muon_direction(context, momentum_, of_matrices, views.states[0], direction_);
    orthogonalizer_->run(context, direction_);
    of_matrices.copy = update.copy;
    of_matrices.gradients = direction_;
    of_matrices.factor = {};
    of_matrices.clip_value = 0;
    ops::sgd_update(context, {}, of_matrices, {});
    ops::ArenaUpdate of_others = update;
    of_others.segments = other_segments_;
    ops::adam_update(context, adam_, of_others, views.step, views.states[0], views.states[1]);
  }

 private:
  ops::MuonOptions momentum_;
  ops::AdamOptions adam_;
  std::vector<ops::ArenaSegment> matrix_segments_;  ///< ParameterSet::tensor_segments(), the matrices trainable
  std::vector<ops::ArenaSegment> other_segments_;   ///< the same, the others trainable
  std::optional<Orthogonalizer> orthogonalizer_;
  Buffer memory_;         ///< of direction_
  TensorView direction_;  ///< an arena of what is orthogonalised
};

}  // namespace

bool is_hidden_matrix(const ParameterSpec& spec) {
  return spec.trainable && spec.role == ParameterRole::weight && !spec.looked_up && !spec.last &&
         spec.shape.rank() >= 2 && spec.axes.front() == 0 && spec.shape.numel() > 0;
}

std::unique_ptr<Rule> make_muon(Context& context, const ParameterSet& parameters, const OptimizerOptions& options) {
  return std::make_unique<Muon>(context, parameters, options);
}

}  // namespace lockstep::nn
