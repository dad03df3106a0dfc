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
  std::int64_t steps = 0;        ///< the run stops after this many steps in all; 0: no limit
  std::int64_t log_every = 10;   ///< steps between reports
  std::string checkpoint_dir{};  ///< folder of "last" and "best"; empty: no checkpoints
  /// Asked before each checkpoint on rank 0, if given: where checkpoint_dir is now. `path` is another path to
  /// checkpoint_dir that stays right while the folder is moved; errors show `name` instead.
  struct Place {
    std::string name;
    std::string path;
  };
  std::function<Place()> checkpoint_place{};
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints, besides those at the end of an epoch; 0: none
  /// true: the run begins with a checkpoint that is not "last" of checkpoint_dir. It then writes "last" before the
  /// first step, so that "last" belongs to this run, however the run ends.
  bool checkpoint_first = false;
  std::int64_t copy_every = 0;  ///< steps between calls of `copy` within an epoch; 0: none
  /// Keeps the state for a restart, elsewhere than checkpoints are kept (app/memory_checkpoints.hpp). Collective: given
  /// on all ranks or on none. Not called when a checkpoint is due.
  std::function<void(const RunProgress& progress)> copy{};
  std::int64_t check_replicas = 0;   ///< steps between comparisons of the parameters over the ranks; 0: none
  int keep = 0;                      ///< number of earlier checkpoints that stay as "last.1", "last.2", ...
  std::vector<RunMetric> metrics{};  ///< your own metrics; the same names on all ranks
  BestBy best{};
  /// Above 1: so many of the best checkpoints stay as "best-STEP" (BestCheckpoints), together with "best".
  int keep_best = 1;
  std::int64_t patience = 0;  ///< the run finishes after so many evaluations without a new best; 0: never
  double max_seconds = 0;     ///< the run stops with a checkpoint after this time, like `stop`; 0: never
  /// Set by a signal handler on any rank: the run stops with a checkpoint. After the last step of an epoch its
  /// evaluation comes first; after the last step of the run nothing is left to stop. nullptr on all ranks or on none.
  const std::atomic<int>* stop = nullptr;
  /// Seconds within which the run reacts to a stop if steps are shorter; else it reacts after a step.
  double stop_within = 0.5;
};

/// Trains until the epochs or steps are done: steps, reports, an evaluation and a checkpoint after each epoch (and at
/// the end). Does not print: observers do. `progress` comes from a checkpoint, or is a fresh one.
///
/// A report does not stop the device: it uses sums that earlier steps have brought to the host. It is made as soon as
/// every rank has them, Trainer::steps_under_way() steps after its last step. Only evaluations and checkpoints wait.
///
/// Collective. comm::ReplicaError on every rank when a comparison of the parameters finds a difference. GradientError
/// when TrainStepOptions::check_gradients finds gradients that are not finite, and neither skip_non_finite, a clip_norm
/// nor a loss scale lets an update be skipped. After both the checkpoints stay as they are. UsageError for options out
/// of range, and on every rank when the ranks differ in options or in the position.
RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer);

/// Makes the evaluation that run_training() makes after an epoch: the test set's loss and accuracies, and the metrics
/// with of_evaluation; then, as metrics, loss and accuracy for the moving average, if there is one. The observer is
/// told of the begin and the micro-batches of the first evaluation, and of the end of both. Collective.
EvaluationEvent run_evaluation(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                               RunObserver& observer);
/// Adds the options that decide how long a run is, and what it keeps.
void describe(Schema& schema, RunOptions& options);

}  // namespace lockstep::nn
