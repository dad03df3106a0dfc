#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// What rank 0's clock reads beside this rank's, at one time. Nanoseconds.
struct ClockReading {
  std::int64_t own_ns = 0;     ///< this rank's clock
  std::int64_t offset_ns = 0;  ///< rank 0's clock minus it
  std::int64_t error_ns = 0;   ///< the offset is known to within this
};

/// Collective and blocking, with no operation under way. Each rank asks rank 0 for its time and takes the answer to
/// have been given halfway; the question with the shortest round trip counts, and half of that trip bounds the error
/// (Cristian 1989, "Probabilistic clock synchronization"). `now` reads this rank's clock. UsageError unless
/// questions >= 1. The communicator takes host tensors.
[[nodiscard]] ClockReading read_clock(Communicator& communicator, const std::function<std::int64_t()>& now,
                                      int questions = 32);

/// This rank's clock in rank 0's time, from a reading before and one after: the offset changes steadily between.
struct AlignedClock {
  ClockReading begin;
  ClockReading end;
  [[nodiscard]] std::int64_t at_rank0(std::int64_t own_ns) const;
  /// The larger of the two.
  [[nodiscard]] std::int64_t error_ns() const { return std::max(begin.error_ns, end.error_ns); }
};

}  // namespace lockstep::comm
