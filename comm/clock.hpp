#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Clocks of this rank and of rank 0, read at the same time. All members are in nanoseconds.
struct ClockReading {
  std::int64_t own_ns = 0;     ///< time of this rank's clock
  std::int64_t offset_ns = 0;  ///< rank 0's clock minus this rank's clock
  std::int64_t error_ns = 0;   ///< largest possible error of offset_ns
};

/// Measures the offset of this rank's clock from rank 0's. Collective and blocking, with no operation under way. Each
/// rank asks rank 0 for its time and assumes an answer halfway through the round trip. The shortest of `questions`
/// round trips counts; half of that trip bounds the error (Cristian 1989, "Probabilistic clock synchronization"). `now`
/// reads this rank's clock. Throws UsageError unless questions >= 1. The communicator must take host tensors.
[[nodiscard]] ClockReading read_clock(Communicator& communicator, const std::function<std::int64_t()>& now,
                                      int questions = 32);

/// Converts times of this rank's clock to rank 0's time. Uses one reading before these times and one after; between
/// them, the offset changes linearly.
struct AlignedClock {
  ClockReading begin;
  ClockReading end;
  [[nodiscard]] std::int64_t at_rank0(std::int64_t own_ns) const;
  /// Returns the larger error of the two readings.
  [[nodiscard]] std::int64_t error_ns() const { return std::max(begin.error_ns, end.error_ns); }
};

}  // namespace lockstep::comm
