#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/restart_copies.hpp>
#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn::detail {

/// The state that a run begins with. Decides which state --resume, --init, --evaluate, the folder of results and an
/// earlier start of the job mean, and reads it. Collective. Throws the errors of Session::agree().
class StartingPoint {
 public:
  /// Locks the folder of results, if a run has written to it, and finds the state. Changes resume, init, evaluate and
  /// overwrite in the options to what they mean here.
  StartingPoint(RunSite& site, RestartCopies& copies);
  /// The checkpoint from which the run continues; empty: none.
  [[nodiscard]] const std::string& resumed() const { return resumed_; }
  /// Identity and progress in the checkpoint that is resumed or evaluated; none: there is no such checkpoint.
  [[nodiscard]] const std::optional<CheckpointState>& saved() const { return saved_; }
  /// True when the checkpoint is one of the folder of results, but not its last/. Known after load().
  [[nodiscard]] bool rolls_back() const { return rolls_back_; }

  /// Reads the state into the trainer and returns where the run then stands. Prints what a user should know.
  [[nodiscard]] RunProgress load(const TrainingInputs& inputs, Trainer& trainer, const RunIdentity& identity);

 private:
  [[nodiscard]] bool trains() const { return !o_.dry_run && o_.evaluate.empty(); }
  void look_for_earlier_start();
  void find_resumed();
  /// Returns the best checkpoint of a folder of results, as people mean it, else the newest one. Collective.
  [[nodiscard]] std::string best_in(const std::string& path);
  void read_saved();
  /// Decides whether the run continues from a checkpoint of its folder other than last/, and which one is its best now.
  void settle_best(const BestBy& best, RunProgress& progress);

  RunSite& site_;
  TrainingOptions& o_;
  std::string resumed_;
  std::optional<CheckpointState> saved_;
  bool rolls_back_ = false;
};

}  // namespace lockstep::nn::detail
