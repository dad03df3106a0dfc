#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Result of read_clock(): a comparison of this rank's clock with rank 0's clock. All members are in nanoseconds.
struct ClockReading {
  std::int64_t own_ns = 0;     ///< time that this rank's clock showed at the comparison
  std::int64_t offset_ns = 0;  ///< rank 0's clock minus this rank's clock
  std::int64_t error_ns = 0;   ///< largest possible error of offset_ns
};

/// Compares this rank's clock, which `now` reads, with rank 0's clock. Collective and blocking; no other operation may
/// be under way. Each rank sends `questions` requests for the time to rank 0, and assumes that rank 0 reads its clock
/// halfway through the round trip. The result is from the request with the shortest round trip. Half of this round
/// trip's duration bounds the error (Cristian 1989, "Probabilistic clock synchronization").
/// `communicator` must take host tensors. Throws UsageError unless questions >= 1.
[[nodiscard]] ClockReading read_clock(Communicator& communicator, const std::function<std::int64_t()>& now,
                                      int questions = 32);

/// Converts times of this rank's clock to times of rank 0's clock. Uses the readings `begin` (made before these times)
/// and `end` (made after them), and assumes that the offset changes linearly between the two readings.
struct AlignedClock {
  ClockReading begin;
  ClockReading end;
  [[nodiscard]] std::int64_t at_rank0(std::int64_t own_ns) const;
  [[nodiscard]] std::int64_t error_ns() const { return std::max(begin.error_ns, end.error_ns); }
};

}  // namespace lockstep::comm
