#pragma once

#include <lockstep/nn/run/detail/rank_share.hpp>

namespace lockstep::nn::detail {

/// Evaluates the test set of a trainer with the current parameters and evaluation buffers.
struct TestRun {
  Context& context;
  const Ranks& ranks;
  TrainStep& step;
  RankShare& share;
  const Dataset& test;
  TestTimeAugmentation views;
  /// Returns this rank's sums of the metrics over its share of the test set. Waits for the device. Throws DataError if
  /// a label is out of range.
  [[nodiscard]] Metrics own_sums(const Trainer::EvaluationHook& each) const;
};

}  // namespace lockstep::nn::detail
