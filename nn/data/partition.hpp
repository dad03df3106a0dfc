#pragma once

#include <cstdint>

namespace lockstep::nn {

/// A contiguous part of a range.
struct Partition {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// Part `index` of [0, total), divided in order into `parts` parts whose sizes differ by at most 1: the first total mod
/// parts have one more. Batches are divided so over ranks, a rank's share over micro-batches, and a batch over devices.
/// UsageError unless total >= 0 and 0 <= index < parts.
[[nodiscard]] Partition partition_of(std::int64_t total, std::int64_t parts, std::int64_t index);

}  // namespace lockstep::nn
