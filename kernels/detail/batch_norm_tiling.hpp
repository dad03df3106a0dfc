#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

/// How the CUDA kernels of batch norm divide a tensor among blocks, in plain C++: a plan asks it without a GPU, too.
namespace lockstep::ops::batch_norm {

inline constexpr int kBlock = 256;  // threads

inline constexpr int kTile = 8;  // columns of a tile at most: 128 bytes of a row, few chunks for one block to join
inline constexpr int kNarrowTile = 32;              // the same, in single elements
inline constexpr std::int64_t kLeastRows = 8;       // of a thread
inline constexpr std::int64_t kMostRows = 64;       // rows of a thread: the rounding errors of its sums grow with them
inline constexpr std::int64_t kWantedTiles = 1024;  // pieces of work that fill a large GPU

/// How the sums of (rows, channels) are divided; a column is a thread's part of a row. Depends on the shape only.
struct Tiling {
  std::int64_t channels;
  std::int64_t tiles;  // of columns
  int tile;            // columns
  int lanes;           // threads that share a column
  std::int64_t chunk;  // rows
  std::int64_t chunks;

  Tiling(std::int64_t rows, std::int64_t channels_, int per_column) : channels(channels_) {
    const std::int64_t columns = channels / per_column;
    const std::int64_t most = per_column > 1 ? kTile : kNarrowTile;
    tiles = (columns + most - 1) / most;
    tile = static_cast<int>((columns + tiles - 1) / tiles);
    lanes = kBlock / tile;
    const std::int64_t wanted = (kWantedTiles + tiles - 1) / tiles;
    chunk = std::clamp((rows + lanes * wanted - 1) / (lanes * wanted), kLeastRows, kMostRows) * lanes;
    chunks = std::max((rows + chunk - 1) / chunk, std::int64_t{1});
  }
  [[nodiscard]] std::int64_t items() const { return tiles * chunks; }
};

/// How a tensor stays in the shared memory of all multiprocessors from the sums to what needs them. Without blocks it
/// has no room there.
struct Residence {
  std::int64_t blocks = 0;  ///< of the launch, all of which run at once
  std::int64_t items = 0;   ///< of a block, at most: what it has room for
};

/// The fewest items a block with which all have room. item_bytes: what is kept of an item. resident(bytes): how many
/// blocks with so much dynamic shared memory run at once on the GPU, 0 when a block has no room for them.
template <class Resident>
Residence residence_of(const Tiling& tiling, std::size_t item_bytes, Resident resident) {
  for (std::int64_t items = 1;; ++items) {
    const std::int64_t blocks = resident(static_cast<std::size_t>(items) * item_bytes);
    if (blocks <= 0) {
      return {};
    }
    if (blocks * items >= tiling.items()) {
      return {(tiling.items() + items - 1) / items, items};
    }
  }
}

/// residence_of() for the kernels of batch_norm_fused.cu, which keep `tensors` tensors divided like this in columns of
/// 16 bytes. None where a tile's part of a row would not be whole bytes of the mask.
template <class Resident>
Residence fused_residence(const Tiling& tiling, int per_column, int tensors, Resident resident) {
  if (tiling.channels % 8 != 0 || tiling.tile * per_column % 8 != 0) {
    return {};
  }
  return residence_of(tiling, static_cast<std::size_t>(tiling.chunk * tiling.tile * tensors) * 16, resident);
}

}  // namespace lockstep::ops::batch_norm
