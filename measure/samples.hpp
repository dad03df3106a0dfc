#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::measure {

/// Times of one thing that was done again and again. All in seconds of one call.
struct Samples {
  std::vector<double> seconds;       ///< one value an iteration, in order: of the rank that took longest in it
  std::vector<double> rank_medians;  ///< the median of each rank's own values, in rank order
  std::int64_t calls = 1;            ///< behind one value, at least: calls too short for the clock are timed together
  double mean_over_ranks = 0;        ///< of all ranks' own values: what OSU's benchmarks call the average

  /// NaN where there is no value.
  [[nodiscard]] double median() const;
  [[nodiscard]] double mean() const;
  [[nodiscard]] double min() const;
  [[nodiscard]] double max() const;
  [[nodiscard]] double stddev() const;  ///< of the sample (n - 1); 0 for one value
  /// The smallest value that at least `percent` of all do not pass (nearest rank). Empty unless at least one value is
  /// expected beyond it: p50 takes 2 values, p95 takes 20, p99 takes 100. UsageError unless 0 < percent < 100.
  [[nodiscard]] std::optional<double> percentile(double percent) const;
  /// Largest over smallest of the ranks' medians: 1 when all ranks are alike, and for one rank.
  [[nodiscard]] double rank_spread() const;
};

/// The middle value, the mean of both where there are two; NaN of nothing.
[[nodiscard]] double median_of(std::vector<double> values);

}  // namespace lockstep::measure
