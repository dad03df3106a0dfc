#pragma once

#include <optional>
#include <string>

#include <lockstep/app/detail/restart_copies.hpp>
#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/training_program.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn::detail {

/// Finds and reads the checkpoint or parameters with which a run begins. The choice depends on --resume, --init,
/// --evaluate, the folder of results and earlier starts of the job. Collective. Throws the errors of Session::agree().
class StartingPoint {
 public:
  /// Locks the folder of results, if a run has written to it. Finds the checkpoint or copy with which the run begins,
  /// if there is one, and sets the options `resume`, `init`, `evaluate` and `overwrite` in `site` accordingly.
  StartingPoint(RunSite& site, RestartCopies& copies);
  /// Returns the path of the checkpoint from which the run continues, or an empty text if the run begins anew.
  [[nodiscard]] const std::string& resumed() const { return resumed_; }
  /// Returns identity and progress from the resumed or evaluated checkpoint; no value if there is no such checkpoint.
  [[nodiscard]] const std::optional<CheckpointState>& saved() const { return saved_; }
  /// Returns true if resumed() is a checkpoint in the folder of results, but not last/ (the newest checkpoint). Valid
  /// after load().
  [[nodiscard]] bool rolls_back() const { return rolls_back_; }

  /// Reads the state into `trainer` and returns the progress of the run. Prints where the run continues, and how it
  /// differs from the earlier run.
  [[nodiscard]] RunProgress load(const TrainingInputs& inputs, Trainer& trainer, const RunIdentity& identity);

 private:
  [[nodiscard]] bool trains() const { return !o_.dry_run && o_.evaluate.empty(); }
  void look_for_earlier_start();
  void find_resumed();
  /// Returns the best checkpoint if `path` is a folder of results, else the checkpoint that `path` means. Collective.
  [[nodiscard]] std::string best_in(const std::string& path);
  void read_saved();
  /// Sets rolls_back_. Finds the best of the run's checkpoints up to the step at which the run continues, and sets
  /// progress.best to the metric of this checkpoint.
  void settle_best(const BestBy& best, RunProgress& progress);

  RunSite& site_;
  TrainingOptions& o_;
  std::string resumed_;
  std::optional<CheckpointState> saved_;
  bool rolls_back_ = false;
};

}  // namespace lockstep::nn::detail
