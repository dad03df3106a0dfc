#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// The clocks of this rank and of rank 0, read at one time. Nanoseconds.
struct ClockReading {
  std::int64_t own_ns = 0;     ///< this rank's clock
  std::int64_t offset_ns = 0;  ///< rank 0's clock minus this rank's
  std::int64_t error_ns = 0;   ///< largest error of offset_ns
};

/// Measures the offset of this rank's clock from rank 0's. Collective and blocking, with no operation under way. Each
/// rank asks rank 0 for its time and assumes that rank 0 answered halfway through the round trip. The shortest of
/// `questions` round trips counts; half of that trip bounds the error (Cristian 1989, "Probabilistic clock
/// synchronization"). `now` reads this rank's clock. UsageError unless questions >= 1. The communicator takes host
/// tensors.
[[nodiscard]] ClockReading read_clock(Communicator& communicator, const std::function<std::int64_t()>& now,
                                      int questions = 32);

/// Converts this rank's clock to rank 0's time, by a reading before and one after. The offset changes linearly between
/// them.
struct AlignedClock {
  ClockReading begin;
  ClockReading end;
  [[nodiscard]] std::int64_t at_rank0(std::int64_t own_ns) const;
  /// The larger error of the two readings.
  [[nodiscard]] std::int64_t error_ns() const { return std::max(begin.error_ns, end.error_ns); }
};

}  // namespace lockstep::comm
