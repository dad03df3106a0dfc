#pragma once

#include <cstdint>

#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep::comm {

/// Each part's number of elements is a multiple of this number, so that even 16-bit parts are aligned to kAlignment.
inline constexpr std::int64_t kShardStep = static_cast<std::int64_t>(kAlignment / 2);

/// Division of the elements [begin, end) of an arena between ranks. Rank r owns part r, which has `part` elements and
/// begins at first_of(r). The elements [rest, end) after the parts are too few to be divided, so every rank owns them.
struct Shards {
  std::int64_t begin = 0;
  std::int64_t part = 0;
  std::int64_t rest = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t first_of(int rank) const { return begin + rank * part; }
};

/// Returns the division with the largest possible parts. Fewer than ranks * kShardStep elements remain undivided.
[[nodiscard]] inline Shards shards_of(std::int64_t begin, std::int64_t end, int ranks) {
  const std::int64_t part = (end - begin) / (ranks * kShardStep) * kShardStep;
  return {.begin = begin, .part = part, .rest = begin + ranks * part, .end = end};
}

}  // namespace lockstep::comm
