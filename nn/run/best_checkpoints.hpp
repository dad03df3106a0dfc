#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/nn/run/checkpoint.hpp>

namespace lockstep::nn {

/// What decides which evaluation was the best: the one that checkpoints keep as "best".
struct BestBy {
  /// "test_accuracy", "test_loss" or the name of a RunMetric with of_evaluation; with a moving average of the weights
  /// also its "ema_test_accuracy" and "ema_test_loss". Empty: the accuracy, and the loss for regressions, of the
  /// moving average where there is one.
  std::string metric{};
  bool lowest = false;  ///< of a metric of one's own: the lowest value is the best
};

/// Metrics of the moving average (TrainStepOptions::average).
inline constexpr const char* kAverageLoss = "ema_test_loss";
inline constexpr const char* kAverageAccuracy = "ema_test_accuracy";

/// The value of a metric at the last evaluation; none where it is not finite, or an accuracy whose loss is not: such a
/// model may still be right by chance.
[[nodiscard]] std::optional<double> sound_value(const RunProgress& progress, const std::string& metric);

/// `best` with its metric named and its direction right, for a run with a moving average or without one, of a
/// regression or of a classifier.
[[nodiscard]] BestBy resolved(BestBy best, bool average, bool regression);

/// Each N for which there is DIR/BEGIN + N, or what a killed writer of it has left, ascending.
[[nodiscard]] std::vector<std::int64_t> numbered_folders(const std::string& dir, std::string_view begin);

/// The K best checkpoints of a run, DIR/best-STEP. They are ranked by what their own state.json says of their
/// evaluation; of equal values the earlier one is better. Nothing else has to be kept for a resume. Checkpoints of
/// steps behind the one that a run has begun with belong to what that resume has left behind, until the run has
/// written them itself: they do not count, and go with the next that falls out. What cannot be read is left alone.
class BestCheckpoints {
 public:
  /// keep: K; begin: the step at which this run begins. by.metric is not empty.
  BestCheckpoints(BestBy by, int keep, std::int64_t begin) : by_(std::move(by)), keep_(keep), begin_(begin) {}

  /// Whether a value is better than another one.
  [[nodiscard]] bool better(double a, double b) const { return by_.lowest ? a < b : a > b; }
  /// Whether an evaluation at `step` is among the K best of the folder. K = 1: never, as "best" alone is kept.
  [[nodiscard]] bool takes(const std::string& dir, std::int64_t step, double value) const;
  /// This run has written that checkpoint.
  void written(std::int64_t step) { own_.insert(step); }
  /// Deletes those that are not among the K best, each at once or not at all, and what killed writers have left. K = 1:
  /// none. FileError.
  void remove_others(const std::string& dir) const;

  /// "best-STEP"
  [[nodiscard]] static std::string name(std::int64_t step);
  /// Steps of the folders DIR/best-STEP, and of what killed writers of them have left, ascending.
  [[nodiscard]] static std::vector<std::int64_t> steps_in(const std::string& dir);

 private:
  struct Found {
    std::int64_t step = 0;
    std::optional<double> value{};
  };
  /// The best first. left_behind: steps that do not count.
  [[nodiscard]] std::vector<Found> ranking(const std::string& dir, std::vector<std::int64_t>* left_behind) const;

  BestBy by_;
  int keep_;
  std::int64_t begin_;
  std::set<std::int64_t> own_;
};

}  // namespace lockstep::nn
