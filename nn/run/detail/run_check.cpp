#include <lockstep/nn/run/detail/run_check.hpp>

#include <cstdint>
#include <limits>
#include <string>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/run/detail/run_metrics.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn::detail {

namespace {

/// Checks the ranges of the numbers in `options`. Returns a text of these numbers, which must be equal on all ranks.
std::string checked_amounts(const RunOptions& options) {
  struct Amount {
    const char* name;
    std::int64_t value;
    std::int64_t least;
  };
  std::string text;
  for (const Amount& amount :
       {Amount{"epochs", options.epochs, 0}, Amount{"steps", options.steps, 0}, Amount{"keep", options.keep, 0},
        Amount{"keep_best", options.keep_best, 1}, Amount{"log_every", options.log_every, 1},
        Amount{"checkpoint_every", options.checkpoint_every, 0},
        Amount{"copy_every", options.copy ? options.copy_every : 0, 0},
        Amount{"check_replicas", options.check_replicas, 0}, Amount{"patience", options.patience, 0}}) {
    require<UsageError>(amount.value >= amount.least, "training run: ", amount.name, " is ", amount.value,
                        ", expected at least ", amount.least);
    text += concat(amount.name, ' ', amount.value, '\n');
  }
  return text;
}

void require_best(const RunArguments& run) {
  const auto& [trainer, control, identity, options, best, observer] = run;
  const bool regression = is_regression(trainer);
  bool known = best.metric == "test_accuracy" || best.metric == "test_loss" ||
               (trainer.options().step.average.on() &&
                (best.metric == kAverageLoss || (best.metric == kAverageAccuracy && !regression)));
  for (const RunMetric& metric : options.metrics) {
    known = known || (metric.of_evaluation && metric.name == best.metric);
  }
  require<UsageError>(known, "training run: RunOptions::best is by '", best.metric,
                      "', expected test_accuracy, test_loss or a metric of evaluations");
  require<UsageError>(best.metric != "test_accuracy" || !regression,
                      "training run: RunOptions::best is by test_accuracy, which a regression does not have, "
                      "expected test_loss or a metric of evaluations");
}

}  // namespace

void require_run(const RunArguments& run, const RunProgress& progress) {
  const auto& [trainer, control, identity, options, best, observer] = run;
  const Position& at = trainer.position();
  const std::int64_t per_epoch = trainer.batches_per_epoch();
  require<UsageError>(options.stop_within >= 0, "training run: stop_within is ", options.stop_within,
                      " seconds, expected at least 0");
  require<UsageError>(options.max_seconds >= 0, "training run: max_seconds is ", options.max_seconds,
                      ", expected at least 0");
  std::string same =
      concat("stop ", options.stop != nullptr || options.max_seconds > 0 ? "on" : "off", "\nmax seconds ",
             exact_text(options.max_seconds), "\ncheckpoints ", options.checkpoint_dir.empty() ? "off" : "on",
             options.checkpoint_first ? ", one first" : "", "\nepoch ", at.epoch, ", batch ", at.batch, ", step ",
             at.step, "\nsteps under way ", trainer.steps_under_way(), "\nbest by ", best.metric,
             best.lowest ? ", lowest" : ", highest", ", so far ",
             progress.best ? exact_text(*progress.best) : std::string("none"), ", ", progress.since_best,
             " evaluations ago\n");
  same += checked_amounts(options);
  require<UsageError>(options.epochs <= std::numeric_limits<std::int64_t>::max() / per_epoch,
                      "training run: epochs is ", options.epochs, ", of ", per_epoch,
                      " steps each, expected fewer than 2^63 steps");
  same += checked(options.metrics);
  require_best(run);
  comm::require_same_on_all_ranks(control, same);
}

}  // namespace lockstep::nn::detail
