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
  double target_seconds = 0.3;         ///< goes on for about so long...
  std::int64_t min_iterations = 5;     ///< ...but never stops before so many values
  std::int64_t max_iterations = 5000;  ///< ...and never goes on beyond so many
  /// Least time behind one value: shorter calls are repeated and timed together, so that the clock does not count. 0:
  /// every call by itself, which is what shows the tail of a distribution.
  double sample_seconds = 0;
  /// Exactly so many calls, and as many values as they make; 0: time and iterations decide, as above.
  std::int64_t calls = 0;
};

/// What is timed.
struct Work {
  std::function<void()> start;    ///< one call: does it, or enqueues it
  std::function<void()> wait;     ///< returns when everything started is done; empty when start() does the work itself
  std::function<void()> prepare;  ///< before each value, not timed; may be empty
};

/// Times `work` on all ranks together. Every value is the time of the slowest rank: a barrier, then the clock around
/// start() and wait() on each rank. All ranks make the same number of calls, whatever their own clocks say: rank 0
/// decides how many, after each round. All ranks get the same values, bit by bit. Collective over `ranks`, which is
/// used between the calls and has to be another communicator than the one that `work` uses. UsageError for options that
/// make no sense.
[[nodiscard]] Samples measure(comm::Communicator& ranks, const MeasureOptions& options, const Work& work);

/// The same in this process alone.
[[nodiscard]] Samples measure(const MeasureOptions& options, const Work& work);

/// Memory that timed calls go through, one place after the other: more than the cache of a core, and than its part of
/// one that cores share.
inline constexpr std::int64_t kPoolBytes = std::int64_t{64} << 20;

/// One line of results.
struct Measurement {
  std::string name;
  std::int64_t bytes = 0;  ///< the size that the name ends with
  Samples samples;
  double payload_bytes = 0;  ///< that one call brings to where they are wanted, on one rank
  double traffic_bytes = 0;  ///< that memories or links carry for it, on one rank: said by the function that measured

  [[nodiscard]] double payload_per_second() const { return payload_bytes / samples.median(); }
  [[nodiscard]] double traffic_per_second() const { return traffic_bytes / samples.median(); }
};

}  // namespace lockstep::measure
