#pragma once

#include <lockstep/nn/run/detail/rank_share.hpp>

namespace lockstep::nn::detail {

/// An evaluation of a trainer's test set, with the parameters and evaluation buffers as they are.
struct TestRun {
  Context& context;
  const Ranks& ranks;
  TrainStep& step;
  RankShare& share;
  const Dataset& test;
  TestTimeAugmentation views;
  /// This rank's sums. Waits for the device. DataError where a label is wrong.
  [[nodiscard]] Metrics own_sums(const Trainer::EvaluationHook& each) const;
};

}  // namespace lockstep::nn::detail
