#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/cuda/port.hpp>

namespace lockstep::gpu {

inline constexpr int kArenaBlock = 256;
inline constexpr int kArenaChunk = 4096;  // number of elements that a block takes at a time
inline constexpr int kMostArenaParts = 64;

/// The part of a segment that lies in the range of an update: elements [begin, end) of the update's views, divided into
/// chunks.
struct ArenaPart {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t first_chunk;  ///< index of the part's first chunk among the chunks of the table
  double learning_rate_scale;
  double weight_decay;
  bool adapts;
};

/// The parts of segments that one launch updates. The table is a kernel parameter: it reaches the GPU with the launch,
/// and needs no copy and no device memory.
struct ArenaTable {
  ArenaPart parts[kMostArenaParts];
  std::int64_t chunks;
  std::int64_t chunks_before;  ///< number of chunks in the update's tables before this table
  std::int64_t parts_before;
  int count;

  /// Returns the part that holds chunk `chunk` of the table. The caller must set `at` to 0 before the first call; each
  /// call sets `at` to the index of the part that it returns. So `chunk` must ascend from call to call.
  __device__ const ArenaPart& part_of(std::int64_t chunk, int& at) const {
    while (at + 1 < count && chunk >= parts[at + 1].first_chunk) {
      ++at;
    }
    return parts[at];
  }
};
static_assert(sizeof(ArenaTable) <= 3600, "kernel parameters of 4096 bytes in all are allowed everywhere");

/// Puts the parts of trainable segments in the update's range into as few tables as possible, and calls f(table) for
/// each table. Chunks begin at multiples of `step` elements of the views, so a part's first chunk begins at or before
/// the part.
template <class F>
void for_each_table(const ops::ArenaUpdate& update, int step, F&& f) {
  const std::int64_t n = update.parameters.numel();
  ArenaTable table{};
  const auto flush = [&] {
    if (table.count > 0) {
      f(table);
    }
    table.chunks_before += table.chunks;
    table.parts_before += table.count;
    table.chunks = 0;
    table.count = 0;
  };
  for (const ops::ArenaSegment& segment : update.segments) {
    const auto [begin, end] = ops::piece_of(segment, update.begin, n);
    if (!segment.trainable || begin >= end) {
      continue;
    }
    table.parts[table.count++] = {begin,         end, table.chunks, segment.learning_rate_scale, segment.weight_decay,
                                  segment.adapts};
    table.chunks += (end - (begin - begin % step) + kArenaChunk - 1) / kArenaChunk;
    if (table.count == kMostArenaParts) {
      flush();
    }
  }
  flush();
}

}  // namespace lockstep::gpu
