#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/restart_copies.hpp>
#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn::detail {

/// Finds and reads the state with which a run begins. --resume, --init, --evaluate, the folder of results and an
/// earlier start of the job decide which state that is. Collective. Throws the errors of Session::agree().
class StartingPoint {
 public:
  /// Locks the folder of results, if a run has written to it, and finds the state. Replaces resume, init, evaluate and
  /// overwrite in the options by their resolved values.
  StartingPoint(RunSite& site, RestartCopies& copies);
  /// Returns the checkpoint from which the run continues, or an empty text.
  [[nodiscard]] const std::string& resumed() const { return resumed_; }
  /// Returns identity and progress in the checkpoint that is resumed or evaluated; no value without such a checkpoint.
  [[nodiscard]] const std::optional<CheckpointState>& saved() const { return saved_; }
  /// Returns true if the checkpoint is in the folder of results but is not its last/. Valid after load().
  [[nodiscard]] bool rolls_back() const { return rolls_back_; }

  /// Reads the state into the trainer and returns the progress of the run. Prints lines that a user should know.
  [[nodiscard]] RunProgress load(const TrainingInputs& inputs, Trainer& trainer, const RunIdentity& identity);

 private:
  [[nodiscard]] bool trains() const { return !o_.dry_run && o_.evaluate.empty(); }
  void look_for_earlier_start();
  void find_resumed();
  /// Returns the best checkpoint if `path` is a folder of results, else the checkpoint that `path` means. Collective.
  [[nodiscard]] std::string best_in(const std::string& path);
  void read_saved();
  /// Decides whether the run continues from a checkpoint of its folder other than last/, and finds the best one for it.
  void settle_best(const BestBy& best, RunProgress& progress);

  RunSite& site_;
  TrainingOptions& o_;
  std::string resumed_;
  std::optional<CheckpointState> saved_;
  bool rolls_back_ = false;
};

}  // namespace lockstep::nn::detail
