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
  std::string checkpoint_dir{};  ///< folder of "last" and "best"; empty: no checkpoints
  /// Current place of checkpoint_dir. `path` is another path to checkpoint_dir that stays right while the folder is
  /// moved; errors show `name` instead of `path`. Before each checkpoint rank 0 calls checkpoint_place, if given.
  struct Place {
    std::string name;
    std::string path;
  };
  std::function<Place()> checkpoint_place{};
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints within an epoch; 0: no such checkpoints
  /// true: the run begins with a checkpoint that is not "last" of checkpoint_dir. The run then writes "last" before the
  /// first step, so that "last" belongs to this run even if the run fails.
  bool checkpoint_first = false;
  std::int64_t copy_every = 0;  ///< steps between calls of `copy` within an epoch; 0: no calls
  /// Function that keeps the run's state for a restart outside of checkpoints (app/memory_checkpoints.hpp). Not called
  /// when a checkpoint is due. Collective: given on all ranks or on none.
  std::function<void(const RunProgress& progress)> copy{};
  std::int64_t check_replicas = 0;   ///< steps between comparisons of the ranks' parameters; 0: no comparisons
  int keep = 0;                      ///< number of earlier checkpoints that stay as "last.1", "last.2", ...
  std::vector<RunMetric> metrics{};  ///< your own metrics, with the same names on all ranks
  BestBy best{};
  /// If above 1, this number of the best checkpoints stay as "best-STEP" (BestCheckpoints), in addition to "best".
  int keep_best = 1;
  std::int64_t patience = 0;  ///< evaluations without a new best after which the run finishes; 0: never
  double max_seconds = 0;     ///< time after which the run stops with a checkpoint, as with `stop`; 0: never
  /// If a signal handler on any rank sets this number, the run stops with a checkpoint. A stop at the last step of an
  /// epoch comes after its evaluation; a stop at the last step of the run changes nothing. nullptr on all ranks or on
  /// none.
  const std::atomic<int>* stop = nullptr;
  /// Seconds within which the run reacts to a stop. If a step takes longer, the run reacts after that step.
  double stop_within = 0.5;
};

/// Trains until the epochs or steps are done, with steps, reports, and an evaluation and a checkpoint after each epoch
/// and at the end. Prints nothing; observers print. `progress` comes from a checkpoint or is new.
///
/// A report does not stop the device, because it uses sums that are already on the host. A report is made as soon as
/// every rank has these sums, Trainer::steps_under_way() steps after the report's last step. Only evaluations and
/// checkpoints wait.
///
/// Collective. comm::ReplicaError on every rank if a comparison of the parameters finds a difference. GradientError if
/// TrainStepOptions::check_gradients finds gradients that are not finite and no update may be skipped: skip_non_finite,
/// clip_norm and loss scale are all off. After either error the checkpoints stay as they are. UsageError for options
/// out of range, and on every rank if the ranks differ in options or in the position.
RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer);

/// Makes the evaluation that run_training() makes after an epoch. The first evaluation gives the test set's loss and
/// accuracies, and the metrics with of_evaluation. With a moving average, a second evaluation gives the loss and
/// accuracy of the averaged weights as metrics. `observer` is told when the first evaluation begins, of each of its
/// micro-batches, and when both are done. Collective.
EvaluationEvent run_evaluation(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                               RunObserver& observer);
/// Adds to `schema` the options for the length of a run and for what the run keeps.
void describe(Schema& schema, RunOptions& options);

}  // namespace lockstep::nn
