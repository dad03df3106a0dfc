#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>

namespace lockstep::nn {

/// Decides which of a run's evaluations is the best. The checkpoint of the best evaluation is kept as "best".
struct BestBy {
  /// Name of the metric: "test_accuracy", "test_loss" or the name of a RunMetric with of_evaluation; with a moving
  /// average of the weights also "ema_test_accuracy" or "ema_test_loss". An empty name stands for the accuracy, or for
  /// the loss if the model is a regression; with a moving average, for the accuracy or loss of the average.
  std::string metric{};
  bool lowest = false;  ///< true: the lowest value is the best; only for a metric of your own (RunMetric)
  /// Returns true if value `a` is better than value `b`.
  [[nodiscard]] bool better(double a, double b) const { return lowest ? a < b : a > b; }
};

/// Names of the metrics of the moving average (TrainStepOptions::average).
inline constexpr const char* kAverageLoss = "ema_test_loss";
inline constexpr const char* kAverageAccuracy = "ema_test_accuracy";

/// Returns `best` with its metric and direction filled in. `average` says whether the run has a moving average,
/// `regression` whether the model is a regression.
[[nodiscard]] BestBy resolved(BestBy best, bool average, bool regression);

/// Returns the value of `metric` at the last evaluation. Returns no value if the value is not finite, or if the metric
/// is an accuracy and the loss is not finite, because such a model may be right by chance.
[[nodiscard]] std::optional<double> finite_value(const RunProgress& progress, const std::string& metric);

/// Decides which of a store's checkpoints named best-STEP stay: the K best. The evaluation in a checkpoint's state.json
/// gives the checkpoint's value; of two equal values, that of the earlier step is better. A resumed run needs no other
/// data. A checkpoint whose STEP is after the step at which this run began, but which this run has not written, is of
/// an earlier run: the checkpoint does not count, and retire_others() deletes it. A folder without a readable
/// checkpoint is not deleted.
class BestCheckpoints {
 public:
  /// `keep` is K, `begin` the step at which this run begins. by.metric must not be empty.
  BestCheckpoints(BestBy by, int keep, std::int64_t begin) : by_(std::move(by)), keep_(keep), begin_(begin) {}

  /// Returns true if an evaluation at `step` is among the K best of the store; false for K = 1, where only "best" is
  /// kept.
  [[nodiscard]] bool takes(const CheckpointStore& store, std::int64_t step, double value) const;
  /// Takes note that this run has written the checkpoint best-STEP with STEP = `step`.
  void written(std::int64_t step) { own_.insert(step); }
  /// Deletes checkpoints that are not among the K best, and the remains of killed writers. If the process is killed
  /// meanwhile, each checkpoint is whole or deleted. With K = 1, the function deletes nothing. Throws FileError.
  void retire_others(const CheckpointStore& store) const;

 private:
  struct Found {
    std::int64_t step = 0;
    std::optional<double> value{};
  };
  /// Returns the checkpoints that count, the best first. Writes the steps of the checkpoints that do not count to
  /// `left_behind`.
  [[nodiscard]] std::vector<Found> ranking(const CheckpointStore& store, std::vector<std::int64_t>* left_behind) const;

  BestBy by_;
  int keep_;
  std::int64_t begin_;
  std::set<std::int64_t> own_;
};

/// The best value so far when a run continues, and the checkpoint that best/ must become.
struct BestOfResumed {
  std::optional<double> value{};  ///< value of the best evaluation so far; if none, the next evaluation is the best
  std::string copy_from{};        ///< checkpoint to copy to best/; empty: best/ does not change
};

/// Finds the best evaluation of a resumed run. A checkpoint holds the value of the best evaluation, but best/ may hold
/// another one. The first of these that exists is taken:
///
///   best                     if it has that value
///   a best-STEP              of that value, up to the checkpoint's step; it is copied to best/
///   best of a later step     of a run killed between best and last, which will repeat and judge that evaluation
///                            (not with `rolls_back`: best then belongs to the run that is left behind)
///   best of an earlier step  with a better value
///
/// If none exists, the best checkpoint was in another folder or is deleted. `by` must be resolved().
[[nodiscard]] BestOfResumed best_of_resumed(const CheckpointStore& store, const RunProgress& progress, const BestBy& by,
                                            bool rolls_back);

}  // namespace lockstep::nn
