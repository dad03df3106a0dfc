#include <lockstep/nn/run/training_run.hpp>

#include <algorithm>
#include <utility>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/run/detail/clock.hpp>
#include <lockstep/nn/run/detail/run_check.hpp>
#include <lockstep/nn/run/detail/run_checkpoints.hpp>
#include <lockstep/nn/run/detail/run_metrics.hpp>
#include <lockstep/nn/run/detail/run_stop.hpp>
#include <lockstep/nn/run/detail/step_results.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

namespace {

/// Implements run_training() after its arguments are checked: calls all parts of a run in the right order.
class Run {
 public:
  Run(const detail::RunArguments& run, RunProgress progress)
      : run_(run), checkpoints_(run, std::move(progress)), results_(run), stop_(run) {}

  RunResult run() {
    tell_begin();
    checkpoints_.before_first_step();
    RunResult result{.end = run_epochs(), .progress = checkpoints_.progress()};
    result.progress.position = at();
    run_.observer.on_run_end(result);
    return result;
  }

 private:
  [[nodiscard]] const Position& at() const { return run_.trainer.position(); }
  [[nodiscard]] bool steps_done() const { return run_.options.steps > 0 && at().step >= run_.options.steps; }

  void tell_begin() {
    const std::int64_t per_epoch = run_.trainer.batches_per_epoch();
    const std::int64_t steps_of_epochs = at().step + run_.trainer.steps_until(run_.options.epochs);
    const bool cut = run_.options.steps > 0 && run_.options.steps < steps_of_epochs;
    const std::int64_t total = cut ? run_.options.steps : steps_of_epochs;
    // Number of batches from the beginning of this epoch to the end of the run.
    const std::int64_t batches = at().batch + std::max<std::int64_t>(total - at().step, 0);
    const std::int64_t reached = at().epoch + (batches + per_epoch - 1) / per_epoch;
    run_.observer.on_run_begin({.position = at(),
                                .epochs = cut ? std::min(reached, run_.options.epochs) : run_.options.epochs,
                                .total_steps = total,
                                .batches_per_epoch = per_epoch});
  }

  RunEnd run_epochs() {
    while (at().epoch < run_.options.epochs && !steps_done()) {
      if (run_.options.patience > 0 && checkpoints_.progress().since_best >= run_.options.patience) {
        return RunEnd::no_better;
      }
      // If the run is stopped at the last step of an epoch, run_epoch() has already done the epoch's evaluation and
      // checkpoints.
      if (stop_.end() || !run_epoch()) {
        return *stop_.end();
      }
    }
    return RunEnd::finished;
  }

  /// Runs one epoch. Returns false if the run was stopped within the epoch, after writing a checkpoint.
  bool run_epoch() {
    const std::int64_t epoch = at().epoch;
    const double begin = detail::now_s();
    run_.observer.on_epoch_begin({.epoch = epoch, .step = at().step});
    results_.begin_epoch();
    while (at().epoch == epoch && !steps_done()) {
      const StepEvent event{.epoch = epoch, .step = at().step + 1, .learning_rate = run_.trainer.learning_rate()};
      const std::int64_t batch = at().batch + 1;
      run_.observer.on_step_begin(event);
      run_.trainer.step();
      run_.observer.on_step_end(event);
      const bool last = at().epoch != epoch || steps_done();
      results_.enqueued(event, batch, last);
      if (run_.options.check_replicas > 0 && at().step % run_.options.check_replicas == 0) {
        run_.trainer.doing("comparing the parameters of all ranks after step");
        run_.trainer.train_step().check_replicas(run_.control);
      }
      stop_.look();
      if (!last && stop_.end()) {
        results_.finish();
        checkpoints_.save_last();
        return false;
      }
      if (!last && checkpoints_.due()) {
        results_.finish();
        const double due = detail::now_s();
        checkpoints_.take_due();
        results_.leave_out(detail::now_s() - due);
      }
    }
    end_epoch(epoch, begin);
    return true;
  }

  void end_epoch(std::int64_t epoch, double begin) {
    EpochEvent event{.epoch = epoch + 1,
                     .step = at().step,
                     .test = detail::evaluate(run_.trainer, run_.control, run_.options.metrics, run_.observer),
                     .gradient_bytes = run_.trainer.reducer().gradient_bytes(),
                     .sent_bytes = run_.trainer.reducer().sent_bytes()};
    results_.describe_epoch(event);
    event.best = checkpoints_.judge(event.test);
    event.skipped_updates = run_.trainer.skipped_updates();
    if (const std::optional<MemoryUsage> usage = run_.trainer.context().memory().usage()) {
      event.peak_bytes = static_cast<std::int64_t>(usage->peak);
    }
    event.seconds = detail::now_s() - begin;
    run_.trainer.doing("reporting after step");
    run_.observer.on_epoch_end(event);
    checkpoints_.save_evaluated(event.best);
  }

  const detail::RunArguments& run_;
  detail::RunCheckpoints checkpoints_;
  detail::StepResults results_;
  detail::RunStop stop_;
};

}  // namespace

EvaluationEvent run_evaluation(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                               RunObserver& observer) {
  comm::require_same_on_all_ranks(control, detail::checked(metrics));
  return detail::evaluate(trainer, control, metrics, observer);
}

RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer) {
  const detail::RunArguments run{
      trainer,
      control,
      identity,
      options,
      resolved(options.best, trainer.options().step.average.on(), detail::is_regression(trainer)),
      observer};
  detail::require_run(run, progress);
  return Run(run, std::move(progress)).run();
}

void describe(Schema& schema, RunOptions& options) {
  schema.group("Training");
  schema.add("epochs", options.epochs, "number of passes over the training set").at_least(1).is_common();
  schema
      .add("steps", options.steps,
           "end the run, and its schedule, after N updates; with --resume give the N of the first start; 0: no limit")
      .at_least(0)
      .is_common();
  schema.group("Ranks");
  schema
      .add("check_replicas", options.check_replicas,
           "steps between bitwise comparisons of the parameters of all ranks; a difference ends the job; 0: never")
      .at_least(0);
  schema.group("Results");
  schema.add("log_every", options.log_every, "steps between reports").at_least(1);
  schema.add("checkpoint_every", options.checkpoint_every, "steps between checkpoints within an epoch; 0: none")
      .at_least(0)
      .is_common();
  schema
      .add("copy_every", options.copy_every,
           "steps between copies of the training state to the memory of the nodes (/dev/shm), from which a job with "
           "--max-restarts goes on; 0: none")
      .at_least(0);
  schema
      .add("patience", options.patience,
           "number of epochs in a row without a new best result after which the run ends; 0: never")
      .at_least(0);
  schema
      .add("max_time", options.max_seconds,
           "seconds of training after which the run stops with a checkpoint; the training time of earlier starts of "
           "the job counts; the exit code is 75; 0: never")
      .at_least(0)
      .is_common();
  schema
      .add("keep", options.keep,
           "number of earlier checkpoints that stay next to OUT/last, as OUT/last.1, OUT/last.2, ...")
      .at_least(0);
  schema
      .add("keep_best", options.keep_best,
           "number of best checkpoints that stay, as OUT/best-STEP; 1: the best alone, as OUT/best")
      .at_least(1);
}

}  // namespace lockstep::nn
