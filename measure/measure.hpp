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
  double target_seconds = 0.3;         ///< runs for about this long...
  std::int64_t min_iterations = 5;     ///< ...but takes at least this many values
  std::int64_t max_iterations = 5000;  ///< ...and at most this many
  /// Least time that one value is measured over: shorter calls are repeated and timed together, so that the clock's own
  /// cost does not count. 0: every call is timed by itself, which shows the tail of a distribution.
  double sample_seconds = 0;
  /// Number of calls, from which the number of values follows; 0: the limits above decide.
  std::int64_t calls = 0;
};

/// The work to be timed.
struct Work {
  std::function<void()> start;  ///< runs or enqueues one call
  std::function<void()> wait;  ///< returns when all started calls are complete; empty when start() does the work itself
  std::function<void()> prepare;  ///< called before each value, not timed; may be empty
};

/// Times `work` on all ranks together: a barrier, then on each rank the clock around start() and wait(). Every value is
/// the time of the slowest rank. All ranks make the same number of calls, as rank 0 decides the number after each
/// round, and all get the same values, bit by bit. Collective over `ranks`, which is used between the calls and must
/// not be the communicator that `work` uses. UsageError for options out of range.
[[nodiscard]] Samples measure(comm::Communicator& ranks, const MeasureOptions& options, const Work& work);

/// Times `work` in this process alone.
[[nodiscard]] Samples measure(const MeasureOptions& options, const Work& work);

/// Bytes of the pool that timed calls go through, one place after the other: more than a core's own cache and its part
/// of a shared cache.
inline constexpr std::int64_t kPoolBytes = std::int64_t{64} << 20;

/// One line of results.
struct Measurement {
  std::string name;
  std::int64_t bytes = 0;  ///< the size that the name ends with
  Samples samples;
  double payload_bytes = 0;  ///< bytes that one call delivers, on one rank
  /// Bytes that memories or links carry for one call, on one rank, as the measuring function defines them.
  double traffic_bytes = 0;
};

}  // namespace lockstep::measure
