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
  std::int64_t steps = 0;        ///< total number of steps after which the run stops; 0: no limit
  std::int64_t log_every = 10;   ///< number of steps between reports
  std::string checkpoint_dir{};  ///< folder for "last" and "best"; empty: the run writes no checkpoints
  /// Location of checkpoint_dir. `path` is a path to the folder that stays valid if the folder is moved. Error texts
  /// show `name` instead of `path`. Before each checkpoint, rank 0 calls checkpoint_place, unless it is empty, to get
  /// the current location.
  struct Place {
    std::string name;
    std::string path;
  };
  std::function<Place()> checkpoint_place{};
  std::int64_t checkpoint_every = 0;  ///< number of steps between checkpoints within an epoch; 0: none
  /// Must be true if the run continues from a checkpoint other than "last" of checkpoint_dir. The run then writes
  /// "last" before the first step, so that "last" belongs to this run even if the run fails early.
  bool checkpoint_first = false;
  std::int64_t copy_every = 0;  ///< number of steps between calls of `copy` within an epoch; 0: no calls
  /// Function that copies the run's state, so that the run can restart without a checkpoint
  /// (app/memory_checkpoints.hpp). Not called after steps with a checkpoint. Collective: must be given on all ranks or
  /// on none.
  std::function<void(const RunProgress& progress)> copy{};
  std::int64_t check_replicas = 0;  ///< number of steps between comparisons of the ranks' parameters; 0: no comparisons
  int keep = 0;                     ///< number of earlier checkpoints to keep as "last.1", "last.2", ...
  std::vector<RunMetric> metrics{};  ///< program's own metrics, with the same names on all ranks
  BestBy best{};
  /// If above 1, the keep_best best checkpoints are kept as "best-STEP" (BestCheckpoints), in addition to "best".
  int keep_best = 1;
  std::int64_t patience = 0;  ///< number of evaluations without a new best value after which the run ends; 0: never
  double max_seconds = 0;     ///< seconds after which the run stops with a checkpoint, as with `stop`; 0: never
  /// The run stops with a checkpoint after a signal handler on any rank has set this number. At the last step of an
  /// epoch, the run stops only after the epoch's evaluation. At the last step of the run, the signal has no effect.
  /// Must be nullptr on all ranks or on none.
  const std::atomic<int>* stop = nullptr;
  /// Seconds within which the run reacts to a stop. If a step takes longer, the run reacts after the step.
  double stop_within = 0.5;
};

/// Trains until all epochs or steps are done. Evaluates and writes a checkpoint after each epoch and at the end. Prints
/// nothing, but calls the observer, which may print. `progress` must come from a checkpoint or be new. Collective.
///
/// Only evaluations and checkpoints wait for the device. A report does not wait: it is made Trainer::steps_under_way()
/// steps after the last step that it covers, when the sums of these steps are on the host of every rank.
///
/// Throws comm::ReplicaError on every rank if a comparison of the ranks' parameters finds a difference. Throws
/// GradientError if TrainStepOptions::check_gradients finds gradients that are not finite and no option lets the
/// optimizer skip the update (skip_non_finite, clip_norm, loss scale). These two errors leave the existing checkpoints
/// unchanged. Throws UsageError for options out of range, and on every rank if the ranks differ in options or in the
/// position.
RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer);

/// Makes the same evaluation as run_training() after an epoch. The first evaluation gives the loss and accuracies on
/// the test set, and the metrics with of_evaluation. With a moving average of the weights, a second evaluation gives
/// the average's loss and accuracy as metrics. `observer` is called when the first evaluation begins, after each of its
/// micro-batches, and when both evaluations are done. Collective.
EvaluationEvent run_evaluation(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                               RunObserver& observer);
/// Adds to `schema` the options for the length of a run, and for the files that the run keeps.
void describe(Schema& schema, RunOptions& options);

}  // namespace lockstep::nn
