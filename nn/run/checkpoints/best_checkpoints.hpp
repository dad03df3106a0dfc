#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>

namespace lockstep::nn {

/// Metric that selects the best evaluation of a run. The checkpoint of the best evaluation is kept as "best".
struct BestBy {
  /// Name of the metric: "test_accuracy", "test_loss", or the name of a RunMetric with of_evaluation. A run with a
  /// moving average of the weights also has "ema_test_accuracy" and "ema_test_loss". An empty name selects the
  /// accuracy, or the loss if the model is a regression. If the run has a moving average, an empty name selects the
  /// average's accuracy or loss.
  std::string metric{};
  bool lowest = false;  ///< true: the lowest value is the best; set this only for your own metrics (RunMetric)
  [[nodiscard]] bool better(double a, double b) const { return lowest ? a < b : a > b; }
};

/// Names of the metrics of the moving average (TrainStepOptions::average).
inline constexpr const char* kAverageLoss = "ema_test_loss";
inline constexpr const char* kAverageAccuracy = "ema_test_accuracy";

/// Returns `best` with the default in place of an empty `metric`, and with `lowest` as this metric requires. `average`
/// is true if the run has a moving average of the weights, `regression` if the model is a regression.
[[nodiscard]] BestBy resolved(BestBy best, bool average, bool regression);

/// Returns the value of `metric` at the last evaluation, or no value if it is not finite. For an accuracy, also returns
/// no value if the loss is not finite, because such a model may predict correctly only by chance.
[[nodiscard]] std::optional<double> finite_value(const RunProgress& progress, const std::string& metric);

/// Selects the K best checkpoints of a run, which are kept as best-STEP. The value of a checkpoint is the evaluation in
/// its state.json, so a resumed run needs no other data. Of two equal values, the one of the earlier step is better.
///
/// A resumed run may find a checkpoint best-STEP with a STEP after the step at which this run began. If this run has
/// not written the checkpoint, an earlier run has. Such a checkpoint of an earlier run is not ranked, and
/// retire_others() deletes it. A folder without a readable checkpoint is not deleted.
class BestCheckpoints {
 public:
  /// `keep` is K, `begin` the step at which this run begins. by.metric must not be empty.
  BestCheckpoints(BestBy by, int keep, std::int64_t begin) : by_(std::move(by)), keep_(keep), begin_(begin) {}

  /// Returns true if an evaluation of value `value` at `step` is among the K best. Returns false for K = 1, because
  /// then only "best" is kept.
  [[nodiscard]] bool takes(const CheckpointStore& store, std::int64_t step, double value) const;
  /// Records that this run has written the checkpoint best-STEP with STEP = `step`.
  void written(std::int64_t step) { own_.insert(step); }
  /// Deletes the checkpoints that are not among the K best, and temporary folders of killed processes. If the process
  /// is killed during this call, each checkpoint is either complete or deleted. With K = 1, deletes nothing. Throws
  /// FileError.
  void retire_others(const CheckpointStore& store) const;

 private:
  struct Found {
    std::int64_t step = 0;
    std::optional<double> value{};
  };
  /// Returns the checkpoints that count, the best first. Writes the steps of all other readable checkpoints to
  /// `left_behind`.
  [[nodiscard]] std::vector<Found> ranking(const CheckpointStore& store, std::vector<std::int64_t>* left_behind) const;

  BestBy by_;
  int keep_;
  std::int64_t begin_;
  std::set<std::int64_t> own_;
};

/// Best value so far of a resumed run, and the checkpoint to copy to best/.
struct BestOfResumed {
  /// Value of the best evaluation so far; if empty, the next evaluation becomes the best.
  std::optional<double> value{};
  std::string copy_from{};  ///< checkpoint to copy to best/; empty: best/ does not change
};

/// Finds the best evaluation of a resumed run. `progress` comes from the resumed checkpoint. progress.best is the value
/// of the run's best evaluation so far, but the folder best/ may hold the checkpoint of another evaluation. The
/// function takes the first of these checkpoints that exists:
///
/// - best, if its value is progress.best.
/// - A best-STEP whose value is progress.best, with STEP not after the resumed step. The caller must copy this
///   checkpoint to best/ (BestOfResumed::copy_from).
/// - best, if it is of a step after the resumed step. An earlier process wrote it and was killed before it wrote last.
///   The resumed run will repeat this evaluation, so the result's value stays progress.best.
/// - best, if it is of an earlier step and its value is better than progress.best. The result has this better value.
///
/// With `rolls_back`, a best of a step after the resumed step is never used, because it belongs to discarded steps.
///
/// If no such checkpoint exists, it was in another folder or was deleted, and the result is empty. `by` must come from
/// resolved().
[[nodiscard]] BestOfResumed best_of_resumed(const CheckpointStore& store, const RunProgress& progress, const BestBy& by,
                                            bool rolls_back);

}  // namespace lockstep::nn
