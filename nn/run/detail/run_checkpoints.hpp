#pragma once

#include <string_view>

#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Holds the progress of a run and writes its checkpoints: "last" when it is due, "best" and best-STEP after
/// evaluations, and copies for restarts (RunOptions::copy). Calls the observer for each checkpoint. All functions are
/// collective if the run has a folder for checkpoints.
class RunCheckpoints {
 public:
  /// Discards the best value in `progress` if it belongs to another metric than RunOptions::best.
  RunCheckpoints(const RunArguments& run, RunProgress progress);
  [[nodiscard]] const RunProgress& progress() const { return progress_; }

  void before_first_step();
  /// Returns true if a checkpoint or a copy for restarts (RunOptions::copy) is due after this step. The caller must
  /// then call take_due(), which makes the checkpoint or the copy.
  [[nodiscard]] bool due() const { return checkpoint_due() || copy_due(); }
  void take_due();
  void save_last();
  /// Stores the results of an evaluation in the progress. Returns true if the evaluation is the best so far.
  [[nodiscard]] bool judge(const EvaluationEvent& test);
  /// Writes the checkpoints after an evaluation. `best` must be the result of judge().
  void save_evaluated(bool best);

 private:
  [[nodiscard]] bool checkpoint_due() const;
  [[nodiscard]] bool copy_due() const;
  [[nodiscard]] std::int64_t step() const { return run_.trainer.position().step; }
  [[nodiscard]] RunOptions::Place place() const;
  [[nodiscard]] CheckpointStore store() const { return CheckpointStore(place().path); }
  /// Discards the best value if the folder "best" was deleted. The next evaluation then becomes the best.
  void forget_missing_best();
  /// Returns true if this step's evaluation, with value `value`, gets a checkpoint best-STEP. The result is the same on
  /// every rank.
  [[nodiscard]] bool among_the_best(double value);
  void remove_fallen_out();
  void note_progress();
  void write(std::string_view name);

  const RunArguments& run_;
  RunProgress progress_;
  BestCheckpoints kept_;  ///< used only on rank 0, to select the checkpoints best-STEP that stay
  bool writes_;           ///< true: the run has a folder for checkpoints
  bool keeps_several_;
};

}  // namespace lockstep::nn::detail
