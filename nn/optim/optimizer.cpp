#include <lockstep/nn/optim/optimizer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include <lockstep/kernels/adam.hpp>
#include <lockstep/kernels/clip.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/lars.hpp>
#include <lockstep/kernels/loss_scale.hpp>
#include <lockstep/kernels/momentum.hpp>
#include <lockstep/kernels/muon.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/sgd.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>

namespace lockstep::nn {

namespace {

constexpr std::array<std::string_view, 5> kNames{"sgd", "adam", "adamw", "lars",
                                                 "muon"};  // in the order of OptimizerKind

bool is_adam(OptimizerKind kind) {
  return kind == OptimizerKind::adam || kind == OptimizerKind::adamw;
}

ops::AdamOptions adam_options(const OptimizerOptions& options) {
  return {.beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .decoupled = options.kind != OptimizerKind::adam};
}

ops::LarsOptions lars_options(const OptimizerOptions& options) {
  return {.momentum = options.momentum,
          .nesterov = options.nesterov,
          .trust_coefficient = options.trust_coefficient,
          .epsilon = options.epsilon};
}

ops::MuonOptions muon_options(const OptimizerOptions& options) {
  return {.momentum = options.momentum, .nesterov = options.nesterov};
}

}  // namespace

bool is_hidden_matrix(const ParameterSpec& spec) {
  return spec.trainable && spec.role == ParameterRole::weight && !spec.looked_up && !spec.last &&
         spec.shape.rank() >= 2 && spec.axes.front() == 0 && spec.shape.numel() > 0;
}

std::string_view name_of(OptimizerKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

std::string name_of(const OptimizerOptions& options) {
  return options.rule ? options.rule->name() : std::string(name_of(options.kind));
}

OptimizerKind parse_optimizer(std::string_view name) {
  const auto* found = std::find(kNames.begin(), kNames.end(), name);
  require<UsageError>(found != kNames.end(), "optimizer is '", name, "', expected sgd, adam, adamw, lars or muon");
  return static_cast<OptimizerKind>(found - kNames.begin());
}

Optimizer::Optimizer(Context& context, ParameterSet& parameters, const OptimizerOptions& options,
                     const TensorView& divisor)
    : parameters_(parameters), options_(options), divisor_(divisor) {
  require<UsageError>(std::isfinite(options.clip_norm) && options.clip_norm >= 0, "optimizer: clip_norm is ",
                      options.clip_norm, ", expected a number of at least 0");
  require<UsageError>(std::isfinite(options.clip_value) && options.clip_value >= 0, "optimizer: clip_value is ",
                      options.clip_value, ", expected a number of at least 0");
  require<UsageError>(options.clip_value == 0 || options.kind != OptimizerKind::lars || options.rule,
                      "optimizer: clip_value is ", options.clip_value,
                      " with lars, expected 0: lars takes the norms of gradients that are not clipped by value");
  require_loss_scale(options.loss_scale);
  if (options.loss_scale.scales()) {
    parameters.add_loss_scale(context, options.loss_scale.initial, options.loss_scale.dynamic());
  }
  const bool divided = !parameters.state_shards().empty();
  std::size_t workspace = measures() ? ops::squared_norm_workspace_bytes(context, parameters.gradients()) : 0;
  if (options.rule) {
    const std::string name = options.rule->name();
    require<UsageError>(!name.empty() && std::find(kNames.begin(), kNames.end(), name) == kNames.end(),
                        "optimizer: a rule has the name '", name, "', expected one that is not taken");
    for (const std::string& state : options.rule->states()) {
      rule_states_.push_back(parameters.add_state(context, state));
    }
    rule_range_.resize(rule_states_.size());
    step_ = parameters.add_counter(context, "step");
  } else if (is_adam(options.kind)) {
    ops::require_adam_options("optimizer", adam_options(options), parameters.dtype());
    first_moment_ = parameters.add_state(context, "exp_avg");
    second_moment_ = parameters.add_state(context, "exp_avg_sq");
    step_ = parameters.add_counter(context, "step");
  } else if (options.kind == OptimizerKind::muon) {
    require<UsageError>(!divided, "optimizer: muon beside states that are divided over ranks (zero1), expected ddp");
    ops::require_adam_options("optimizer", adam_options(options), parameters.dtype());
    ops::require_muon_options("optimizer", muon_options(options));
    first_moment_ = parameters.add_state(context, "exp_avg");
    second_moment_ = parameters.add_state(context, "exp_avg_sq");
    step_ = parameters.add_counter(context, "step");
    prepare_muon(context);
  } else {
    ops::require_momentum("optimizer", {options.momentum, options.nesterov});
    if (options.kind == OptimizerKind::lars) {
      ops::require_lars_options("optimizer", lars_options(options));
      workspace = std::max(workspace, ops::lars_workspace_bytes(parameters.tensor_segments()));
    }
    if (options.momentum > 0) {
      momentum_ = parameters.add_state(context, "momentum_buffer");
    }
  }
  if (!counts() && !has_factor() && workspace == 0) {
    return;
  }
  constexpr std::size_t kSlot = 64;  // bytes of a scalar
  const auto norms = static_cast<std::int64_t>(2 * parameters.state_shards().size());
  const std::int64_t tensors = divided && is_lars() ? ops::lars_rows(parameters.tensor_segments()) : 0;
  const std::size_t norm_bytes = align_up(static_cast<std::size_t>(norms) * sizeof(double), kSlot);
  const std::size_t squares = norm_bytes + align_up(static_cast<std::size_t>(2 * tensors) * sizeof(double), kSlot);
  memory_ = Buffer(5 * kSlot + squares + workspace, context);
  if (divided && is_lars()) {
    tensor_squares_ =
        TensorView(memory_.data() + 5 * kSlot + norm_bytes, DType::f64, context.device(), Shape{tensors, 2});
  }
  const auto scalar = [&](std::size_t slot, DType dtype) {
    return TensorView(memory_.data() + slot * kSlot, dtype, context.device(), Shape{});
  };
  factor_ = scalar(0, parameters.dtype());
  skip_ = scalar(1, DType::i32);
  if (measures()) {
    squared_norm_ = divided ? TensorView(memory_.data() + 5 * kSlot, DType::f64, context.device(), Shape{norms})
                            : scalar(2, DType::f64);
    norm_ = scalar(3, DType::f64);
    skipped_ = scalar(4, DType::i64);
    ops::fill(context, 0, skipped_);
  }
  workspace_ = TensorView(memory_.data() + 5 * kSlot + squares, DType::u8, context.device(),
                          Shape{static_cast<std::int64_t>(workspace)});
}

void Optimizer::prepare_muon(Context& context) {
  std::vector<Orthogonalizer::Matrix> matrices;
  for (std::size_t i = 0; i < parameters_.parameters().size(); ++i) {
    const ParameterInfo& info = parameters_.parameters()[i];
    ops::ArenaSegment& matrix = matrix_segments_.emplace_back(parameters_.tensor_segments()[i]);
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
  const DType compute = parameters_.rounds() ? parameters_.weight_dtype() : parameters_.dtype();
  orthogonalizer_.emplace(context, matrices, parameters_.dtype(), compute);
  direction_ = Buffer(static_cast<std::size_t>(parameters_.trainable_numel()) * size_of(parameters_.dtype()), context);
  ops::fill(context, 0,
            TensorView(direction_.data(), parameters_.dtype(), context.device(), {parameters_.trainable_numel()}));
}

void Optimizer::update_muon(Context& context, const ops::ArenaUpdate& update) {
  require<ShapeError>(update.begin == 0 && update.parameters.numel() == parameters_.trainable_numel(),
                      "optimizer: muon updates elements from ", update.begin, " on, ", update.parameters.numel(),
                      " of them, expected all ", parameters_.trainable_numel());
  const TensorView direction(direction_.data(), parameters_.dtype(), context.device(), update.parameters.shape);
  const auto own = [&](const TensorView& state) { return state.slice(0, 0, update.parameters.numel()); };
  ops::ArenaUpdate of_matrices = update;
  of_matrices.segments = matrix_segments_;
  of_matrices.copy = {};
  ops::muon_direction(context, muon_options(options_), of_matrices, own(first_moment_), direction);
  orthogonalizer_->run(context, direction);
  of_matrices.copy = update.copy;
  of_matrices.gradients = direction;
  of_matrices.factor = {};
  of_matrices.clip_value = 0;
  ops::sgd_update(context, {}, of_matrices, {});
  ops::ArenaUpdate of_others = update;
  of_others.segments = other_segments_;
  ops::adam_update(context, adam_options(options_), of_others, step_, own(first_moment_), own(second_moment_));
}

std::size_t Optimizer::bytes() const {
  return memory_.bytes() + direction_.bytes() + (orthogonalizer_ ? orthogonalizer_->bytes() : 0);
}

void Optimizer::measure(Context& context, const SumOverRanks& sum) {
  const std::span<const comm::Shards> ranges = parameters_.state_shards();
  if (ranges.empty()) {
    ops::squared_norm(context, parameters_.gradients(), squared_norm_, workspace_);
    return;
  }
  // Two numbers a range: of the own part, and of the rest, which rank 0 counts.
  std::int64_t place = 0;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    const TensorView to = squared_norm_.slice(0, place, place + 1).reshape({});
    if (begin < end) {
      ops::squared_norm(context, parameters_.gradients().slice(0, begin, end), to, workspace_);
    } else {
      ops::fill(context, 0, to);
    }
    ++place;
  };
  for (const comm::Shards& range : ranges) {
    const std::int64_t first = range.first_of(parameters_.shard());
    add(first, first + range.part);
    add(range.rest, parameters_.shard() == 0 ? range.end : range.rest);
  }
  sum(squared_norm_);
}

void Optimizer::begin(Context& context, const SumOverRanks& sum) {
  if (measures()) {
    measure(context, sum);
  }
  if (has_factor() || counts()) {
    ops::clip_factor(context, options_.clip_norm,
                     {.squared_norm = squared_norm_,
                      .loss_scale = parameters_.loss_scale(),
                      .divisor = divisor_,
                      .factor = factor_,
                      .skip = skip_,
                      .step = step_,
                      .skipped = skipped_,
                      .norm = norm_});
  }
  if (options_.loss_scale.dynamic()) {
    ops::loss_scale_update(context, options_.loss_scale.rule, skip_, parameters_.loss_scale(),
                           parameters_.loss_scale_good());
  }
}

ops::ArenaUpdate Optimizer::update_of(const TensorView& learning_rate, std::int64_t begin, std::int64_t end) const {
  const auto range = [&](const TensorView& arena) { return arena.given() ? arena.slice(0, begin, end) : TensorView(); };
  return {.segments = is_lars() ? parameters_.tensor_segments() : parameters_.segments(),
          .begin = begin,
          .learning_rate = learning_rate,
          .factor = has_factor() ? factor_ : TensorView(),
          .skip = has_factor() ? skip_ : TensorView(),
          .parameters = range(parameters_.values()),
          .gradients = range(parameters_.gradients()),
          .copy = parameters_.rounds() && !options_.rule ? range(parameters_.weights()) : TensorView(),
          .clip_value = options_.clip_value};
}

void Optimizer::update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end) {
  const auto state_range = [&](const TensorView& state) {
    return state.given() ? parameters_.state_range(state, begin, end) : TensorView();
  };
  const ops::ArenaUpdate update = update_of(learning_rate, begin, end);
  if (options_.rule) {
    std::transform(rule_states_.begin(), rule_states_.end(), rule_range_.begin(), state_range);
    ops::require_arena_update(context, options_.rule->name(), update, {});
    options_.rule->update(context, update, {.arenas = rule_range_, .step = step_});
    if (parameters_.rounds()) {
      ops::strided_copy(context, update.parameters, parameters_.weights().slice(0, begin, end));
    }
  } else if (is_adam(options_.kind)) {
    ops::adam_update(context, adam_options(options_), update, step_, state_range(first_moment_),
                     state_range(second_moment_));
  } else if (options_.kind == OptimizerKind::muon) {
    update_muon(context, update);
  } else if (is_lars()) {
    require<StateError>(!tensor_squares_.given() || has_squares_,
                        "optimizer: update() of lars with divided states, expected update_shards()");
    ops::lars_update(context, lars_options(options_), update, state_range(momentum_), workspace_, tensor_squares_);
  } else {
    ops::sgd_update(context, {.momentum = options_.momentum, .nesterov = options_.nesterov}, update,
                    state_range(momentum_));
  }
}

template <class F>
void Optimizer::for_own(const comm::Shards& range, F&& f) const {
  const std::int64_t first = range.first_of(parameters_.shard());
  if (range.part > 0) {
    f(first, first + range.part, false);
  }
  if (range.rest < range.end) {
    f(range.rest, range.end, true);
  }
}

void Optimizer::update_shards(Context& context, const TensorView& learning_rate, const SumOverRanks& sum,
                              const std::function<void(int range)>& updated) {
  begin(context, sum);
  const std::span<const comm::Shards> ranges = parameters_.state_shards();
  if (tensor_squares_.given() && tensor_squares_.numel() > 0) {
    ops::fill(context, 0, tensor_squares_);
    for (const comm::Shards& range : ranges) {
      for_own(range, [&](std::int64_t begin, std::int64_t end, bool of_all) {
        if (!of_all || parameters_.shard() == 0) {  // what all ranks have counts once
          ops::lars_squares(context, update_of(learning_rate, begin, end), tensor_squares_, workspace_);
        }
      });
    }
    sum(tensor_squares_);
  }
  has_squares_ = true;
  for (auto k = static_cast<int>(ranges.size()) - 1; k >= 0; --k) {
    for_own(ranges[static_cast<std::size_t>(k)],
            [&](std::int64_t begin, std::int64_t end, bool) { update(context, learning_rate, begin, end); });
    updated(k);
  }
  has_squares_ = false;
}

}  // namespace lockstep::nn
