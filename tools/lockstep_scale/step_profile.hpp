#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// Gradients that become ready together, in the order of backward.
struct ReadyGradients {
  std::int64_t bytes = 0;
  double ready_s = 0;  ///< since backward began, without the time that it waited for communication
};

/// What one rank's step is made of when nobody is waited for: medians over the steps and ranks of a timeline.
struct StepProfile {
  int ranks = 0;  ///< that were recorded
  std::int64_t steps = 0;
  double compute_s = 0;   ///< from the begin of one step to that of the next, without waiting for sums or the loader
  double backward_s = 0;  ///< the last backward of a step; its end is when the last gradients are ready
  /// Standard deviation of compute_s over the steps, robust: 1.4826 times the median distance from the median.
  double jitter_s = 0;
  std::vector<ReadyGradients> gradients{};

  [[nodiscard]] std::int64_t bytes() const;  ///< of all gradients
};

/// From a timeline that train_resnet --trace wrote, of one rank or several. Gradients are as fine as its buckets
/// (--bucket-mb 0.001: each tensor by itself). DataError, naming source and what was expected, for another kind of
/// file, for fewer than 3 steps in a row, steps that differ in their buckets, and captured steps, which have no times
/// inside.
[[nodiscard]] StepProfile step_profile(const Json& timeline, const std::string& source);

}  // namespace lockstep::tools
