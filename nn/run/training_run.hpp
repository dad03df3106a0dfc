#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

/// What a run tells about itself. Called on every rank with the same values; only rank 0 has a reason to listen.
struct StepEvent {
  std::int64_t epoch = 0;
  std::int64_t step = 0;   ///< steps done
  std::int64_t batch = 0;  ///< batches of this epoch done
  double loss = 0;         ///< mean over the samples of all ranks since the last event
  double accuracy = 0;     ///< on the training batches
  double learning_rate = 0;
  double images_per_second = 0;
  double comm_exposed_s = 0;  ///< seconds a step that gradient communication was not hidden, this rank; negative: steps
                              ///< ran as a CUDA graph, which is not timed
};

struct EpochEvent {
  std::int64_t epoch = 0;  ///< epochs done
  std::int64_t step = 0;
  double train_loss = 0;
  double train_accuracy = 0;
  double test_loss = 0;
  double test_accuracy = 0;
  int top_k = 0;                   ///< PlanOptions::top_k
  double test_top_k_accuracy = 0;  ///< with top_k: labels among so many largest logits
  double images_per_second = 0;    ///< training only, evaluation left out
  double comm_exposed_s = 0;       ///< seconds over the epoch, this rank; negative as above
  double seconds = 0;
  std::int64_t skipped_updates = 0;  ///< Trainer::skipped_updates()
  bool best = false;
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_step(const StepEvent&) {}
  virtual void on_epoch(const EpochEvent&) {}
};

struct RunOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;             ///< stop after this many steps of the whole run; 0: no limit
  std::int64_t log_every = 10;        ///< steps between StepEvents
  std::string checkpoint_dir{};       ///< "last" and "best" are kept there; empty: no checkpoints
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints beside those at the end of an epoch; 0: none
  /// Set by a signal handler: stop at the next StepEvent, with a checkpoint. At the last step of an epoch its
  /// evaluation comes first; at the last step of the run nothing is left to stop.
  const std::atomic<int>* stop = nullptr;
};

enum class RunEnd : unsigned char { finished, stopped };

struct RunResult {
  RunEnd end = RunEnd::finished;
  double test_accuracy = -1;  ///< of the last evaluation; -1: there was none
  double best_accuracy = -1;
};

/// Trains until the epochs or steps are done: steps, events, an evaluation and a checkpoint after each epoch (and at
/// the end). Collective. Does not print. `progress` is what a checkpoint brought, or a fresh one. UsageError for
/// options out of range, and on every rank when the ranks differ in them or in the position.
RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer);

}  // namespace lockstep::nn
