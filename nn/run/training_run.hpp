#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/checkpoints/best_checkpoints.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

struct RunOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;        ///< stop after this many steps of the whole run; 0: no limit
  std::int64_t log_every = 10;   ///< steps between reports
  std::string checkpoint_dir{};  ///< "last" and "best" are kept there; empty: no checkpoints
  /// Asked before each checkpoint on rank 0, if it is given: where checkpoint_dir is now. `path` is another path to it
  /// that stays right while the folder is moved; errors have the name instead.
  struct Place {
    std::string name;
    std::string path;
  };
  std::function<Place()> checkpoint_place{};
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints beside those at the end of an epoch; 0: none
  /// The run begins with a checkpoint of checkpoint_dir other than "last": "last" is written before the first step, so
  /// that it is of this run, whatever ends it.
  bool checkpoint_first = false;
  std::int64_t copy_every = 0;  ///< steps between calls of `copy` within an epoch; 0: none
  /// Keeps the state for a restart, elsewhere than checkpoints are kept (app/memory_checkpoints.hpp). Collective:
  /// given on all ranks or on none. Not called where a checkpoint is due.
  std::function<void(const RunProgress& progress)> copy{};
  std::int64_t check_replicas = 0;   ///< steps between comparisons of the parameters over the ranks; 0: none
  int keep = 0;                      ///< earlier checkpoints that stay as "last.1", "last.2", ...
  std::vector<RunMetric> metrics{};  ///< of one's own; the same names on all ranks
  BestBy best{};
  /// Above 1: the checkpoints of so many best evaluations stay as "best-STEP" (BestCheckpoints), beside "best".
  int keep_best = 1;
  std::int64_t patience = 0;  ///< finish after so many evaluations in a row that were not the best; 0: never
  double max_seconds = 0;     ///< stop with a checkpoint after this time, as `stop` does; 0: never
  /// Set by a signal handler, on any rank: stop with a checkpoint. At the last step of an epoch its evaluation comes
  /// first; at the last step of the run nothing is left to stop. nullptr on all ranks or on none.
  const std::atomic<int>* stop = nullptr;
  double stop_within =
      0.5;  ///< seconds in which a stop is heard where steps are shorter; else it is heard after a step
};

/// Trains until the epochs or steps are done: steps, reports, an evaluation and a checkpoint after each epoch (and at
/// the end). Does not print: that is what observers do. `progress` is what a checkpoint brought, or a fresh one.
///
/// A report does not stop the device: it is made of sums that earlier steps have brought to the host, as soon as every
/// rank has them, which is Trainer::steps_under_way() steps after the step that it ends with. Only evaluations and
/// checkpoints wait.
///
/// Collective. comm::ReplicaError on every rank when a comparison of the parameters finds a difference, GradientError
/// when gradients are not finite where TrainStepOptions::check_gradients looks for them and neither skip_non_finite, a
/// clip_norm nor a loss scale lets an update be skipped; the checkpoints stay as they are. UsageError for options out
/// of range, and on every rank when the ranks differ in them or in the position.
RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer);

/// The evaluation that run_training() makes after an epoch, by itself: the test set's loss and accuracies, and the
/// metrics with of_evaluation; then the test set's loss and accuracy for the moving average, where there is one, as
/// metrics. The observer is told of the first one's begin, its micro-batches, and the end. Collective.
EvaluationEvent run_evaluation(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                               RunObserver& observer);
/// How long a run is, and what it keeps.
void describe(Schema& schema, RunOptions& options);

}  // namespace lockstep::nn
