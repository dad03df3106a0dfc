#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

/// Divides a tensor among the blocks of batch norm's CUDA kernels. The code is plain C++, because plans need it on
/// machines without a GPU, too.
namespace lockstep::ops::batch_norm {

inline constexpr int kBlock = 256;  // threads of a block

inline constexpr int kTile = 8;                // largest number of columns of a tile: 128 bytes of a row
inline constexpr int kNarrowTile = 32;         // largest number of columns of a tile if a column is one element
inline constexpr std::int64_t kLeastRows = 8;  // least number of rows that a thread takes in a chunk
inline constexpr std::int64_t kMostRows = 64;  // largest number of rows of a thread in a chunk: limits rounding errors
inline constexpr std::int64_t kWantedTiles = 1024;  // number of items (see Tiling) that fill a large GPU

/// Divides a tensor (rows, channels) into items, for sums over rows. A column is per_column channels, which a thread
/// processes together. A tile is several columns, a chunk is several rows, and an item is the intersection of a tile
/// and a chunk. The division depends only on the shape and on per_column.
struct Tiling {
  std::int64_t channels;
  std::int64_t tiles;  // number of tiles
  int tile;            // largest number of columns of a tile; the last tile may have fewer
  int lanes;           // number of threads of a block that share a column
  std::int64_t chunk;  // number of rows of a chunk: a multiple of lanes
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

/// Describes how the blocks of a kernel keep a tensor in shared memory, from the computation of the tensor's sums until
/// the sums are used. `blocks` is 0 if the tensor does not fit into the shared memory of all multiprocessors together.
struct Residence {
  std::int64_t blocks = 0;  ///< number of blocks of the launch; all run at once
  std::int64_t items = 0;   ///< largest number of items of a block; all fit into its shared memory
};

/// Finds the smallest number of items per block with which all items of `tiling` fit into shared memory. A block keeps
/// `item_bytes` bytes of each item. resident(bytes) returns how many blocks with `bytes` bytes of dynamic shared memory
/// run at once on the GPU. It returns 0 when a block cannot have so many bytes.
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

/// Returns residence_of() for the kernels of batch_norm_fused.cu, which keep `tensors` tensors, divided by `tiling`, in
/// columns of 16 bytes. Returns 0 blocks if the number of channels of a tensor or of a tile is not a multiple of 8. The
/// reason is the ReLU mask: it has one bit per element, and a tile's part of a row must take whole bytes of the mask.
template <class Resident>
Residence fused_residence(const Tiling& tiling, int per_column, int tensors, Resident resident) {
  if (tiling.channels % 8 != 0 || tiling.tile * per_column % 8 != 0) {
    return {};
  }
  return residence_of(tiling, static_cast<std::size_t>(tiling.chunk * tiling.tile * tensors) * 16, resident);
}

}  // namespace lockstep::ops::batch_norm
