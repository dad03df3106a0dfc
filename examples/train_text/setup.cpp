#include "setup.hpp"

#include <algorithm>

#include <lockstep/nn/plan/precision.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace train_text {

namespace nn = lockstep::nn;

nn::TrainerOptions trainer_options(const Options& o, const TextWindows& train, int ranks) {
  lockstep::require<lockstep::UsageError>(o.batch_size >= ranks, "--batch-size is ", o.batch_size,
                                          ", expected at least one window for each of the ", ranks, " ranks");
  lockstep::require<lockstep::DataError>(train.size() >= o.batch_size, train.name(), " has ", train.size(),
                                         " windows of --length ", o.length, ", expected at least --batch-size ",
                                         o.batch_size);
  const nn::Precision precision = nn::parse_precision(o.dtype);
  nn::TrainerOptions options;
  options.global_batch = o.batch_size;
  options.seed = o.seed;
  options.plan.dtype = precision.dtype;
  options.plan.tf32 = precision.tf32;
  options.optimizer = {.kind = nn::OptimizerKind::adamw,
                       .clip_norm = 1,
                       .loss_scale = nn::resolved(nn::parse_loss_scale("auto"), precision.dtype)};
  options.weight_decay = 0.1;
  options.decay_all = false;
  options.loader_workers = 0;  // a window is a copy of some bytes
  const std::int64_t steps = o.epochs * (train.size() / o.batch_size);
  options.schedule = {
      .kind = nn::Schedule::Kind::cosine, .base = o.lr, .total_steps = o.steps > 0 ? std::min(steps, o.steps) : steps};
  options.schedule.warmup_steps = nn::warmup_steps(options.schedule.total_steps);
  return options;
}

nn::Console::Options console_options(const Options& o, const nn::Trainer& trainer) {
  return {.terminal = nn::output_is_terminal(),
          .batches_per_epoch = trainer.batches_per_epoch(),
          .epochs = o.epochs,
          .total_steps = trainer.options().schedule.total_steps,
          .samples = "windows"};
}

SamplingOptions sampling_options(const Options& o, const nn::Trainer& trainer) {
  return {.bytes = o.sample,
          .prompt = o.prompt,
          .temperature = o.temperature,
          .seed = o.seed,
          .plan = {.dtype = trainer.options().plan.dtype, .tf32 = trainer.options().plan.tf32}};
}

}  // namespace train_text
