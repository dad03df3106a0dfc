#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <lockstep/comm/communicator.hpp>

#include "measure/samples.hpp"

namespace lockstep::measure {

using Clock = std::chrono::steady_clock;
[[nodiscard]] double seconds_since(Clock::time_point begin);

struct MeasureOptions {
  double target_seconds = 0.3;         ///< approximate time for which values are taken, in seconds
  std::int64_t min_iterations = 5;     ///< least number of values, even if they take longer than target_seconds
  std::int64_t max_iterations = 5000;  ///< largest number of values, even if target_seconds is not reached
  /// Least seconds over which one value is measured. Shorter calls are repeated and timed together, so that reading the
  /// clock adds little to the value. If 0, every call is timed by itself, which shows the tail of the distribution.
  double sample_seconds = 0;
  /// Total number of timed calls; the number of values then follows from `calls`. If 0, target_seconds, min_iterations
  /// and max_iterations determine the number of values.
  std::int64_t calls = 0;
};

/// The work to be timed.
struct Work {
  std::function<void()> start;  ///< runs or enqueues one call
  std::function<void()> wait;  ///< returns when all started calls are complete; empty when start() does the work itself
  std::function<void()> prepare;  ///< function called before each value, outside the timed period; may be empty
};

/// Times `work` on all ranks together. For each value, the ranks pass a barrier, and then each rank times start() and
/// wait(). The value is the time of the slowest rank. After each round of values, rank 0 decides for all ranks how many
/// calls follow, so all ranks make the same number of calls. All ranks get the same values, bit by bit.
///
/// Collective over `ranks`, which must not be the communicator that `work` uses. Throws UsageError for options out of
/// range.
[[nodiscard]] Samples measure(comm::Communicator& ranks, const MeasureOptions& options, const Work& work);

/// Times `work` in this process, without other ranks.
[[nodiscard]] Samples measure(const MeasureOptions& options, const Work& work);

/// Size in bytes of a pool. A pool is memory of which each timed call uses the next part. It is larger than the cache
/// of a core plus the core's share of a shared cache, so no call finds its data in a cache.
inline constexpr std::int64_t kPoolBytes = std::int64_t{64} << 20;

/// One line of results: what one measurement has found.
struct Measurement {
  std::string name;
  std::int64_t bytes = 0;  ///< size in bytes, with which the name ends
  Samples samples;
  double payload_bytes = 0;  ///< bytes that one call delivers, on one rank
  /// Bytes that memories or links carry for one call, on one rank. The function that makes the Measurement defines
  /// which bytes are counted.
  double traffic_bytes = 0;
};

}  // namespace lockstep::measure
