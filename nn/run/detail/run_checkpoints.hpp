#pragma once

#include <string_view>

#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Holds the progress of a run and writes its checkpoints: "last" when it is due, "best" and each best-STEP after
/// evaluations, and copies for restarts. Tells the observer of each checkpoint. All calls are collective if the run has
/// a folder for checkpoints.
class RunCheckpoints {
 public:
  /// Discards the best value in `progress` if it is one of another metric than this run's.
  RunCheckpoints(const RunArguments& run, RunProgress progress);
  [[nodiscard]] const RunProgress& progress() const { return progress_; }

  void before_first_step();  ///< writes "last" if RunOptions::checkpoint_first is set
  /// Returns true if a checkpoint or a copy for restarts is due after this step. take_due() then makes what is due.
  [[nodiscard]] bool due() const { return checkpoint_due() || copy_due(); }
  void take_due();
  void save_last();
  /// Puts the results of an evaluation into the progress. Returns true if the evaluation is the best so far.
  [[nodiscard]] bool judge(const EvaluationEvent& test);
  /// Writes the checkpoints after an evaluation. `best` is the result of judge().
  void save_evaluated(bool best);

 private:
  [[nodiscard]] bool checkpoint_due() const;
  [[nodiscard]] bool copy_due() const;
  [[nodiscard]] std::int64_t step() const { return run_.trainer.position().step; }
  [[nodiscard]] RunOptions::Place place() const;
  [[nodiscard]] CheckpointStore store() const { return CheckpointStore(place().path); }
  /// Discards the best value if the checkpoint "best" was deleted. The next evaluation is then the best.
  void forget_missing_best();
  /// Returns whether this step's evaluation, of value `value`, gets a checkpoint best-STEP; equal on every rank.
  [[nodiscard]] bool among_the_best(double value);
  void remove_fallen_out();
  void note_progress();
  void write(std::string_view name);

  const RunArguments& run_;
  RunProgress progress_;
  BestCheckpoints kept_;  ///< decides on rank 0 which checkpoints best-STEP stay
  bool writes_;           ///< true: the run has a folder for checkpoints
  bool keeps_several_;
};

}  // namespace lockstep::nn::detail
