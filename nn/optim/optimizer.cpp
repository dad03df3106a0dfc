#include <lockstep/nn/optim/optimizer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <span>

#include <lockstep/kernels/clip.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/loss_scale.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/nn/optim/detail/rule.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn {

RuleMaker make_sgd, make_adam, make_lars, make_muon, make_own;

namespace {

constexpr std::array kRules{
    RuleTraits{.name = "sgd", .make = make_sgd, .momentum = true},
    RuleTraits{.name = "adam", .make = make_adam, .betas = true, .epsilon = true, .normalised = true},
    RuleTraits{.name = "adamw",
               .make = make_adam,
               .help = "Adam with decoupled weight decay",
               .betas = true,
               .epsilon = true,
               .decoupled = true,
               .normalised = true},
    RuleTraits{.name = "lars",
               .make = make_lars,
               .momentum = true,
               .epsilon = true,
               .trust_coefficient = true,
               .layer_norms = true,
               .rate = 100},  // the usual rate is 100 times sgd's, because trust ratios are small
    RuleTraits{.name = "muon",
               .make = make_muon,
               .help = "Muon for hidden matrices, adamw for all other parameters",
               .momentum = true,
               .betas = true,
               .epsilon = true,
               .decoupled = true,
               .whole_matrices = true,
               .normalised = true},
};
constexpr RuleTraits kOwn{.name = {}, .make = make_own};

/// Joins `names` with commas, but puts `last` before the last name: "sgd, lars or muon".
std::string listed(const std::vector<std::string_view>& names, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == names.size() ? last : ", ", names[i]);
  }
  return text;
}

std::string all_names() {
  std::vector<std::string_view> names(kRules.size());
  std::transform(kRules.begin(), kRules.end(), names.begin(), [](const RuleTraits& rule) { return rule.name; });
  return listed(names, " or ");
}

}  // namespace

std::span<const RuleTraits> built_in_rules() {
  return kRules;
}

const RuleTraits& traits_of(OptimizerKind kind) {
  return kRules.at(static_cast<std::size_t>(kind));
}

const RuleTraits& traits_of(const OptimizerOptions& options) {
  return options.rule ? kOwn : traits_of(options.kind);
}

std::string rules_with(bool RuleTraits::*trait, std::string_view last) {
  std::vector<std::string_view> names;
  for (const RuleTraits& rule : kRules) {
    if (rule.*trait) {
      names.push_back(rule.name);
    }
  }
  return listed(names, last);
}

std::string_view name_of(OptimizerKind kind) {
  return traits_of(kind).name;
}

std::string name_of(const OptimizerOptions& options) {
  return options.rule ? options.rule->name() : std::string(name_of(options.kind));
}

OptimizerKind parse_optimizer(std::string_view name) {
  const auto found = std::find_if(kRules.begin(), kRules.end(), [&](const auto& rule) { return rule.name == name; });
  require<UsageError>(found != kRules.end(), "optimizer is '", name, "', expected ", all_names());
  return static_cast<OptimizerKind>(found - kRules.begin());
}

std::map<std::string, std::string> rule_texts(const OptimizerOptions& options) {
  if (options.rule) {
    return {{"optimizer_settings", options.rule->settings()}};
  }
  const auto exact = std::setprecision(17);
  const RuleTraits& rule = traits_of(options);
  std::map<std::string, std::string> texts;
  if (rule.momentum) {
    texts = {{"momentum", concat(exact, options.momentum)}, {"nesterov", concat(options.nesterov)}};
  }
  if (rule.betas) {
    texts["betas"] = concat(exact, options.beta1, ' ', options.beta2);
  }
  if (rule.epsilon) {
    texts["epsilon"] = concat(exact, options.epsilon);
  }
  if (rule.trust_coefficient) {
    texts["trust_coefficient"] = concat(exact, options.trust_coefficient);
  }
  return texts;
}

std::string text_of(const OptimizerOptions& options, const ParameterSet& parameters) {
  const RuleTraits& rule = traits_of(options);
  std::vector<std::string> parts;
  const auto add = [&](bool given, const auto&... text) {
    if (given) {
      parts.push_back(concat(text...));
    }
  };
  const auto hidden = [](const ParameterInfo& info) { return is_hidden_matrix(info.spec); };
  const bool no_matrix =
      rule.whole_matrices && std::none_of(parameters.parameters().begin(), parameters.parameters().end(), hidden);
  add(options.rule != nullptr, "a rule of the program");
  if (options.rule && !options.rule->settings().empty()) {
    parts.back() = options.rule->settings();
  }
  add(no_matrix, "no hidden matrix");
  add(rule.momentum && !no_matrix, "momentum ", options.momentum, options.nesterov ? " (Nesterov)" : "",
      rule.whole_matrices ? " of hidden matrices" : "");
  add(rule.betas, rule.momentum ? "adamw's " : "", "betas ", options.beta1, ' ', options.beta2, ", epsilon ",
      options.epsilon);
  add(rule.trust_coefficient, "trust coefficient ", options.trust_coefficient);
  add(options.clip_norm > 0, "clip norm ", options.clip_norm);
  add(options.clip_value > 0, "gradients clipped at ", options.clip_value);
  add(options.loss_scale.scales(), "loss scale ", text_of(options.loss_scale));
  add(options.skip_non_finite, "steps that are not finite skipped");
  return joined(parts, ", ");
}

Optimizer::Optimizer(Context& context, ParameterSet& parameters, const OptimizerOptions& options,
                     const TensorView& divisor)
    : parameters_(parameters), options_(options), divisor_(divisor) {
  require<UsageError>(std::isfinite(options.clip_norm) && options.clip_norm >= 0, "optimizer: clip_norm is ",
                      options.clip_norm, ", expected a number of at least 0");
  require<UsageError>(std::isfinite(options.clip_value) && options.clip_value >= 0, "optimizer: clip_value is ",
                      options.clip_value, ", expected a number of at least 0");
  require_loss_scale(options.loss_scale);
  if (options.loss_scale.scales()) {
    add_loss_scale(context, parameters, options.loss_scale.initial, options.loss_scale.dynamic());
  }
  const bool divided = !parameters.state_shards().empty();
  rule_ = std::make_unique<Rule>(traits_of(options).make(context, parameters, options));
  for (const std::string& state : rule_->states) {
    states_.push_back(parameters.add_state(context, state));
  }
  state_ranges_.resize(states_.size());
  if (rule_->counts) {
    step_ = parameters.add_counter(context, "step");
  }
  const std::size_t workspace =
      std::max(measures() ? ops::squared_norm_workspace_bytes(context, parameters.gradients()) : std::size_t{0},
               rule_->workspace_bytes);
  if (!counts() && !has_factor() && workspace == 0) {
    return;
  }
  constexpr std::size_t kSlot = 64;  // number of bytes reserved for a scalar
  const auto norms = static_cast<std::int64_t>(2 * parameters.state_shards().size());
  const std::int64_t rows = divided ? rule_->sum_rows : 0;
  const std::size_t norm_bytes = align_up(static_cast<std::size_t>(norms) * sizeof(double), kSlot);
  const std::size_t sums = norm_bytes + align_up(static_cast<std::size_t>(2 * rows) * sizeof(double), kSlot);
  memory_ = Buffer(5 * kSlot + sums + workspace, context);
  if (rows > 0) {
    sums_ = TensorView(memory_.data() + 5 * kSlot + norm_bytes, DType::f64, context.device(), Shape{rows, 2});
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
  workspace_ = TensorView(memory_.data() + 5 * kSlot + sums, DType::u8, context.device(),
                          Shape{static_cast<std::int64_t>(workspace)});
}

Optimizer::~Optimizer() = default;

std::size_t Optimizer::bytes() const {
  return memory_.bytes() + rule_->bytes;
}

void Optimizer::measure(Context& context, const SumOverRanks& sum) {
  const std::span<const comm::Shards> ranges = parameters_.state_shards();
  if (ranges.empty()) {
    ops::squared_norm(context, parameters_.gradients(), squared_norm_, workspace_);
    return;
  }
  // squared_norm_ has two numbers for each range: the squared norm of this rank's part, and the squared norm of the
  // elements that are too few to be divided over the ranks. Only rank 0 adds these elements; other ranks add 0.
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
  return {.segments = rule_->by_tensor ? parameters_.tensor_segments() : parameters_.segments(),
          .begin = begin,
          .learning_rate = learning_rate,
          .factor = has_factor() ? factor_ : TensorView(),
          .skip = has_factor() ? skip_ : TensorView(),
          .parameters = range(parameters_.values()),
          .gradients = range(parameters_.gradients()),
          .copy = parameters_.rounds() ? range(parameters_.weights()) : TensorView(),
          .clip_value = options_.clip_value};
}

void Optimizer::update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end) {
  const ops::ArenaUpdate update = update_of(learning_rate, begin, end);
  require<StateError>(!sums_.given() || has_sums_, "optimizer: update() of ", name_of(options_),
                      " with states divided over ranks, expected update_shards()");
  std::transform(states_.begin(), states_.end(), state_ranges_.begin(),
                 [&](const TensorView& state) { return parameters_.state_range(state, begin, end); });
  parameters_.changed();
  rule_->update(context, update, {.states = state_ranges_, .step = step_, .workspace = workspace_, .sums = sums_});
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
  if (sums_.given()) {
    ops::fill(context, 0, sums_);
    for (const comm::Shards& range : ranges) {
      for_own(range, [&](std::int64_t begin, std::int64_t end, bool of_all) {
        if (!of_all || parameters_.shard() == 0) {  // all ranks own the undivided elements; only rank 0 adds them
          rule_->add_sums(context, update_of(learning_rate, begin, end), sums_, workspace_);
        }
      });
    }
    sum(sums_);
  }
  has_sums_ = true;
  for (auto k = static_cast<int>(ranges.size()) - 1; k >= 0; --k) {
    for_own(ranges[static_cast<std::size_t>(k)],
            [&](std::int64_t begin, std::int64_t end, bool) { update(context, learning_rate, begin, end); });
    updated(k);
  }
  has_sums_ = false;
}

void describe(Schema& schema, OptimizerOptions& options) {
  schema.group("Training");
  std::string help = "update rule: " + all_names();
  for (const RuleTraits& rule : kRules) {
    help += rule.help.empty() ? "" : concat("; ", rule.name, ": ", rule.help);
  }
  schema
      .named(
          "optimizer", options.kind, [](OptimizerKind kind) { return name_of(kind); }, parse_optimizer, help)
      .is_common();
  schema
      .add("momentum", options.momentum,
           concat("momentum of ", rules_with(&RuleTraits::momentum, " and "),
                  " (0.95 with --nesterov is usual for muon)"))
      .fraction();
  schema.add("nesterov", options.nesterov, "use Nesterov momentum");
  const std::string betas = rules_with(&RuleTraits::betas, " and ");
  schema.add("beta1", options.beta1, "decay of the mean of gradients, for " + betas).fraction();
  schema.add("beta2", options.beta2, "decay of the mean of squared gradients, for " + betas).fraction();
  schema
      .add("epsilon", options.epsilon,
           "number added to the denominator of an update; lars: number added to the norm of the gradients")
      .between(1e-30, 1e30);
  schema
      .add("trust_coefficient", options.trust_coefficient,
           "with --optimizer lars: trust coefficient, the norm of an update before the learning rate, relative to the "
           "norm of the updated tensor")
      .above(0);
  schema.add("clip_value", options.clip_value, "clip gradient values to [-value, value], after --clip-norm; 0: off")
      .at_least(0);
  schema
      .add("clip_norm", options.clip_norm,
           "largest norm of all gradients together; larger gradients are scaled down; a step whose norm is not finite "
           "is skipped; 0: off")
      .at_least(0)
      .is_common();
  schema.add("skip_non_finite", options.skip_non_finite, "skip updates whose gradients are not finite");
  describe(schema, options.loss_scale);
}

}  // namespace lockstep::nn
