#pragma once

#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/loss_scale.hpp>
#include <lockstep/nn/optim/optimizer_options.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

#include "tests/support/compare.hpp"
#include "tests/support/gradient_check.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::testing {

/// Returns all built-in optimizers, so that tests of all optimizers include a new one.
inline std::vector<nn::OptimizerKind> optimizer_kinds() {
  std::vector<nn::OptimizerKind> kinds;
  for (const nn::RuleTraits& rule : nn::built_in_rules()) {
    kinds.push_back(nn::parse_optimizer(rule.name));
  }
  return kinds;
}

/// Returns the model with numbers as input instead of u8 images.
inline nn::Model on_values(const nn::Model& model) {
  return model.input_kind() == nn::InputKind::images ? model.reading(nn::InputKind::values) : model;
}

/// A model with its parameters, state, plan and memory, for one training or evaluation step. The float inputs are drawn
/// from a seed.
class Net {
 public:
  static constexpr double kLossScale = 1024;  ///< loss scale with PlanOptions::scaled_loss
  Net(const nn::Model& model, nn::Mode mode, std::int64_t batch, DType dtype, int threads = 1,
      nn::PlanOptions options = {}, std::uint64_t seed = 7)
      : context_({.threads = threads}),
        classes_(model.classes()),
        parameters_(context_, model, dtype),
        state_(context_, batch, nn::step_layout(on_values(model), with(options, dtype))),
        plan_(context_, on_values(model), mode, batch, with(options, dtype)),
        workspace_(plan_.workspace_bytes(), context_) {
    if (options.scaled_loss) {
      nn::add_loss_scale(context_, parameters_, kLossScale, true);
    }
    parameters_.initialise(context_, seed);
    fill_input(seed);
    plan_.bind(parameters_, state_, workspace_);
    scalars_ = {.learning_rate = 0.1, .sample_weight = 1.0 / static_cast<double>(batch), .valid = batch, .epoch = 0};
  }

  /// Fills the state: normally distributed input and target (padded channel zero), any tokens, labels i % 3 and sample
  /// ids i.
  void fill_input(std::uint64_t seed) {
    Random random(seed, RandomUse::test);
    const TensorView& input = state_.view(nn::StateField::values);
    const std::int64_t stored = input.shape.back();
    const bool padded = input.shape.rank() == 4 && stored == 4;
    fill(input, [&](std::int64_t i) { return padded && i % stored == 3 ? 0 : random.normal(); });
    fill(state_.view(nn::StateField::targets), [&](std::int64_t) { return random.normal(); });
    for (std::int32_t& token : state_.view(nn::StateField::tokens).span<std::int32_t>()) {
      token = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(classes_)));
    }
    auto labels = state_.view(nn::StateField::labels).span<std::int32_t>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<std::int32_t>(i % 3);
    }
    auto ids = state_.view(nn::StateField::sample_ids).span<std::int64_t>();
    std::iota(ids.begin(), ids.end(), std::int64_t{0});
  }

  /// Runs the plan once. Returns the scaled loss: the sum of the losses of all valid samples, times loss_scale.
  double run() {
    state_.set(context_, scalars_);
    plan_.run(context_);
    return state_.metrics(context_).loss_sum * scalars_.sample_weight;
  }

  CpuContext& context() { return context_; }
  nn::ParameterSet& parameters() { return parameters_; }
  nn::StepState& state() { return state_; }
  nn::Plan& plan() { return plan_; }
  nn::StepState::Scalars& scalars() { return scalars_; }
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  template <class F>
  static void fill(const TensorView& view, F value) {
    if (view.numel() == 0) {
      return;
    }
    std::vector<double> values(static_cast<std::size_t>(view.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = value(static_cast<std::int64_t>(i));
    }
    from_doubles(values, view);
  }
  static nn::PlanOptions with(nn::PlanOptions options, DType dtype) {
    options.dtype = dtype;
    return options;
  }
  CpuContext context_;
  std::int64_t classes_;
  nn::ParameterSet parameters_;
  nn::StepState state_;
  nn::Plan plan_;
  Buffer workspace_;
  nn::StepState::Scalars scalars_;
};

/// Runs the model in `mode` twice. In the first run, tensors share memory as planned. In the second run, every tensor
/// has memory of its own, and no call overwrites its input. options.recompute applies to the first run only.
///
/// Returns success if the two runs give the same bits: the loss, the running statistics, and the gradients
/// (Mode::train) or the output (other modes). A difference shows that a layer makes a wrong statement about its memory.
/// The wrong statement may be in Layer::backward_reads_output(), PlanBuilder::may_overwrite_input(), the reuse of
/// input_gradient(), or the slots that a call reads and writes.
inline ::testing::AssertionResult sharing_memory_changes_nothing(const nn::Model& model, nn::Mode mode,
                                                                 std::int64_t batch, DType dtype,
                                                                 nn::PlanOptions options = {}) {
  options.reuse_memory = true;
  Net shared(model, mode, batch, dtype, 1, options);
  options.reuse_memory = false;
  options.recompute = nn::Recompute::off;
  Net apart(model, mode, batch, dtype, 1, options);
  const double loss = apart.run();
  if (shared.run() != loss || std::isnan(loss)) {
    return ::testing::AssertionFailure() << nn::name_of(mode) << ": another loss than " << loss;
  }
  const bool train = mode == nn::Mode::train;
  const std::initializer_list<std::pair<const char*, std::pair<TensorView, TensorView>>> results{
      {train ? "gradients" : "output", train
                                           ? std::pair(shared.parameters().gradients(), apart.parameters().gradients())
                                           : std::pair(shared.plan().output(), apart.plan().output())},
      {"running statistics", {shared.parameters().buffer_arena(), apart.parameters().buffer_arena()}}};
  for (const auto& [name, views] : results) {
    if (auto same = has_same_bits(views.first, views.second); !same) {
      return ::testing::AssertionFailure() << nn::name_of(mode) << ", " << name << ": " << same.message();
    }
  }
  return ::testing::AssertionSuccess();
}

/// A Net for tests of layers. Its constructor checks the statements that the model's layers make about their memory. If
/// `mode` is train, the constructor also checks an evaluation, and a training plan with recomputation.
class CheckedNet : public Net {
 public:
  CheckedNet(const nn::Model& model, nn::Mode mode, std::int64_t batch, DType dtype, int threads = 1,
             const nn::PlanOptions& options = {}, std::uint64_t seed = 7)
      : Net(model, mode, batch, dtype, threads, options, seed) {
    EXPECT_TRUE(sharing_memory_changes_nothing(model, mode, batch, dtype, options)) << model.name();
    if (mode == nn::Mode::train) {
      EXPECT_TRUE(sharing_memory_changes_nothing(model, nn::Mode::evaluate, batch, dtype, options)) << model.name();
      nn::PlanOptions again = options;
      again.recompute = nn::Recompute::blocks;
      EXPECT_TRUE(sharing_memory_changes_nothing(model, mode, batch, dtype, again)) << model.name() << ", recomputed";
    }
  }
};

/// Returns gradient_error() over the trainable parameters, for at most `samples` elements of each. `scale` multiplies
/// the analytic gradient; the negative control uses it. `cancelled` names a parameter whose effect a later batch norm
/// removes; its gradient must be 0 up to rounding.
inline double parameter_gradient_error(Net& net, int samples, double scale = 1, const std::string& cancelled = "") {
  net.run();
  nn::ParameterSet& set = net.parameters();
  std::vector<double> analytic = to_doubles(set.gradients());
  for (double& value : analytic) {
    value *= scale;
  }
  std::vector<GradientPair> pairs;
  for (std::size_t p = 0; p < set.trainable().size(); ++p) {
    const nn::ParameterInfo& info = set.trainable()[p];
    const TensorView values = set.value(static_cast<int>(p));
    const TensorView gradient(analytic.data() + info.offset, DType::f64, Device::cpu(), values.shape);
    if (info.spec.name == cancelled) {
      for (const double value : gradient.span<double>()) {
        EXPECT_TRUE(std::abs(value) <= 1e-12) << cancelled << ": " << value;
      }
      continue;
    }
    pairs.push_back({info.spec.name, values, gradient});
  }
  return gradient_error([&] { return net.run(); }, pairs, 1e-6, samples);
}

}  // namespace lockstep::testing
