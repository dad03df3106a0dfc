#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/cost/cost_model.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tools/lockstep_scale/cluster.hpp"
#include "tools/lockstep_scale/step_profile.hpp"

namespace lockstep::tools {

struct ScalingOptions {
  /// Bytes of a bucket; 0: the buckets that end first, which differ with the number of ranks.
  std::int64_t bucket_bytes = 0;
  bool overlap = true;  ///< sums run beside backward; false: after it
  /// Ranks of a node beyond this share its processors, and compute for that much longer. 0: each has its own.
  int processors = 0;
};

/// A step of `ranks` ranks, each with the batch of the profile.
struct ScalingPoint {
  int ranks = 1;
  std::string algorithm{};  ///< of the largest bucket; empty: from measured costs
  int buckets = 0;
  std::int64_t largest_bytes = 0;  ///< of a bucket
  double compute_s = 0;
  double communication_s = 0;  ///< of all sums
  double exposed_s = 0;        ///< of them, what backward does not hide
  /// How much longer the slowest of all ranks computes than the median one: the expected largest of `ranks` normal
  /// deviations (Blom, "Statistical estimates and transformed beta-variables", 1958), times the profile's jitter.
  double waiting_s = 0;
  [[nodiscard]] double step_s() const { return compute_s + exposed_s + waiting_s; }
  /// The share of the throughput that as many ranks would have alone.
  [[nodiscard]] double efficiency(double alone_s) const { return alone_s / step_s(); }
};

/// Each bucket's sum begins when its last gradient is ready and the sum before it has ended
/// (comm/gradients/bucket_cost.hpp). Not in the model: that sums slow the computation beside them, that networks are
/// shared, and the loader.
[[nodiscard]] ScalingPoint predict(const StepProfile& profile, int ranks, const comm::CostModel& sum,
                                   const ScalingOptions& options);

/// The expected largest of n values of the standard normal distribution; 0 for one.
[[nodiscard]] double expected_largest(int n);

[[nodiscard]] std::string scaling_table(const StepProfile& profile, const std::vector<ScalingPoint>& points);
[[nodiscard]] Json::Object scaling_json(const StepProfile& profile, const std::vector<ScalingPoint>& points);
/// Two panels over the number of ranks, as an SVG file: the parts of a step, and its efficiency.
[[nodiscard]] std::string scaling_plot(const std::string& title, const StepProfile& profile,
                                       const std::vector<ScalingPoint>& points);

}  // namespace lockstep::tools
