#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/runtime/files/json.hpp>

namespace lockstep::tools {

/// Gradients that become ready together, in the order of backward.
struct ReadyGradients {
  std::int64_t bytes = 0;
  double ready_s = 0;  ///< time since backward began, without waits for communication
};

/// The times of one rank's step without waits. Each time is the median over the steps and ranks of a timeline.
struct StepProfile {
  int ranks = 0;  ///< number of ranks in the timeline
  std::int64_t steps = 0;
  double compute_s = 0;   ///< time from the begin of a step to the begin of the next, without waits for sums or loader
  double backward_s = 0;  ///< time of the last backward of a step, until the last gradients are ready
  /// Standard deviation of compute_s over the steps, robust: 1.4826 times the median distance from the median.
  double jitter_s = 0;
  std::vector<ReadyGradients> gradients{};

  [[nodiscard]] std::int64_t bytes() const;  ///< bytes of all gradients
};

/// Makes the profile of a timeline that train_resnet --trace wrote, of one or several ranks. The timeline's buckets
/// become the profile's gradients (with --bucket-mb 0.001 each tensor is one bucket). Throws DataError for a file
/// that is no such timeline, for fewer than 3 steps in a row, and for steps with different buckets. Also throws
/// DataError for captured steps, because the timeline has no times within a captured step. The error names `source` and
/// what was expected.
[[nodiscard]] StepProfile step_profile(const Json& timeline, const std::string& source);

}  // namespace lockstep::tools
