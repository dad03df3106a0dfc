#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>

namespace lockstep::nn {

/// What decides which evaluation was the best: the one that checkpoints keep as "best".
struct BestBy {
  /// "test_accuracy", "test_loss" or the name of a RunMetric with of_evaluation; with a moving average of the weights
  /// also its "ema_test_accuracy" and "ema_test_loss". Empty: the accuracy, and the loss for regressions, of the
  /// moving average where there is one.
  std::string metric{};
  bool lowest = false;  ///< of a metric of one's own: the lowest value is the best
  /// Whether a value is better than another one.
  [[nodiscard]] bool better(double a, double b) const { return lowest ? a < b : a > b; }
};

/// Metrics of the moving average (TrainStepOptions::average).
inline constexpr const char* kAverageLoss = "ema_test_loss";
inline constexpr const char* kAverageAccuracy = "ema_test_accuracy";

/// `best` with its metric named and its direction right, for a run with a moving average or without one, of a
/// regression or of a classifier.
[[nodiscard]] BestBy resolved(BestBy best, bool average, bool regression);

/// The value of a metric at the last evaluation; none where it is not finite, or an accuracy whose loss is not: such a
/// model may still be right by chance.
[[nodiscard]] std::optional<double> sound_value(const RunProgress& progress, const std::string& metric);

/// Which checkpoints best-STEP of a store stay: the K best. They are ranked by what their own state.json says of their
/// evaluation; of equal values the earlier one is better. Nothing else has to be kept for a resume. Checkpoints of
/// steps behind the one that a run has begun with belong to what that resume has left behind, until the run has
/// written them itself: they do not count, and go with the next that falls out. What cannot be read is left alone.
class BestCheckpoints {
 public:
  /// keep: K; begin: the step at which this run begins. by.metric is not empty.
  BestCheckpoints(BestBy by, int keep, std::int64_t begin) : by_(std::move(by)), keep_(keep), begin_(begin) {}

  /// Whether an evaluation at `step` is among the K best of the store. K = 1: never, as "best" alone is kept.
  [[nodiscard]] bool takes(const CheckpointStore& store, std::int64_t step, double value) const;
  /// This run has written that checkpoint.
  void written(std::int64_t step) { own_.insert(step); }
  /// Deletes those that are not among the K best, each at once or not at all, and what killed writers have left. K = 1:
  /// none. FileError.
  void retire_others(const CheckpointStore& store) const;

 private:
  struct Found {
    std::int64_t step = 0;
    std::optional<double> value{};
  };
  /// The best first. left_behind: steps that do not count.
  [[nodiscard]] std::vector<Found> ranking(const CheckpointStore& store, std::vector<std::int64_t>* left_behind) const;

  BestBy by_;
  int keep_;
  std::int64_t begin_;
  std::set<std::int64_t> own_;
};

/// What becomes of best/ when a run goes on.
struct BestOfResumed {
  std::optional<double> value{};  ///< of the best evaluation so far; none: the next one is the best
  std::string copy_from{};        ///< becomes best/; empty: best/ stays as it is
};

/// A checkpoint tells of a best one, which best may not be. Looks in order for
///
///   best                with that value
///   a best-STEP         of that value, up to the step of the checkpoint: it is copied
///   best, behind it     a run that was killed between best and last: its evaluation comes again, and decides again
///                       (not with `rolls_back`: then best is of the run that is left behind)
///   best, before it     with a better value
///
/// and takes none else, where the best one was elsewhere or is deleted. by: resolved().
[[nodiscard]] BestOfResumed best_of_resumed(const CheckpointStore& store, const RunProgress& progress, const BestBy& by,
                                            bool rolls_back);

}  // namespace lockstep::nn
