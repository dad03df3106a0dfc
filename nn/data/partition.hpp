#pragma once

#include <algorithm>
#include <cstdint>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

/// A contiguous part of a range.
struct Partition {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// Returns part `index` of [0, total), which is divided in order into `parts` parts. The first (total mod parts) parts
/// have one element more than all other parts. Callers use this function to divide a batch over ranks or devices, and a
/// rank's share over micro-batches. Throws UsageError unless total >= 0 and 0 <= index < parts.
[[nodiscard]] inline Partition partition_of(std::int64_t total, std::int64_t parts, std::int64_t index) {
  require<UsageError>(total >= 0 && index >= 0 && index < parts, "partition: total is ", total, ", parts is ", parts,
                      " and index is ", index, ", expected total >= 0 and 0 <= index < parts");
  const std::int64_t least = total / parts;
  const std::int64_t larger = total % parts;
  return {index * least + std::min(index, larger), least + (index < larger ? 1 : 0)};
}

}  // namespace lockstep::nn
