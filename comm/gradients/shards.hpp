#pragma once

#include <cstdint>

#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep::comm {

/// Parts have a multiple of this many elements, so that parts of 16-bit elements, too, are aligned to kAlignment.
inline constexpr std::int64_t kShardStep = static_cast<std::int64_t>(kAlignment / 2);

/// Division of the elements [begin, end) of an arena between ranks. Rank r owns part r: the `part` elements from
/// first_of(r) on. The rest, [rest, end), is too short to be divided, so every rank has it.
struct Shards {
  std::int64_t begin = 0;
  std::int64_t part = 0;
  std::int64_t rest = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t first_of(int rank) const { return begin + rank * part; }
};

/// Returns the division with the largest parts that kShardStep divides. The rest is shorter than ranks * kShardStep.
[[nodiscard]] inline Shards shards_of(std::int64_t begin, std::int64_t end, int ranks) {
  const std::int64_t part = (end - begin) / (ranks * kShardStep) * kShardStep;
  return {.begin = begin, .part = part, .rest = begin + ranks * part, .end = end};
}

}  // namespace lockstep::comm
