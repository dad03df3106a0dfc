#include <lockstep/app/options/training_options.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/nn/data/sampler.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/nn/plan/precision.hpp>
#include <lockstep/nn/run/observers/run_trace.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

double bucket_megabytes(const std::string& text) {
  const double value = number_in<double>(text).value_or(std::nan(""));
  require<UsageError>(
      value == 0 || (value * (1 << 20) >= 1 && value <= 1e6), "--bucket-mb is '", text,
      "', expected 0 or MB, 1e-6 (a byte) to 1000000; without this option, --cost FILE plans by measured costs");
  return value;
}

DType sent_as(const std::string& reduce_dtype) {
  return reduce_dtype == "bf16" ? DType::bf16 : reduce_dtype == "fp16" ? DType::f16 : DType::f32;
}

/// Names of strategies in other tools: names that mean ddp or zero1 here, and names without an equivalent here.
constexpr std::array<std::string_view, 8> kDdpElsewhere{"auto",      "dp",       "ddp2",         "ddp_cpu",
                                                        "ddp_spawn", "ddp_fork", "ddp_notebook", "horovod"};
// The next two constants also match longer names that begin with them.
constexpr std::string_view kUnusedParameters = "ddp_find_unused_parameters";
constexpr std::array<std::string_view, 3> kDividedElsewhere{"fsdp", "deepspeed", "zero"};
constexpr std::array<std::string_view, 4> kZero1Elsewhere{"ddp_sharded", "ddp_sharded_spawn", "deepspeed_stage_1",
                                                          "zero"};

void require_optimizer(const TrainingOptions& o) {
  const OptimizerOptions& optimizer = o.trainer.step.optimizer;
  const RuleTraits& rule = traits_of(optimizer.kind);
  require<UsageError>(!optimizer.nesterov || (rule.momentum && optimizer.momentum > 0),
                      "--nesterov is on with --optimizer ", rule.name, " and momentum ", optimizer.momentum,
                      ", expected --optimizer ", rules_with(&RuleTraits::momentum, " or "),
                      " and a --momentum above 0");
  require<UsageError>(optimizer.clip_value == 0 || !rule.layer_norms, "--clip-value is ", optimizer.clip_value,
                      " with --optimizer ", rule.name, ", expected 0: ", rule.name,
                      " takes the norms of gradients as they are");
  (void)given_learning_rate(o);
}

/// Checks the options about schedule, warm-up, moving average and parameter groups.
void require_recipe(const TrainingOptions& o) {
  const TrainStepOptions& step = o.trainer.step;
  const auto need = [](bool right, const char* option, const auto& value, const char* expected) {
    require<UsageError>(right, option, " is ", value, ", expected ", expected);
  };
  double before = 0;
  for (const double milestone : o.milestones) {
    need(std::isfinite(milestone) && milestone > before && milestone <= 1e9, "--milestones", milestone,
         "epochs above 0 that ascend");
    before = milestone;
  }
  const Schedule& schedule = o.trainer.schedule;
  const bool linear = schedule.warmup == Schedule::WarmUp::linear;
  const double factor = schedule.warmup_factor.value_or(1);
  need(factor <= 1 && (linear ? factor >= 0 : factor > 0), "--warmup-factor", factor,
       linear ? "0 to 1" : "above 0, at most 1, unless --warmup is linear");
  need(linear || schedule.warmup_factor, "--warmup", name_of(schedule.warmup), "linear, or a --warmup-factor with it");
  const double epochs = o.warmup_epochs.value_or(0);
  need(!o.warmup_epochs || o.warmup_steps < 0, "--warmup-epochs", epochs, "none with --warmup-steps");

  const MovingAverageOptions& average = step.average;
  require<UsageError>(
      average.on() || o.chosen.contains("ema") || (average.every == 1 && average.copied_updates == -1 && !average.ramp),
      "--ema-every, --ema-warmup or --ema-ramp is given without --ema, expected --ema with them");
  const auto decay = [&](const char* option, const std::optional<double>& value) {
    need(!value || step.decay_all || !o.chosen.contains("no_decay_norm"), option, value.value_or(0),
         "none with --no-decay-norm");
  };
  decay("--norm-weight-decay", step.groups.norm_weight_decay);
  decay("--bias-weight-decay", step.groups.bias_weight_decay);
}

constexpr std::int64_t kMaxVirtualRanks = 65536;

/// Throws UsageError for options, such as --virtual-ranks, that do not fit the value of --reproducible.
void require_world(const TrainingOptions& o, const NamedStrategy& strategy) {
  const TrainStepOptions& step = o.trainer.step;
  const bool world = o.reproducible == "world";
  const std::int64_t all = step.virtual_ranks;
  require<UsageError>(world || all == 0, "--virtual-ranks is ", all, " with --reproducible ", o.reproducible,
                      ", expected --reproducible world");
  if (!world) {
    return;
  }
  require<UsageError>(all > 0 && all <= kMaxVirtualRanks && std::has_single_bit(static_cast<std::uint64_t>(all)),
                      "--virtual-ranks is ", all, ", expected a power of two up to ", kMaxVirtualRanks,
                      " with --reproducible world");
  const auto beside = [](bool fits, const char* option, const auto& value, const char* expected) {
    require<UsageError>(fits, option, " is ", value, " with --reproducible world, expected ", expected);
  };
  beside(o.trainer.accumulate == 1, "--accumulate", o.trainer.accumulate, "1: each virtual rank is a micro-batch");
  beside(o.threads <= 1, "--threads", o.threads, "1: sums within a layer depend on the number of threads");
  beside(o.overlap != comm::RankContextOptions::Overlap::on, "--overlap", "on",
         "auto: gradients are complete when the last virtual rank is");
  beside(!step.sync_batch_norm, "--sync-batch-norm", "on", "none: each virtual rank has statistics of its own");
  beside(o.reduce_dtype == "fp32", "--reduce-dtype", o.reduce_dtype, "fp32: sums would be rounded where ranks meet");
  require<UsageError>(strategy.strategy != Strategy::zero1 || step.optimizer.clip_norm == 0, "--clip-norm is ",
                      step.optimizer.clip_norm, " with --reproducible world and --strategy ", o.strategy,
                      ", expected 0 or ddp: zero1 adds the norm by rank");
  const RuleTraits& rule = traits_of(step.optimizer.kind);
  require<UsageError>(strategy.strategy != Strategy::zero1 || !rule.layer_norms, "--optimizer is ", rule.name,
                      " with --reproducible world and --strategy ", o.strategy,
                      ", expected ddp: zero1 adds the norms by rank");
  beside(step.cuda_graph != CudaGraph::on, "--cuda-graph", "on", "auto: a rank computes several virtual ones");
  beside(o.tune == Tune::off || o.tune == Tune::automatic || !o.choices.empty(), "--tune",
         o.tune == Tune::on ? "on" : "fast", "--choices, which keeps the timings: other timings give other bits");
}

/// Throws UsageError for options that do not fit the value of --compress.
void require_compression(const TrainingOptions& o, const NamedStrategy& strategy) {
  const TrainStepOptions& step = o.trainer.step;
  const comm::SumOptions sums = compression_named(o.compress);
  const auto beside = [&](bool fits, const std::string& option, const auto& value, const auto&... expected) {
    require<UsageError>(o.compress == "none" || fits, "--compress is ", o.compress, " with ", option, ' ', value,
                        ", expected ", expected...);
  };
  beside(o.reduce_dtype == "fp32", "--reduce-dtype", o.reduce_dtype, "one of the two");
  beside(o.reproducible != "world", "--reproducible", o.reproducible, "none: sums would be rounded where ranks meet");
  beside(step.plan.dtype != DType::f64 || size_of(sums.dtype) != 2, "--dtype", "f64",
         "none: gradients are f64 and sent as they are");
  comm::SumOptions together = sums;
  together.order = o.reproducible == "layout" ? comm::SumOrder::ranks : sums.order;
  const LossScale scale = resolved(step.optimizer.loss_scale, step.plan.dtype);
  const auto wrong =
      comm::misfit(together, {.divided = strategy.strategy == Strategy::zero1, .loss_scale = scale.scales()});
  if (!wrong) {
    return;
  }
  const std::string reason = wrong->reason.empty() ? "" : ": " + wrong->reason;
  beside(wrong->field != comm::SumField::order, "--reproducible", o.reproducible, "run", reason);
  beside(wrong->field != comm::SumField::strategy, "--strategy", o.strategy, "ddp", reason);
  beside(wrong->field != comm::SumField::loss_scale, "a loss scale of", text_of(scale), "--loss-scale off", reason);
}

}  // namespace

NamedStrategy strategy_named(const std::string& name) {
  const auto among = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (name == "ddp" || name == "zero1") {
    return {.strategy = parse_strategy(name)};
  }
  if (name == "single") {
    return {.one_rank = true};
  }
  if (name.starts_with(kUnusedParameters)) {
    return {.note = concat("'", name, "' is ddp here: a plan knows which gradients it makes")};
  }
  if (among(kDdpElsewhere)) {
    return {.note = concat("'", name, "' is ddp here: one process a device, gradients are summed on all ranks")};
  }
  if (among(kZero1Elsewhere)) {
    return {.strategy = Strategy::zero1, .note = concat("'", name, "' is zero1 here: optimizer states are divided")};
  }
  const bool divided = std::any_of(kDividedElsewhere.begin(), kDividedElsewhere.end(),
                                   [&](std::string_view begin) { return name.starts_with(begin); });
  throw UsageError(concat("--strategy is '", name, "', expected ddp, zero1 or single",
                          divided ? ": every rank holds all parameters and gradients here, zero1 divides the "
                                    "optimizer's states"
                                  : ""));
}

comm::SumOptions compression_named(const std::string& name) {
  const std::optional<comm::SumOptions> sums = comm::sums_named(name);
  require<UsageError>(sums.has_value(), "--compress is '", name, "', expected ", comm::expected_sum_names());
  return *sums;
}

void require_training_options(const TrainingOptions& o) {
  TrainingOptions described = o;
  Schema schema;
  describe(schema, described);
  schema.check();
  if (!o.bucket_mb.empty()) {
    (void)bucket_megabytes(o.bucket_mb);
  }
  require<UsageError>(o.bucket_mb.empty() || o.cost.empty(), "--bucket-mb is '", o.bucket_mb, "' and --cost is '",
                      o.cost, "', expected one of the two");
  require<UsageError>(o.watchdog == 0 || (std::isfinite(o.watchdog) && o.watchdog >= 1), "--watchdog is ", o.watchdog,
                      ", expected seconds, at least 1, or 0 for none");
  require<UsageError>(!o.stall_report || *o.stall_report == 0 || (*o.stall_report > 0 && *o.stall_report < o.watchdog),
                      "--stall-report is ", o.stall_report.value_or(0), " with --watchdog ", o.watchdog,
                      ", expected fewer seconds than --watchdog, or 0 for none");
  require<UsageError>(o.choices.empty() || o.tune != Tune::off, "--choices is '", o.choices,
                      "', expected none with --tune off");
  require<UsageError>(!o.out.empty(), "--out is empty, expected a folder");
  const bool more = !o.init.empty() || !o.resume.empty();
  require<UsageError>(o.evaluate.empty() || !more, "--evaluate is ", o.evaluate, " with ",
                      o.init.empty() ? "--resume" : "--init", ", expected --evaluate alone");
  require<UsageError>(o.init.empty() || o.resume.empty() || o.resume == "auto", "--init is ", o.init, " with --resume ",
                      o.resume, ", expected one of the two, or --resume auto");
  if (!o.trace_steps.empty()) {
    (void)parse_trace_steps(o.trace_steps);
  }
  require<UsageError>(o.trace_steps.empty() || !o.trace.empty(), "--trace-steps is ", o.trace_steps,
                      " without --trace, expected a file for the timeline");
  const bool predicts = o.dry_run && !o.describe_gpu.empty();
  require<UsageError>(o.trace.empty() || (o.evaluate.empty() && (!o.dry_run || predicts)), "--trace is ", o.trace,
                      " with ", o.dry_run ? "--dry-run" : "--evaluate", ", expected a run that trains",
                      o.dry_run ? ", or --describe-gpu" : "");
  require<UsageError>(!o.fused_norms || !o.describe_gpu.empty(),
                      "--fused-norms without --describe-gpu, expected it with --describe-gpu: on a GPU the choices of "
                      "convolutions decide (--tune)");
  if (!o.describe_gpu.empty()) {
    require<UsageError>(o.dry_run, "--describe-gpu is ", o.describe_gpu, " without --dry-run, expected both");
    require<UsageError>(o.trace_steps.empty(), "--trace-steps is ", o.trace_steps,
                        " with --describe-gpu, expected none: its timeline has one step several times");
    (void)known_gpu(o.describe_gpu);
  }
  require<UsageError>(!o.overwrite || o.resume.empty(), "--overwrite with --resume, expected one of the two");
  require_optimizer(o);
  require_recipe(o);
  const NamedStrategy strategy = strategy_named(o.strategy);
  require_world(o, strategy);
  const RuleTraits& rule = traits_of(o.trainer.step.optimizer.kind);
  require<UsageError>(strategy.strategy != Strategy::zero1 || !rule.whole_matrices, "--optimizer is ", rule.name,
                      " with --strategy ", o.strategy, ", expected ddp: ", rule.name, " needs whole matrices");
  require_compression(o, strategy);
  require<UsageError>(o.trainer.step.plan.dtype != DType::f64 || o.reduce_dtype == "fp32", "--reduce-dtype is ",
                      o.reduce_dtype, " with --dtype f64, expected none: gradients are f64 and sent as they are");
}

std::optional<double> given_learning_rate(const TrainingOptions& options) {
  if (options.lr == "auto") {
    return std::nullopt;
  }
  const double value = number_in<double>(options.lr).value_or(std::nan(""));
  require<UsageError>(value > 0 && std::isfinite(value), "--lr is '", options.lr,
                      "', expected a positive number or auto");
  return value;
}

comm::RankContextOptions rank_context_options(const TrainingOptions& options, bool bind_near_gpu) {
  const bool world = options.trainer.step.virtual_ranks > 0;
  return {.threads = world ? 1 : options.threads,
          .overlap = world ? comm::RankContextOptions::Overlap::off : options.overlap,
          .dependent_launches = options.dependent_launches,
          .bind_near_gpu = bind_near_gpu};
}

ResolvedTraining resolve(const TrainingOptions& o, std::int64_t training_samples, const BaseRate& rate, int ranks,
                         int rank, const comm::CpuShare& share) {
  ResolvedTraining resolved;
  require<UsageError>(o.trainer.step.virtual_ranks % ranks == 0, "--virtual-ranks is ", o.trainer.step.virtual_ranks,
                      " and the job has ", ranks, " ranks, expected a number of ranks that divides it");
  resolved.rules = run_rules({.ranks = ranks,
                              .global_batch = o.batch_per_rank ? o.batch_size : o.batch_size.value_or(o.default_batch),
                              .batch_per_rank = o.batch_per_rank,
                              .accumulate = o.trainer.accumulate,
                              .virtual_ranks = o.trainer.step.virtual_ranks,
                              .learning_rate = given_learning_rate(o),
                              .base_learning_rate = rate.base,
                              .reference_batch = rate.reference,
                              .workers = o.workers < 0 ? std::nullopt : std::optional(o.workers),
                              .processors = share.processors,
                              .sharers = share.sharers});
  const RunRules& rules = resolved.rules;
  TrainerOptions& t = resolved.trainer;
  t = o.trainer;
  t.global_batch = rules.global_batch;
  t.accumulate = rules.accumulate;
  t.step.virtual_ranks = rules.virtual_ranks;
  t.step.optimizer.loss_scale = nn::resolved(t.step.optimizer.loss_scale, t.step.plan.dtype);
  t.loader_workers = rules.workers;
  t.prefetch = rules.prefetch;
  t.step.sums = compression_named(o.compress);
  if (o.reduce_dtype != "fp32") {
    t.step.sums.dtype = sent_as(o.reduce_dtype);
  }
  if (o.reproducible != "run") {
    t.step.sums.order = o.reproducible == "layout" ? comm::SumOrder::ranks : comm::SumOrder::tree;
  }
  const NamedStrategy strategy = strategy_named(o.strategy);
  require<UsageError>(!strategy.one_rank || ranks == 1, "--strategy is single and the job has ", ranks,
                      " ranks, expected 1, or ddp");
  t.step.strategy = strategy.strategy;
  t.step.buckets.bucket_bytes =
      o.bucket_mb.empty() ? 0 : static_cast<std::int64_t>(bucket_megabytes(o.bucket_mb) * (1 << 20));

  require<UsageError>(o.trainer.keep_last || rules.global_batch <= training_samples,
                      o.batch_per_rank ? "--batch-per-rank" : "--batch-size", " is ",
                      o.batch_per_rank ? *o.batch_per_rank : rules.global_batch, ", a batch of ", rules.global_batch,
                      ", larger than the training set of ", training_samples, " samples; expected a batch of at most ",
                      training_samples);
  const Sampler sampler({.size = training_samples,
                         .batch_size = rules.global_batch,
                         .ranks = ranks,
                         .rank = rank,
                         .shuffle = true,
                         .keep_last = o.trainer.keep_last,
                         .seed = o.trainer.step.seed,
                         .chunk = o.trainer.shuffle_chunk});
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // a double holds all numbers up to this one exactly
  require<UsageError>(o.run.epochs <= kMostSteps / sampler.batches(), "--epochs is ", o.run.epochs, ", of ",
                      sampler.batches(), " batches each, expected at most ", kMostSteps / sampler.batches());
  resolved.total_steps = o.run.epochs * sampler.batches();
  if (o.run.steps > 0 && o.run.steps <= resolved.total_steps) {
    resolved.total_steps = o.run.steps;
    t.schedule_by_updates = true;
  }
  const auto steps_of = [&](double epochs) {
    return static_cast<std::int64_t>(std::llround(epochs * static_cast<double>(sampler.batches())));
  };
  t.schedule.base = rules.learning_rate;
  t.schedule.total_steps = resolved.total_steps;
  t.schedule.warmup_steps = o.warmup_epochs       ? steps_of(*o.warmup_epochs)
                            : o.warmup_steps >= 0 ? o.warmup_steps
                                                  : warmup_steps(resolved.total_steps);
  require<UsageError>(o.trainer.schedule.end <= t.schedule.base, "--lr-end is ", o.trainer.schedule.end,
                      ", expected at most the rate after the ", "warm-up, ", t.schedule.base);
  t.schedule.milestones = {resolved.total_steps / 2, resolved.total_steps * 3 / 4};
  if (!o.milestones.empty()) {
    t.schedule.milestones.resize(o.milestones.size());
    std::transform(o.milestones.begin(), o.milestones.end(), t.schedule.milestones.begin(), steps_of);
  }
  t.step.average.copied_updates =
      t.step.average.copied_updates >= 0 ? t.step.average.copied_updates : t.schedule.warmup_steps;
  resolved.warnings = warnings(rules, traits_of(t.step.optimizer.kind).layer_norms, t.schedule.warmup_steps);
  return resolved;
}

}  // namespace lockstep::nn
