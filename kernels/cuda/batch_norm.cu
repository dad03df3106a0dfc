#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include <lockstep/kernels/cuda/element.hpp>

// docs/cuda.md explains these kernels step by step.
//
// x, dy, .. are (rows, C) here. There are two kinds of kernels:
//   sums:        a block takes a chunk of rows of a tile of channels. A thread keeps the same kCount channels (16 bytes
//                of them, or 1) and takes every lanes-th row. Lanes are joined in shared memory, chunks by a second
//                small kernel. The shape alone fixes both orders.
//   elementwise: a thread takes pieces of 8 elements, one byte of the mask, at a stride that is a multiple of C: its 8
//                channels stay the same, so their coefficients stay in registers, and no byte has two writers.

namespace lockstep::ops::backend {
namespace {

using gpu::Pack;
using std::int64_t;

constexpr int kBlock = 256;

/// The batch: rows are samples * per_sample.
struct Batch {
  int64_t samples;
  int64_t per_sample;
};

/// Rows that count. A number of samples outside 0 .. N is replaced by the nearest one inside.
__device__ int64_t valid_rows(const Batch& batch, const int64_t* valid) {
  if (valid == nullptr) {
    return batch.samples * batch.per_sample;
  }
  const int64_t samples = *valid;
  return (samples < 0 ? 0 : samples < batch.samples ? samples : batch.samples) * batch.per_sample;
}

template <int kCount, class T>
__device__ Pack<float, kCount> load_floats(const T* from) {
  const Pack<T, kCount> raw = gpu::load<kCount>(from);
  Pack<float, kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    values.at[j] = gpu::to_float(raw.at[j]);
  }
  return values;
}

template <int kCount>
__device__ void add_to(Pack<float, kCount>& a, const Pack<float, kCount>& b) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    a.at[j] += b.at[j];
  }
}

/// Zero where the mask has no bit.
template <int kCount>
__device__ void keep(Pack<float, kCount>& values, unsigned bits) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    values.at[j] = (bits >> j & 1U) != 0 ? values.at[j] : 0.0F;
  }
}

// ---- sums ----------------------------------------------------------------------------------------------------------

constexpr int kTile = 32;               // columns of a tile at most: one warp reads 512 bytes of a row
constexpr int64_t kLeastRows = 8;       // of a thread
constexpr int64_t kMostRows = 64;       // rows of a thread: the rounding errors of its sums grow with them
constexpr int64_t kWantedTiles = 1024;  // pieces of work that fill a large GPU

/// How the sums of (rows, channels) are divided; a column is a thread's part of a row. Depends on the shape only.
struct Tiling {
  int64_t channels;
  int64_t tiles;  // of columns
  int tile;       // columns
  int lanes;      // threads that share a column
  int64_t chunk;  // rows
  int64_t chunks;

  Tiling(int64_t rows, int64_t channels_, int per_column) : channels(channels_) {
    const int64_t columns = channels / per_column;
    tiles = (columns + kTile - 1) / kTile;
    tile = static_cast<int>((columns + tiles - 1) / tiles);
    lanes = kBlock / tile;
    const int64_t wanted = (kWantedTiles + tiles - 1) / tiles;
    chunk = std::clamp((rows + lanes * wanted - 1) / (lanes * wanted), kLeastRows, kMostRows) * lanes;
    chunks = (rows + chunk - 1) / chunk;
  }
  [[nodiscard]] unsigned blocks() const { return gpu::blocks_for(tiles * chunks, 1); }
};

/// A thread's part of a sum, which it hands to another thread.
template <class Real, int kValues>
struct Part {
  Real at[kValues];
};

/// kCount means, kCount sums of squared deviations from them, the number of rows.
template <class Real, int kCount>
using Moments = Part<Real, 2 * kCount + 1>;

/// The moments of the rows of a and b together.
struct JoinMoments {
  template <class Real, int kValues>
  __device__ void operator()(Part<Real, kValues>& a, const Part<Real, kValues>& b) const {
    constexpr int kCount = kValues / 2;
    const Real rows = a.at[2 * kCount] + b.at[2 * kCount];
    if (b.at[2 * kCount] > 0) {
      const Real share = b.at[2 * kCount] / rows;
      const Real cross = a.at[2 * kCount] * share;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const Real delta = b.at[j] - a.at[j];
        a.at[j] += delta * share;
        a.at[kCount + j] += b.at[kCount + j] + delta * delta * cross;
      }
      a.at[2 * kCount] = rows;
    }
  }
};

struct JoinSums {
  template <class Real, int kValues>
  __device__ void operator()(Part<Real, kValues>& a, const Part<Real, kValues>& b) const {
#pragma unroll
    for (int k = 0; k < kValues; ++k) {
      a.at[k] += b.at[k];
    }
  }
};

/// Joins the parts of `lanes` threads that are `tile` threads apart; lane 0 has the result. All threads of the block
/// call it. The upper half hands its parts to the lower half until one lane is left: a fixed order.
template <class Join, class Real, int kValues>
__device__ void join_lanes(Part<Real, kValues>& mine, int tile, int lanes, Join join) {
  LOCKSTEP_SHARED(Real, parked, [kValues][kBlock]);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread / tile;
  while (lanes > 1) {
    const int half = (lanes + 1) / 2;
    if (lane >= half && lane < lanes) {  // once a thread, so that what others still read stays
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        parked[k][thread] = mine.at[k];
      }
    }
    __syncthreads();  // parked is written
    if (lane < lanes - half) {
      Part<Real, kValues> other;
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        other.at[k] = parked[k][thread + half * tile];
      }
      join(mine, other);
    }
    lanes = half;
  }
  __syncthreads();  // parked may be used again
}

/// Moments of rows lane, lane + lanes, .. of x, a column of a chunk of `rows` rows, in one pass. It sums deviations
/// from the thread's first value: x may have a mean far from 0, and an outlier as first value costs precision by at
/// most the number of the thread's rows. Means are stored as the distance from the chunk's first row, so that a small
/// deviation of a large mean keeps its bits.
template <int kCount, class T>
__device__ Moments<float, kCount> column_moments(const T* x, int64_t channels, int lane, int lanes, int64_t rows) {
  Moments<float, kCount> moments{};
  if (lane >= rows) {
    return moments;
  }
  const int count = static_cast<int>((rows - lane + lanes - 1) / lanes);
  const T* from = x + lane * channels;
  const int64_t step = lanes * channels;
  const Pack<float, kCount> shift = load_floats<kCount>(from);
  Pack<float, kCount> sum{};
  Pack<float, kCount> square{};
#pragma unroll 4
  for (int i = 1; i < count; ++i) {
    const Pack<float, kCount> value = load_floats<kCount>(from + i * step);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float deviation = value.at[j] - shift.at[j];
      sum.at[j] += deviation;
      square.at[j] = fmaf(deviation, deviation, square.at[j]);
    }
  }
  const Pack<float, kCount> base = load_floats<kCount>(x);
  const float inv_count = 1.0F / static_cast<float>(count);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float offset = sum.at[j] * inv_count;
    const float squares = square.at[j] - sum.at[j] * offset;
    moments.at[j] = (shift.at[j] - base.at[j]) + offset;
    moments.at[kCount + j] = squares < 0.0F ? 0.0F : squares;  // NaN stays NaN
  }
  moments.at[2 * kCount] = static_cast<float>(count);
  return moments;
}

/// x: (rows, C); means: (chunks, C); squares: (chunks, C). Reads the valid rows of x once; writes 12 bytes per chunk
/// and channel; a chunk has at least 64 rows.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, 3)
    stats_kernel(Tiling tiling, Batch batch, const T* x, const int64_t* valid, double* means, float* squares) {
  const int64_t valid_row = valid_rows(batch, valid);
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  for (int64_t item = blockIdx.x; item < tiling.tiles * tiling.chunks; item += gridDim.x) {
    const int64_t chunk = item / tiling.tiles;
    const int64_t c = (item % tiling.tiles * tiling.tile + column) * kCount;
    const int64_t left = valid_row - chunk * tiling.chunk;
    const int64_t rows = left < tiling.chunk ? left : tiling.chunk;  // not positive after the valid rows
    const bool mine = lane < tiling.lanes && c < tiling.channels;
    const T* from = x + chunk * tiling.chunk * tiling.channels + c;
    Moments<float, kCount> moments = column_moments<kCount>(from, tiling.channels, lane, tiling.lanes, mine ? rows : 0);
    join_lanes(moments, tiling.tile, tiling.lanes, JoinMoments{});
    if (mine && lane == 0 && rows > 0) {
      const Pack<float, kCount> base = load_floats<kCount>(from);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int64_t at = chunk * tiling.channels + c + j;
        means[at] = static_cast<double>(base.at[j]) + static_cast<double>(moments.at[j]);
        squares[at] = moments.at[kCount + j];
      }
    }
  }
}

// The second kernels of the sums: 32 lanes share the chunks of a channel, each a run of neighbouring ones, and are then
// joined as above. A block takes 8 channels, so that a lane reads whole 32-byte sectors.
constexpr int kMergeChannels = 8;
constexpr int kMergeLanes = kBlock / kMergeChannels;

unsigned merge_blocks(int64_t channels) {
  return gpu::blocks_for(channels, kMergeChannels);
}

/// Calls join_chunks(c, first, last, part) with a zero part for this thread's range [first, last) of the `live` chunks
/// of channel c, joins the lanes, and calls finish(c, part) in one of them.
template <int kValues, class JoinChunks, class Join, class Finish>
__device__ void merge_chunks(int64_t channels, int64_t live, JoinChunks join_chunks, Join join, Finish finish) {
  const int lane = static_cast<int>(threadIdx.x) / kMergeChannels;
  const int64_t share = (live + kMergeLanes - 1) / kMergeLanes;
  const int64_t first = lane * share;
  const int64_t last = first + share < live ? first + share : live;
  for (int64_t block = blockIdx.x; block * kMergeChannels < channels; block += gridDim.x) {
    const int64_t c = block * kMergeChannels + threadIdx.x % kMergeChannels;
    Part<double, kValues> part{};
    if (c < channels) {
      join_chunks(c, first, last, part);
    }
    join_lanes(part, kMergeChannels, kMergeLanes, join);
    if (lane == 0 && c < channels) {
      finish(c, part);
    }
  }
}

/// stats: (2C + 1). In double: hundreds of chunks cost no precision.
__global__ void __launch_bounds__(kBlock) stats_merge_kernel(Tiling tiling, Batch batch, const double* means,
                                                             const float* squares, const int64_t* valid, float* stats) {
  const int64_t rows = valid_rows(batch, valid);
  const int64_t channels = tiling.channels;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Moments<double, 1>& part) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t left = rows - i * tiling.chunk;
      Moments<double, 1> chunk;
      chunk.at[0] = means[i * channels + c];
      chunk.at[1] = static_cast<double>(squares[i * channels + c]);
      chunk.at[2] = static_cast<double>(left < tiling.chunk ? left : tiling.chunk);
      JoinMoments{}(part, chunk);
    }
  };
  const auto finish = [&](int64_t c, const Moments<double, 1>& part) {
    stats[c] = static_cast<float>(part.at[0]);
    stats[channels + c] = static_cast<float>(part.at[1]);
  };
  merge_chunks<3>(channels, (rows + tiling.chunk - 1) / tiling.chunk, join_chunks, JoinMoments{}, finish);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    stats[2 * channels] = static_cast<float>(rows);
  }
}

/// parts: (count, 2C + 1); stats: (2C + 1). In double and in the order of the parts. Reads every part once; a thread
/// takes a channel.
__global__ void __launch_bounds__(kBlock)
    merge_parts_kernel(int64_t count, int64_t channels, const float* parts, float* stats) {
  const int64_t width = 2 * channels + 1;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < channels;
       c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    Moments<double, 1> merged{};
    for (int64_t p = 0; p < count; ++p) {
      Moments<double, 1> part;
      part.at[0] = static_cast<double>(parts[p * width + c]);
      part.at[1] = static_cast<double>(parts[p * width + channels + c]);
      part.at[2] = static_cast<double>(parts[p * width + 2 * channels]);
      JoinMoments{}(merged, part);
    }
    stats[c] = static_cast<float>(merged.at[0]);
    stats[channels + c] = static_cast<float>(merged.at[1]);
    if (c == 0) {
      stats[2 * channels] = static_cast<float>(merged.at[2]);
    }
  }
}

/// dy, dy2 (or null), x: (rows, C); mask or null; coefficients: (4, C); partial: (2, chunks, C): sum g and sum g * (x -
/// mean). Reads the valid rows of dy, dy2 and x once and one bit of the mask per element; writes 8 bytes per chunk and
/// channel.
template <class T, bool kSecond, bool kMask, int kCount>
__global__ void __launch_bounds__(kBlock)
    backward_sums_kernel(Tiling tiling, Batch batch, const T* dy, const T* dy2, const std::uint8_t* mask, const T* x,
                         const float* coefficients, const int64_t* valid, float* partial) {
  const int64_t valid_row = valid_rows(batch, valid);
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  const int64_t step = tiling.lanes * tiling.channels;
  for (int64_t item = blockIdx.x; item < tiling.tiles * tiling.chunks; item += gridDim.x) {
    const int64_t chunk = item / tiling.tiles;
    const int64_t c = (item % tiling.tiles * tiling.tile + column) * kCount;
    const int64_t left = valid_row - chunk * tiling.chunk;
    const int64_t rows = left < tiling.chunk ? left : tiling.chunk;
    const bool mine = lane < tiling.lanes && c < tiling.channels;
    Part<float, 2 * kCount> sums{};
    if (mine && lane < rows) {
      Pack<float, kCount> mean;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mean.at[j] = coefficients[2 * tiling.channels + c + j];
      }
      const int count = static_cast<int>((rows - lane + tiling.lanes - 1) / tiling.lanes);
      const int64_t begin = (chunk * tiling.chunk + lane) * tiling.channels + c;
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const int64_t at = begin + i * step;
        Pack<float, kCount> g = load_floats<kCount>(dy + at);
        const Pack<float, kCount> value = load_floats<kCount>(x + at);
        if constexpr (kSecond) {
          add_to(g, load_floats<kCount>(dy2 + at));
        }
        if constexpr (kMask) {
          keep(g, static_cast<unsigned>(mask[at >> 3]) >> (at & 7));  // a column does not cross a byte
        }
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sums.at[j] += g.at[j];
          sums.at[kCount + j] = fmaf(g.at[j], value.at[j] - mean.at[j], sums.at[kCount + j]);
        }
      }
    }
    join_lanes(sums, tiling.tile, tiling.lanes, JoinSums{});
    if (mine && lane == 0 && rows > 0) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        partial[chunk * tiling.channels + c + j] = sums.at[j];
        partial[(tiling.chunks + chunk) * tiling.channels + c + j] = sums.at[kCount + j];
      }
    }
  }
}

/// partial: (2, chunks, C) as above; sums: (2, C); dweight, dbias: (C), null when they are not wanted.
__global__ void __launch_bounds__(kBlock)
    backward_merge_kernel(Tiling tiling, Batch batch, const float* partial, const float* coefficients,
                          const int64_t* valid, float* sums, float* dweight, float* dbias, bool accumulate) {
  const int64_t channels = tiling.channels;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Part<double, 2>& part) {
    for (int64_t i = first; i < last; ++i) {
      part.at[0] += static_cast<double>(partial[i * channels + c]);
      part.at[1] += static_cast<double>(partial[(tiling.chunks + i) * channels + c]);
    }
  };
  const auto finish = [&](int64_t c, const Part<double, 2>& part) {
    const float sum = static_cast<float>(part.at[0]);
    const float product = static_cast<float>(part.at[1] * static_cast<double>(coefficients[3 * channels + c]));
    sums[c] = sum;
    sums[channels + c] = product;
    if (dweight != nullptr) {
      dweight[c] = accumulate ? dweight[c] + product : product;
      dbias[c] = accumulate ? dbias[c] + sum : sum;
    }
  };
  const int64_t live = (valid_rows(batch, valid) + tiling.chunk - 1) / tiling.chunk;
  merge_chunks<2>(channels, live, join_chunks, JoinSums{}, finish);
}

// ---- coefficients --------------------------------------------------------------------------------------------------

/// coefficients: (4, C). In double, like the host: a few numbers per channel. shift is computed from the rounded scale,
/// so that y = bias at x = mean up to one rounding.
__device__ void write_coefficients(double mean, double variance, double epsilon, const float* weight, const float* bias,
                                   int64_t channels, int64_t c, float* coefficients) {
  const double inv_std = 1.0 / sqrt(variance + epsilon);
  const float scale = static_cast<float>(static_cast<double>(weight[c]) * inv_std);
  coefficients[c] = scale;
  coefficients[channels + c] = static_cast<float>(static_cast<double>(bias[c]) - mean * static_cast<double>(scale));
  coefficients[2 * channels + c] = static_cast<float>(mean);
  coefficients[3 * channels + c] = static_cast<float>(inv_std);
}

/// stats: (2C + 1); weight, bias, running_mean and running_var (null when not wanted): (C). 40 bytes per channel.
__global__ void finalize_kernel(int64_t channels, const float* stats, const float* weight, const float* bias,
                                double epsilon, double momentum, float* running_mean, float* running_var,
                                float* coefficients) {
  const double count = static_cast<double>(stats[2 * channels]);
  const double unbiased = count > 2.0 ? count - 1.0 : 1.0;
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < channels;
       c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const double mean = static_cast<double>(stats[c]);
    const double squares = static_cast<double>(stats[channels + c]);
    write_coefficients(mean, count > 0.0 ? squares / count : 0.0, epsilon, weight, bias, channels, c, coefficients);
    if (running_mean != nullptr && count > 0.0) {
      running_mean[c] = static_cast<float>((1.0 - momentum) * static_cast<double>(running_mean[c]) + momentum * mean);
      running_var[c] =
          static_cast<float>((1.0 - momentum) * static_cast<double>(running_var[c]) + momentum * (squares / unbiased));
    }
  }
}

/// All (C); coefficients: (4, C).
__global__ void finalize_inference_kernel(int64_t channels, const float* running_mean, const float* running_var,
                                          const float* weight, const float* bias, double epsilon, float* coefficients) {
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < channels;
       c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    write_coefficients(static_cast<double>(running_mean[c]), static_cast<double>(running_var[c]), epsilon, weight, bias,
                       channels, c, coefficients);
  }
}

// ---- elementwise passes --------------------------------------------------------------------------------------------

constexpr int kPiece = 8;  // elements: a byte of the mask

/// Pieces of 8 elements, distributed so that each thread's channels stay the same: threads are `stride` pieces apart, a
/// multiple of C elements.
struct Pieces {
  int64_t channels;
  int64_t numel;
  int64_t count;   // pieces
  int64_t stride;  // threads that work; the others have nothing to do
  bool aligned;    // 16-byte accesses

  Pieces(int64_t channels_, int64_t numel_, int64_t count_, bool aligned_)
      : channels(channels_), numel(numel_), count(count_), aligned(aligned_) {
    const int64_t period = channels / std::gcd(channels, int64_t{kPiece});
    const int64_t threads = static_cast<int64_t>(gpu::blocks_for(count, kBlock)) * kBlock;
    stride = threads < period ? period : threads / period * period;
  }
  [[nodiscard]] unsigned blocks() const { return static_cast<unsigned>((stride + kBlock - 1) / kBlock); }
  /// True when a piece of `elements` elements is read and written in 16-byte accesses.
  [[nodiscard]] __device__ bool whole(int elements) const { return aligned && elements == kPiece; }
};

using Eight = Pack<float, kPiece>;

/// The channels of a thread's pieces.
struct Channels {
  int64_t at[kPiece];

  __device__ Channels(int64_t thread, int64_t channels) {
    int64_t c = thread * kPiece % channels;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      at[j] = c;
      c = c + 1 < channels ? c + 1 : 0;
    }
  }
  __device__ Eight of(const float* values) const {
    Eight result;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      result.at[j] = values[at[j]];
    }
    return result;
  }
};

/// The first `count` elements of a piece; whole: all 8, in 16-byte accesses.
template <class T>
__device__ Eight load_piece(const T* from, bool whole, int count) {
  if (whole) {
    return load_floats<kPiece>(from);
  }
  Eight values;
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    values.at[j] = j < count ? gpu::to_float(from[j]) : 0.0F;
  }
  return values;
}

template <class T>
__device__ void store_piece(T* to, bool whole, int count, const Pack<T, kPiece>& values) {
  if (whole) {
    gpu::store(to, values);
    return;
  }
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    if (j < count) {
      to[j] = values.at[j];
    }
  }
}

/// How many elements of a piece lie before `end`: 0 to 8.
__device__ int elements_before(int64_t end, int64_t begin) {
  const int64_t left = end - begin;
  return static_cast<int>(left < 0 ? 0 : left < kPiece ? left : kPiece);
}

/// x, residual (or null), y: (rows, C); coefficients: (4, C); mask or null. Moves x, residual and y once, and one bit
/// per element. The pieces after the last element are the mask's last bytes. y may be x or residual.
template <class T>
__global__ void __launch_bounds__(kBlock) apply_kernel(Pieces pieces, const T* x, const float* coefficients,
                                                       const T* residual, bool relu, T* y, std::uint8_t* mask) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (thread >= pieces.stride) {
    return;
  }
  const Channels channels(thread, pieces.channels);
  const Eight scale = channels.of(coefficients);
  const Eight shift = channels.of(coefficients + pieces.channels);
  for (int64_t piece = thread; piece < pieces.count; piece += pieces.stride) {
    const int64_t begin = piece * kPiece;
    const int count = elements_before(pieces.numel, begin);
    const bool whole = pieces.whole(count);
    const Eight value = load_piece(x + begin, whole, count);
    Eight add{};
    if (residual != nullptr) {
      add = load_piece(residual + begin, whole, count);
    }
    Pack<T, kPiece> result;
    unsigned positive = 0;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      float v = fmaf(value.at[j], scale.at[j], shift.at[j]) + add.at[j];
      if (relu) {
        v = v <= 0.0F ? 0.0F : v;  // NaN stays NaN
      }
      result.at[j] = gpu::from_float<T>(v);
      positive |= (j < count && gpu::to_float(result.at[j]) > 0.0F ? 1U : 0U) << j;
    }
    store_piece(y + begin, whole, count, result);
    if (mask != nullptr) {
      mask[piece] = static_cast<std::uint8_t>(positive);
    }
  }
}

/// dy, dy2 (or null), x, dx, dresidual (or null): (rows, C); mask or null; coefficients: (4, C); sums: (2, C); stats:
/// (2C + 1). Reads dy, dy2, x and the mask, writes dx and dresidual, each once; padding rows are not read, except in
/// the piece on the edge.
///   dx = scale * g + (x - mean) * slope + offset
template <class T>
__global__ void __launch_bounds__(kBlock)
    backward_apply_kernel(Pieces pieces, Batch batch, const T* dy, const T* dy2, const std::uint8_t* mask, const T* x,
                          const float* coefficients, const float* sums, const float* stats, const int64_t* valid, T* dx,
                          T* dresidual) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (thread >= pieces.stride) {
    return;
  }
  const Channels channels(thread, pieces.channels);
  const Eight scale = channels.of(coefficients);
  const Eight mean = channels.of(coefficients + 2 * pieces.channels);
  Eight slope = channels.of(coefficients + 3 * pieces.channels);  // inv_std for now
  Eight offset = channels.of(sums);
  const Eight products = channels.of(sums + pieces.channels);
  const float rows = stats[2 * pieces.channels];
  const float inv_rows = rows > 0.0F ? 1.0F / rows : 0.0F;
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    const float step = -scale.at[j] * inv_rows;
    slope.at[j] *= step * products.at[j];
    offset.at[j] *= step;
  }
  const int64_t end = valid_rows(batch, valid) * pieces.channels;
  for (int64_t piece = thread; piece < pieces.count; piece += pieces.stride) {
    const int64_t begin = piece * kPiece;
    const int count = elements_before(pieces.numel, begin);
    const int live = elements_before(end, begin);
    const bool whole = pieces.whole(count);
    Pack<T, kPiece> to_x{};
    Pack<T, kPiece> to_residual{};
    if (live > 0) {
      Eight g = load_piece(dy + begin, whole, count);
      const Eight value = load_piece(x + begin, whole, count);
      if (dy2 != nullptr) {
        add_to(g, load_piece(dy2 + begin, whole, count));
      }
      if (mask != nullptr) {
        keep(g, mask[piece]);
      }
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {
        const float rest = fmaf(value.at[j] - mean.at[j], slope.at[j], offset.at[j]);
        to_x.at[j] = gpu::from_float<T>(j < live ? fmaf(scale.at[j], g.at[j], rest) : 0.0F);
        to_residual.at[j] = gpu::from_float<T>(j < live ? g.at[j] : 0.0F);
      }
    }
    store_piece(dx + begin, whole, count, to_x);
    if (dresidual != nullptr) {
      store_piece(dresidual + begin, whole, count, to_residual);
    }
  }
}

// ---- launches ------------------------------------------------------------------------------------------------------

template <class T>
T* pointer(const TensorView& view) {
  return view.given() ? static_cast<T*>(view.data) : nullptr;
}

Batch batch_of(const TensorView& x) {
  const int64_t samples = x.shape[0];
  return {samples, samples > 0 ? x.numel() / x.shape.back() / samples : 0};
}

Tiling tiling_of(const TensorView& x, int per_column) {
  return {x.numel() / x.shape.back(), x.shape.back(), per_column};
}

Pieces pieces_of(const TensorView& x, const TensorView& mask, bool aligned) {
  const int64_t count = mask.given() ? mask.numel() : (x.numel() + kPiece - 1) / kPiece;
  return {x.shape.back(), x.numel(), count, aligned};
}

/// Calls f with flag as a std::bool_constant.
template <class F>
void visit_flag(bool flag, F&& f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}

template <class T, int kCount>
void stats_of(CudaContext& context, const TensorView& x, const int64_t* valid, float* stats, void* workspace) {
  const Tiling tiling = tiling_of(x, kCount);
  const Batch batch = batch_of(x);
  auto* means = static_cast<double*>(workspace);
  auto* squares = reinterpret_cast<float*>(means + tiling.chunks * tiling.channels);
  if (tiling.chunks > 0) {
    gpu::launch(stats_kernel<T, kCount>, dim3(tiling.blocks()), dim3(kBlock), 0, context.stream(), tiling, batch,
                gpu::data<const T>(x), valid, means, squares);
  }
  gpu::launch(stats_merge_kernel, dim3(merge_blocks(tiling.channels)), dim3(kBlock), 0, context.stream(), tiling, batch,
              means, squares, valid, stats);
}

}  // namespace

std::size_t batch_norm_workspace_bytes(const CudaContext& /*context*/, const TensorView& x) {
  const Tiling wide = tiling_of(x, x.shape.back() % (16 / static_cast<int64_t>(size_of(x.dtype))) == 0
                                       ? 16 / static_cast<int>(size_of(x.dtype))
                                       : 1);
  const Tiling narrow = tiling_of(x, 1);  // of tensors off a 16-byte boundary
  const auto partials = static_cast<std::size_t>(std::max(wide.chunks, narrow.chunks) * x.shape.back());
  return partials * (sizeof(double) + sizeof(float));
}

void batch_norm_stats(CudaContext& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
                      const TensorView& workspace) {
  gpu::visit_element(x.dtype, "batch_norm_stats", [&]<class T>(std::type_identity<T>) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&](auto count) {
      stats_of<T, count()>(context, x, pointer<const int64_t>(valid), gpu::data<float>(stats), workspace.data);
    });
  });
}

void batch_norm_merge_stats(CudaContext& context, const TensorView& parts, const TensorView& stats) {
  const int64_t channels = parts.shape[1] / 2;
  gpu::launch(merge_parts_kernel, dim3(gpu::blocks_for(channels, kBlock)), dim3(kBlock), 0, context.stream(),
              parts.shape[0], channels, gpu::data<const float>(parts), gpu::data<float>(stats));
}

void batch_norm_finalize(CudaContext& context, const TensorView& stats, const TensorView& weight,
                         const TensorView& bias, double epsilon, double momentum, const TensorView& running_mean,
                         const TensorView& running_var, const TensorView& coefficients) {
  const int64_t channels = weight.shape[0];
  gpu::launch(finalize_kernel, dim3(gpu::blocks_for(channels, kBlock)), dim3(kBlock), 0, context.stream(), channels,
              gpu::data<const float>(stats), gpu::data<const float>(weight), gpu::data<const float>(bias), epsilon,
              momentum, pointer<float>(running_mean), pointer<float>(running_var), gpu::data<float>(coefficients));
}

void batch_norm_finalize_inference(CudaContext& context, const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& weight, const TensorView& bias, double epsilon,
                                   const TensorView& coefficients) {
  const int64_t channels = weight.shape[0];
  gpu::launch(finalize_inference_kernel, dim3(gpu::blocks_for(channels, kBlock)), dim3(kBlock), 0, context.stream(),
              channels, gpu::data<const float>(running_mean), gpu::data<const float>(running_var),
              gpu::data<const float>(weight), gpu::data<const float>(bias), epsilon, gpu::data<float>(coefficients));
}

void batch_norm_apply(CudaContext& context, const TensorView& x, const TensorView& coefficients,
                      const TensorView& residual, bool relu, const TensorView& y, const TensorView& mask) {
  gpu::visit_element(x.dtype, "batch_norm_apply", [&]<class T>(std::type_identity<T>) {
    const auto* added = pointer<const T>(residual);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x), added, gpu::data<const T>(y));
    const Pieces pieces = pieces_of(x, mask, aligned);
    if (pieces.count > 0) {
      gpu::launch(apply_kernel<T>, dim3(pieces.blocks()), dim3(kBlock), 0, context.stream(), pieces,
                  gpu::data<const T>(x), gpu::data<const float>(coefficients), added, relu, gpu::data<T>(y),
                  pointer<std::uint8_t>(mask));
    }
  });
}

void batch_norm_backward_reduce(CudaContext& context, const TensorView& dy, const TensorView& dy2,
                                const TensorView& mask, const TensorView& x, const TensorView& coefficients,
                                const TensorView& valid, GradMode mode, const TensorView& sums,
                                const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  const Batch batch = batch_of(x);
  const auto* table = gpu::data<const float>(coefficients);
  const auto* samples = pointer<const int64_t>(valid);
  auto* partial = static_cast<float*>(workspace.data);
  const auto run = [&]<class T, int kCount, bool kSecond, bool kMask>(
                       std::type_identity<T>, std::integral_constant<int, kCount>, std::bool_constant<kSecond>,
                       std::bool_constant<kMask>) {
    const Tiling tiling = tiling_of(x, kCount);
    if (tiling.chunks > 0) {
      gpu::launch(backward_sums_kernel<T, kSecond, kMask, kCount>, dim3(tiling.blocks()), dim3(kBlock), 0,
                  context.stream(), tiling, batch, gpu::data<const T>(dy), pointer<const T>(dy2),
                  pointer<const std::uint8_t>(mask), gpu::data<const T>(x), table, samples, partial);
    }
    const bool wanted = mode != GradMode::ignore;
    gpu::launch(backward_merge_kernel, dim3(merge_blocks(tiling.channels)), dim3(kBlock), 0, context.stream(), tiling,
                batch, partial, table, samples, gpu::data<float>(sums), wanted ? gpu::data<float>(dweight) : nullptr,
                wanted ? gpu::data<float>(dbias) : nullptr, mode == GradMode::accumulate);
  };
  gpu::visit_element(x.dtype, "batch_norm_backward_reduce", [&]<class T>(std::type_identity<T> type) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x), gpu::data<const T>(dy), pointer<const T>(dy2));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&](auto count) {
      visit_flag(dy2.given(), [&](auto second) {
        visit_flag(mask.given(), [&](auto masked) { run(type, count, second, masked); });
      });
    });
  });
}

void batch_norm_backward_apply(CudaContext& context, const TensorView& dy, const TensorView& dy2,
                               const TensorView& mask, const TensorView& x, const TensorView& coefficients,
                               const TensorView& sums, const TensorView& stats, const TensorView& valid,
                               const TensorView& dx, const TensorView& dresidual) {
  gpu::visit_element(x.dtype, "batch_norm_backward_apply", [&]<class T>(std::type_identity<T>) {
    const auto* second = pointer<const T>(dy2);
    auto* to_residual = pointer<T>(dresidual);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(dy), second, gpu::data<const T>(x),
                                                 gpu::data<const T>(dx), static_cast<const T*>(to_residual));
    const Pieces pieces = pieces_of(x, TensorView(), aligned);
    if (pieces.count > 0) {
      gpu::launch(backward_apply_kernel<T>, dim3(pieces.blocks()), dim3(kBlock), 0, context.stream(), pieces,
                  batch_of(x), gpu::data<const T>(dy), second, pointer<const std::uint8_t>(mask), gpu::data<const T>(x),
                  gpu::data<const float>(coefficients), gpu::data<const float>(sums), gpu::data<const float>(stats),
                  pointer<const int64_t>(valid), gpu::data<T>(dx), to_residual);
    }
  });
}

}  // namespace lockstep::ops::backend
