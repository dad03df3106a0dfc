#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::measure {

/// Times of repeated calls, in seconds of one call.
struct Samples {
  std::vector<double> seconds;       ///< one value per iteration, in order: the time of the slowest rank
  std::vector<double> rank_medians;  ///< the median of each rank's own values, in rank order
  std::int64_t calls = 1;      ///< least number of calls timed together for one value; more than 1 for short calls
  double mean_over_ranks = 0;  ///< mean of the own values of all ranks, as in the OSU benchmarks

  /// median(), mean(), min() and max() return NaN when `seconds` is empty.
  [[nodiscard]] double median() const;
  [[nodiscard]] double mean() const;
  [[nodiscard]] double min() const;
  [[nodiscard]] double max() const;
  /// Returns the smallest value that at least `percent` of the values do not exceed (nearest rank). Returns nothing
  /// unless at least one value is expected beyond the percentile: p50 needs 2 values, p95 20, p99 100. Throws
  /// UsageError unless 0 < percent < 100.
  [[nodiscard]] std::optional<double> percentile(double percent) const;
  /// Returns the largest of the ranks' medians divided by the smallest: 1 when all ranks are alike, and for one rank.
  [[nodiscard]] double rank_spread() const;
};

/// Returns the middle value, or the mean of the two middle values; NaN for an empty list.
[[nodiscard]] double median_of(std::vector<double> values);

}  // namespace lockstep::measure
