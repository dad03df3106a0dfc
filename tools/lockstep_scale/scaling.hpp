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
  /// Size of a bucket in bytes. With 0, predict() chooses buckets with which all sums end as early as possible. This
  /// choice depends on the number of ranks.
  std::int64_t bucket_bytes = 0;
  bool overlap = true;  ///< true: sums run during backward; false: sums run after it
  /// Processors that all ranks share. If there are more ranks than processors, computing takes longer in proportion.
  /// 0 means that each rank has its own processors.
  int processors = 0;
};

/// The predicted step of `ranks` ranks, each with the batch of the profile.
struct ScalingPoint {
  int ranks = 1;
  std::string algorithm{};  ///< algorithm and protocol of the largest bucket, or "as measured"; empty for one rank
  int buckets = 0;
  std::int64_t largest_bytes = 0;  ///< bytes of the largest bucket
  double compute_s = 0;
  double communication_s = 0;  ///< time of all sums
  double exposed_s = 0;        ///< time of sums that backward does not hide
  /// Seconds that the slowest rank computes longer than the median rank: the expected largest of `ranks` normal
  /// deviations (Blom, "Statistical estimates and transformed beta-variables", 1958), times the profile's jitter.
  double waiting_s = 0;
  [[nodiscard]] double step_s() const { return compute_s + exposed_s + waiting_s; }
  /// Returns the throughput of a rank divided by its throughput when it trains alone, with alone_s seconds per step.
  [[nodiscard]] double efficiency(double alone_s) const { return alone_s / step_s(); }
};

/// Predicts the step of `ranks` ranks. The sum of a bucket begins when the bucket's last gradient is ready and the
/// previous bucket's sum has ended (comm/gradients/bucket_cost.hpp). The model ignores three effects: sums slow down
/// computation, other jobs use the network, and the loader may be slow.
[[nodiscard]] ScalingPoint predict(const StepProfile& profile, int ranks, const comm::CostModel& sum,
                                   const ScalingOptions& options);

/// Returns the expected value of the largest of `n` numbers from the standard normal distribution; 0 for n = 1.
[[nodiscard]] double expected_largest(int n);

[[nodiscard]] std::string scaling_table(const StepProfile& profile, const std::vector<ScalingPoint>& points);
[[nodiscard]] Json::Object scaling_json(const StepProfile& profile, const std::vector<ScalingPoint>& points);
/// Returns an SVG file with two panels over the number of ranks: the parts of a step, and its efficiency.
[[nodiscard]] std::string scaling_plot(const std::string& title, const StepProfile& profile,
                                       const std::vector<ScalingPoint>& points);

}  // namespace lockstep::tools
