#include <algorithm>
#include <cmath>
#include <memory>
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

struct Muon {
  Muon(Context& context, const ParameterSet& parameters, const OptimizerOptions& options)
      : momentum{options.momentum, options.nesterov}, adam(adam_options(options, parameters.dtype())) {
    ops::require_muon_options("optimizer", momentum);
    std::vector<Orthogonalizer::Matrix> found;
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      const ParameterInfo& info = parameters.parameters()[i];
      ops::ArenaSegment& matrix = matrices.emplace_back(parameters.tensor_segments()[i]);
      ops::ArenaSegment& other = others.emplace_back(matrix);
      if (!is_hidden_matrix(info.spec)) {
        matrix.trainable = false;
        continue;
      }
      other.trainable = false;
      const std::int64_t rows = info.spec.shape[0];
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, info.spec.shape.numel() / rows)));
      matrix.learning_rate_scale *= scale;
      matrix.weight_decay /= scale;  // because the update multiplies the decay by the scaled rate
      found.push_back({info.offset, rows, info.numel / rows});
    }
    const DType compute = parameters.rounds() ? parameters.weight_dtype() : parameters.dtype();
    orthogonalizer.emplace(context, found, parameters.dtype(), compute);
    const std::int64_t numel = parameters.trainable_numel();
    memory = Buffer(static_cast<std::size_t>(numel) * size_of(parameters.dtype()), context);
    direction = TensorView(memory.data(), parameters.dtype(), context.device(), {numel});
    ops::fill(context, 0, direction);
  }

  void update(Context& context, const ops::ArenaUpdate& all, const Rule::Views& views) {
    require<ShapeError>(all.begin == 0 && all.parameters.numel() == direction.numel(),
                        "optimizer: muon is to update elements from ", all.begin, " on, ", all.parameters.numel(),
                        " of them, expected all ", direction.numel());
    ops::ArenaUpdate update = all;
    update.segments = matrices;
    update.copy = {};
    ops::muon_direction(context, momentum, update, views.states[0], direction);
    orthogonalizer->run(context, direction);
    update.copy = all.copy;
    update.gradients = direction;
    update.factor = {};
    update.clip_value = 0;
    ops::sgd_update(context, {}, update, {});
    update = all;
    update.segments = others;
    ops::adam_update(context, adam, update, views.step, views.states[0], views.states[1]);
  }

  ops::MuonOptions momentum;
  ops::AdamOptions adam;
  std::vector<ops::ArenaSegment> matrices;  ///< tensor_segments() in which only hidden matrices are trainable
  std::vector<ops::ArenaSegment> others;    ///< tensor_segments() in which hidden matrices are not trainable
  std::optional<Orthogonalizer> orthogonalizer;
  Buffer memory;         ///< memory of `direction`
  TensorView direction;  ///< arena of the directions to orthogonalise
};

}  // namespace

bool is_hidden_matrix(const ParameterSpec& spec) {
  return spec.trainable && spec.role == ParameterRole::weight && !spec.embedding_table && !spec.last &&
         spec.shape.rank() >= 2 && spec.axes.front() == 0 && spec.shape.numel() > 0;
}

Rule make_muon(Context& context, const ParameterSet& parameters, const OptimizerOptions& options) {
  require<UsageError>(
      parameters.state_shards().empty(),
      "optimizer: muon with states that are divided over ranks (zero1), expected states that are not divided (ddp)");
  const auto muon = std::make_shared<Muon>(context, parameters, options);
  const auto update = [muon](Context& on, const ops::ArenaUpdate& all, const Rule::Views& views) {
    muon->update(on, all, views);
  };
  return {.states = {"exp_avg", "exp_avg_sq"},
          .bytes = muon->memory.bytes() + muon->orthogonalizer->bytes(),
          .update = update};
}

}  // namespace lockstep::nn
