#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/restart_copies.hpp>
#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn::detail {

/// The state that a run begins with: which one --resume, --init, --evaluate, the folder of results and an earlier start
/// of the job mean, and reading it. Collective. Errors are those of Session::agree().
class StartingPoint {
 public:
  /// Locks the folder, if a run has written to it, and finds the state. In the options, resume, init, evaluate and
  /// overwrite become what they mean here.
  StartingPoint(RunSite& site, RestartCopies& copies);
  /// The checkpoint that the run goes on from; empty: none.
  [[nodiscard]] const std::string& resumed() const { return resumed_; }
  /// What the checkpoint that is resumed or evaluated says of its run; none: there is no such checkpoint.
  [[nodiscard]] const std::optional<CheckpointState>& saved() const { return saved_; }
  /// The checkpoint is one of the folder of results, and not its last/. Known after load().
  [[nodiscard]] bool rolls_back() const { return rolls_back_; }

  /// Reads the state into the trainer; where the run stands then. Prints what a user should know.
  [[nodiscard]] RunProgress load(const TrainingInputs& inputs, Trainer& trainer, const RunIdentity& identity);

 private:
  [[nodiscard]] bool trains() const { return !o_.dry_run && o_.evaluate.empty(); }
  void look_for_earlier_start();
  void find_resumed();
  /// A folder of results stands for its best checkpoint, as people mean it, else for its newest.
  [[nodiscard]] std::string best_in(const std::string& path);
  void read_saved();
  /// Whether the run goes on from a checkpoint of its folder other than last/, and which its best one is now.
  void settle_best(const BestBy& best, RunProgress& progress);

  RunSite& site_;
  TrainingOptions& o_;
  std::string resumed_;
  std::optional<CheckpointState> saved_;
  bool rolls_back_ = false;
};

}  // namespace lockstep::nn::detail
