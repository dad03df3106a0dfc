#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>

namespace lockstep::nn {

/// Decides which evaluation was the best. Checkpoints keep that evaluation as "best".
struct BestBy {
  /// "test_accuracy", "test_loss" or the name of a RunMetric with of_evaluation; with a moving average of the weights
  /// also its "ema_test_accuracy" and "ema_test_loss". Empty: the accuracy (for regressions the loss), of the moving
  /// average if there is one.
  std::string metric{};
  bool lowest = false;  ///< only for your own metric: the lowest value is the best
  /// True when value `a` is better than value `b`.
  [[nodiscard]] bool better(double a, double b) const { return lowest ? a < b : a > b; }
};

/// Metrics of the moving average (TrainStepOptions::average).
inline constexpr const char* kAverageLoss = "ema_test_loss";
inline constexpr const char* kAverageAccuracy = "ema_test_accuracy";

/// Returns `best` with its metric named and its direction set, for a run with a moving average or without one, of a
/// regression or of a classifier.
[[nodiscard]] BestBy resolved(BestBy best, bool average, bool regression);

/// Returns the value of a metric at the last evaluation; none if it is not finite, or if it is an accuracy whose loss
/// is not finite: such a model may still be right by chance.
[[nodiscard]] std::optional<double> sound_value(const RunProgress& progress, const std::string& metric);

/// Decides which checkpoints best-STEP of a store stay: the K best. Each is ranked by the evaluation in its own
/// state.json; of equal values the earlier one is better. A resume needs nothing else. Checkpoints of steps after the
/// one at which this run began were left behind by the resume, until this run has written them itself: they do not
/// count, and are deleted with the next checkpoint that falls out. Folders that cannot be read are left alone.
class BestCheckpoints {
 public:
  /// keep: K; begin: the step at which this run begins. by.metric is not empty.
  BestCheckpoints(BestBy by, int keep, std::int64_t begin) : by_(std::move(by)), keep_(keep), begin_(begin) {}

  /// True when an evaluation at `step` is among the K best of the store. K = 1: never, because only "best" is kept.
  [[nodiscard]] bool takes(const CheckpointStore& store, std::int64_t step, double value) const;
  /// Reports that this run has written best-STEP of `step`.
  void written(std::int64_t step) { own_.insert(step); }
  /// Deletes checkpoints that are not among the K best, each at once or not at all, and what killed writers have left.
  /// K = 1: deletes none. Throws FileError.
  void retire_others(const CheckpointStore& store) const;

 private:
  struct Found {
    std::int64_t step = 0;
    std::optional<double> value{};
  };
  /// Returns the checkpoints that count, the best first. left_behind: gets the steps that do not count.
  [[nodiscard]] std::vector<Found> ranking(const CheckpointStore& store, std::vector<std::int64_t>* left_behind) const;

  BestBy by_;
  int keep_;
  std::int64_t begin_;
  std::set<std::int64_t> own_;
};

/// What happens to best/ when a run continues.
struct BestOfResumed {
  std::optional<double> value{};  ///< value of the best evaluation so far; none: the next one is the best
  std::string copy_from{};        ///< checkpoint that becomes best/; empty: best/ stays as it is
};

/// A checkpoint holds the value of the best evaluation, but best/ may be another one. Checks in this order:
///
///   best                     if it has that value
///   a best-STEP              of that value, up to the step of the checkpoint: it is copied
///   best of a later step     a run was killed between best and last: its evaluation comes again, and decides again
///                            (not with `rolls_back`: then best is of the run that is left behind)
///   best of an earlier step  with a better value
///
/// Else there is none: the best checkpoint was in another folder, or is deleted. by: resolved().
[[nodiscard]] BestOfResumed best_of_resumed(const CheckpointStore& store, const RunProgress& progress, const BestBy& by,
                                            bool rolls_back);

}  // namespace lockstep::nn
