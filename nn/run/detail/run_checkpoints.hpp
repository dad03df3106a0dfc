#pragma once

#include <string_view>

#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Where a run stands, and its checkpoints: "last" when it is due, "best" and each best-STEP of evaluations, copies for
/// restarts. Tells the observer. All calls are collective, unless there is no folder.
class RunCheckpoints {
 public:
  /// A progress whose best one is by another metric has none.
  RunCheckpoints(const RunArguments& run, RunProgress progress);
  [[nodiscard]] const RunProgress& progress() const { return progress_; }

  void before_first_step();  ///< RunOptions::checkpoint_first
  /// Whether a checkpoint or a copy is due after this step, which take_due() makes.
  [[nodiscard]] bool due() const { return checkpoint_due() || copy_due(); }
  void take_due();
  void save_last();
  /// Takes the results of an evaluation; whether it is the best so far.
  [[nodiscard]] bool judge(const EvaluationEvent& test);
  /// The checkpoints after an evaluation. best: as judge() said.
  void save_evaluated(bool best);

 private:
  [[nodiscard]] bool checkpoint_due() const;
  [[nodiscard]] bool copy_due() const;
  [[nodiscard]] std::int64_t step() const { return run_.trainer.position().step; }
  [[nodiscard]] RunOptions::Place place() const;
  [[nodiscard]] CheckpointStore store() const { return CheckpointStore(place().path); }
  /// "best" may have been deleted: then no checkpoint tells of it, and the next evaluation is the best.
  void forget_missing_best();
  /// Whether the evaluation of this step has a "best-STEP". The same on every rank.
  [[nodiscard]] bool among_the_best(double value);
  void remove_fallen_out();
  void note_progress();
  void write(std::string_view name);

  const RunArguments& run_;
  RunProgress progress_;
  BestCheckpoints kept_;  ///< as rank 0 finds them
  bool writes_;           ///< there is a folder
  bool keeps_several_;
};

}  // namespace lockstep::nn::detail
