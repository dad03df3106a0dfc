#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/tickets.hpp>

// docs/cuda.md explains these kernels step by step.
//
// x, dy, .. are (rows, C) here. There are two kinds of kernels:
//   sums:        a block takes a chunk of rows of a tile of channels. A thread keeps the same kCount channels (16 bytes
//                of them, or 1) and takes every lanes-th row. Lanes are joined in shared memory; the block that
//                finishes the last chunk of a tile joins its chunks. The shape alone fixes both orders. Chunks are
//                taken from the last to the first: the kernel before has just written the end of the tensor, which the
//                cache may still hold.
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

template <class T, int kCount>
__device__ Pack<float, kCount> floats(const Pack<T, kCount>& raw) {
  Pack<float, kCount> values;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    values.at[j] = gpu::to_float(raw.at[j]);
  }
  return values;
}

template <int kCount, class T>
__device__ Pack<float, kCount> load_floats(const T* from) {
  return floats(gpu::load<kCount>(from));
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

constexpr int kTile = 8;           // columns of a tile at most: 128 bytes of a row, few chunks for one block to join
constexpr int kNarrowTile = 32;    // the same, in single elements
constexpr int64_t kLeastRows = 8;  // of a thread
constexpr int64_t kMostRows = 64;  // rows of a thread: the rounding errors of its sums grow with them
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
    const int64_t most = per_column > 1 ? kTile : kNarrowTile;
    tiles = (columns + most - 1) / most;
    tile = static_cast<int>((columns + tiles - 1) / tiles);
    lanes = kBlock / tile;
    const int64_t wanted = (kWantedTiles + tiles - 1) / tiles;
    chunk = std::clamp((rows + lanes * wanted - 1) / (lanes * wanted), kLeastRows, kMostRows) * lanes;
    chunks = std::max((rows + chunk - 1) / chunk, int64_t{1});
  }
  [[nodiscard]] unsigned blocks() const { return gpu::blocks_for(tiles * chunks, 1); }
};

/// A block's share of a sum: a chunk of a tile.
struct Item {
  int64_t chunk;
  int64_t tile;

  __device__ Item(const Tiling& tiling, int64_t number)
      : chunk(tiling.chunks - 1 - number / tiling.tiles), tile(number % tiling.tiles) {}
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
#pragma unroll 8
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

/// What becomes of the statistics: all (C); coefficients: (4, C), null when they are not wanted.
struct Finalize {
  const float* weight;
  const float* bias;
  double epsilon;
  double momentum;
  float* running_mean;  // null when not wanted, like running_var
  float* running_var;
  float* coefficients;
};

/// Coefficients of channel c. In double, like the host: a few numbers per channel. shift is computed from the rounded
/// scale, so that y = bias at x = mean up to one rounding.
__device__ void write_coefficients(double mean, double variance, double epsilon, const float* weight, const float* bias,
                                   int64_t channels, int64_t c, float* coefficients) {
  const double inv_std = 1.0 / sqrt(variance + epsilon);
  const float scale = static_cast<float>(static_cast<double>(weight[c]) * inv_std);
  coefficients[c] = scale;
  coefficients[channels + c] = static_cast<float>(static_cast<double>(bias[c]) - mean * static_cast<double>(scale));
  coefficients[2 * channels + c] = static_cast<float>(mean);
  coefficients[3 * channels + c] = static_cast<float>(inv_std);
}

/// From the statistics as they are stored, so that one launch and two have the same bits.
__device__ void finalize(const Finalize& to, float stored_mean, float stored_squares, float stored_count,
                         int64_t channels, int64_t c) {
  const double count = static_cast<double>(stored_count);
  const double unbiased = count > 2.0 ? count - 1.0 : 1.0;
  const double mean = static_cast<double>(stored_mean);
  const double squares = static_cast<double>(stored_squares);
  write_coefficients(mean, count > 0.0 ? squares / count : 0.0, to.epsilon, to.weight, to.bias, channels, c,
                     to.coefficients);
  if (to.running_mean != nullptr && count > 0.0) {
    to.running_mean[c] =
        static_cast<float>((1.0 - to.momentum) * static_cast<double>(to.running_mean[c]) + to.momentum * mean);
    to.running_var[c] = static_cast<float>((1.0 - to.momentum) * static_cast<double>(to.running_var[c]) +
                                           to.momentum * (squares / unbiased));
  }
}

/// Joins the chunks of a tile: as many lanes as the block has for each of its channels share the `live` chunks, each a
/// run of neighbouring ones. Calls join_chunks(c, first, last, part) with a zero part in each of them, adds the parts
/// up, and calls finish(c, part) in one. All threads of the block call it. In double: hundreds of chunks cost no
/// precision.
template <int kValues, class JoinChunks, class Finish>
__device__ void merge_tile(const Tiling& tiling, int64_t tile, int kCount, int64_t live, JoinChunks join_chunks,
                           Finish finish) {
  const int width = tiling.tile * kCount;
  const int lanes = kBlock / width;
  const int lane = static_cast<int>(threadIdx.x) / width;
  const int64_t c = tile * width + threadIdx.x % width;
  const int64_t share = (live + lanes - 1) / lanes;
  const int64_t first = lane * share;
  Part<double, kValues> part{};
  if (lane < lanes && c < tiling.channels) {
    join_chunks(c, first, first + share < live ? first + share : live, part);
  }
  join_lanes(part, width, lanes, JoinSums{});
  if (lane == 0 && c < tiling.channels) {
    finish(c, part);
  }
}

/// x: (rows, C); means, squares: (chunks, C); tickets: zeros, before and after; stats: (2C + 1). Reads the valid rows
/// of x once; writes and reads 12 bytes per chunk and channel; a chunk has at least 64 rows.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, 2)
    stats_kernel(Tiling tiling, Batch batch, const T* x, const int64_t* valid, double* means, float* squares,
                 unsigned* tickets, float* stats, Finalize to) {
  const int64_t valid_row = valid_rows(batch, valid);
  const int64_t channels = tiling.channels;
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Part<double, 3>& part) {
    const double shift = means[c];  // of the first chunk: deviations from it lose no bits of a large mean
#pragma unroll 4
    for (int64_t i = first; i < last; ++i) {
      const int64_t left = valid_row - i * tiling.chunk;
      const double rows = static_cast<double>(left < tiling.chunk ? left : tiling.chunk);
      const double deviation = means[i * channels + c] - shift;
      part.at[0] += rows * deviation;
      part.at[1] += rows * deviation * deviation;
      part.at[2] += static_cast<double>(squares[i * channels + c]);
    }
  };
  const auto finish = [&](int64_t c, const Part<double, 3>& part) {
    const double offset = valid_row > 0 ? part.at[0] / static_cast<double>(valid_row) : 0.0;
    const double between = part.at[1] - part.at[0] * offset;
    const float mean = static_cast<float>(valid_row > 0 ? means[c] + offset : 0.0);
    const float sum = static_cast<float>(part.at[2] + (between < 0.0 ? 0.0 : between));  // NaN stays NaN
    const float count = static_cast<float>(valid_row);
    stats[c] = mean;
    stats[channels + c] = sum;
    if (c == 0) {
      stats[2 * channels] = count;
    }
    if (to.coefficients != nullptr) {
      finalize(to, mean, sum, count, channels, c);
    }
  };
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Item item(tiling, number);
    const int64_t c = (item.tile * tiling.tile + column) * kCount;
    const int64_t left = valid_row - item.chunk * tiling.chunk;
    const int64_t rows = left < tiling.chunk ? left : tiling.chunk;  // not positive after the valid rows
    const bool mine = lane < tiling.lanes && c < channels;
    const T* from = x + item.chunk * tiling.chunk * channels + c;
    Moments<float, kCount> moments = column_moments<kCount>(from, channels, lane, tiling.lanes, mine ? rows : 0);
    join_lanes(moments, tiling.tile, tiling.lanes, JoinMoments{});
    if (mine && lane == 0 && rows > 0) {
      const Pack<float, kCount> base = load_floats<kCount>(from);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int64_t at = item.chunk * channels + c + j;
        means[at] = static_cast<double>(base.at[j]) + static_cast<double>(moments.at[j]);
        squares[at] = moments.at[kCount + j];
      }
    }
    gpu::when_last(tickets, item.tile, tiling.tiles, tiling.chunks, [&](int64_t tile) {
      merge_tile<3>(tiling, tile, kCount, (valid_row + tiling.chunk - 1) / tiling.chunk, join_chunks, finish);
    });
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

/// What becomes of the sums: sums: (2, C); dweight, dbias: (C), null when they are not wanted.
struct Gradients {
  float* sums;
  float* dweight;
  float* dbias;
  bool accumulate;
};

/// dy, dy2, x: (rows, C); masked (null unless kStore): (rows, C), may be dy or dy2; coefficients: (4, C); partial:
/// (2, chunks, C): sum g and sum g * (x - mean); tickets: zeros, before and after. Reads the valid rows of dy, dy2 and
/// x once and one bit of the mask per element, and with kStore writes g, rounded, and 0 in padding rows; the sums are
/// those of what is written. Writes and reads 8 bytes per chunk and channel.
template <class T, bool kSecond, bool kMask, bool kStore, int kCount>
__global__ void __launch_bounds__(kBlock, 2)
    backward_sums_kernel(Tiling tiling, Batch batch, const T* dy, const T* dy2, const std::uint8_t* mask, const T* x,
                         const float* coefficients, const int64_t* valid, T* masked, float* partial, unsigned* tickets,
                         Gradients to) {
  const int64_t valid_row = valid_rows(batch, valid);
  const int64_t channels = tiling.channels;
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  const int64_t step = channels * tiling.lanes;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Part<double, 2>& part) {
#pragma unroll 4
    for (int64_t i = first; i < last; ++i) {
      part.at[0] += static_cast<double>(partial[i * channels + c]);
      part.at[1] += static_cast<double>(partial[(tiling.chunks + i) * channels + c]);
    }
  };
  const auto finish = [&](int64_t c, const Part<double, 2>& part) {
    const float sum = static_cast<float>(part.at[0]);
    const float product = static_cast<float>(part.at[1] * static_cast<double>(coefficients[3 * channels + c]));
    to.sums[c] = sum;
    to.sums[channels + c] = product;
    if (to.dweight != nullptr) {
      to.dweight[c] = to.accumulate ? to.dweight[c] + product : product;
      to.dbias[c] = to.accumulate ? to.dbias[c] + sum : sum;
    }
  };
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Item item(tiling, number);
    const int64_t c = (item.tile * tiling.tile + column) * kCount;
    const int64_t left = valid_row - item.chunk * tiling.chunk;
    const int64_t rows = left < 0 ? 0 : left < tiling.chunk ? left : tiling.chunk;
    const bool mine = lane < tiling.lanes && c < channels;
    const int64_t begin = (item.chunk * tiling.chunk + lane) * channels + c;
    const int count = lane < rows ? static_cast<int>((rows - lane + tiling.lanes - 1) / tiling.lanes) : 0;
    Part<float, 2 * kCount> sums{};
    if (mine && count > 0) {
      Pack<float, kCount> mean;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mean.at[j] = coefficients[2 * channels + c + j];
      }
      // Several rows at a time: what they need is on its way before the first of it is waited for.
      const auto add_rows = [&]<int kRows>(int first, std::integral_constant<int, kRows>) {
        Pack<T, kCount> raw_g[kRows];
        Pack<T, kCount> raw_x[kRows];
        [[maybe_unused]] Pack<T, kCount> raw_second[kRows];
        [[maybe_unused]] unsigned bits[kRows];
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const int64_t at = begin + (first + k) * step;
          raw_g[k] = gpu::load<kCount>(dy + at);
          raw_x[k] = gpu::load<kCount>(x + at);
          if constexpr (kSecond) {
            raw_second[k] = gpu::load<kCount>(dy2 + at);
          }
          if constexpr (kMask) {
            bits[k] = static_cast<unsigned>(mask[at >> 3]) >> (at & 7);  // a column does not cross a byte
          }
        }
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          Pack<float, kCount> g = floats(raw_g[k]);
          const Pack<float, kCount> value = floats(raw_x[k]);
          if constexpr (kSecond) {
            add_to(g, floats(raw_second[k]));
          }
          if constexpr (kMask) {
            keep(g, bits[k]);
          }
          if constexpr (kStore) {
            const Pack<T, kCount> stored = gpu::rounded<T>(g.at);
            gpu::store(masked + begin + (first + k) * step, stored);
            g = floats(stored);
          }
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            sums.at[j] += g.at[j];
            sums.at[kCount + j] = fmaf(g.at[j], value.at[j] - mean.at[j], sums.at[kCount + j]);
          }
        }
      };
      constexpr int kRows = kSecond ? 2 : 4;
      int i = 0;
      for (; i + kRows <= count; i += kRows) {
        add_rows(i, std::integral_constant<int, kRows>{});
      }
      for (; i < count; ++i) {
        add_rows(i, std::integral_constant<int, 1>{});
      }
    }
    if constexpr (kStore) {
      const int64_t all = batch.samples * batch.per_sample - item.chunk * tiling.chunk;
      const int64_t end = all < tiling.chunk ? all : tiling.chunk;
      for (int64_t row = lane + static_cast<int64_t>(count) * tiling.lanes; mine && row < end; row += tiling.lanes) {
        gpu::store(masked + (item.chunk * tiling.chunk + row) * channels + c, Pack<T, kCount>{});
      }
    }
    join_lanes(sums, tiling.tile, tiling.lanes, JoinSums{});
    if (mine && lane == 0 && rows > 0) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        partial[item.chunk * channels + c + j] = sums.at[j];
        partial[(tiling.chunks + item.chunk) * channels + c + j] = sums.at[kCount + j];
      }
    }
    gpu::when_last(tickets, item.tile, tiling.tiles, tiling.chunks, [&](int64_t tile) {
      merge_tile<2>(tiling, tile, kCount, (valid_row + tiling.chunk - 1) / tiling.chunk, join_chunks, finish);
    });
  }
}

// ---- coefficients --------------------------------------------------------------------------------------------------

/// stats: (2C + 1). 40 bytes per channel.
__global__ void finalize_kernel(int64_t channels, const float* stats, Finalize to) {
  for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < channels;
       c += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    finalize(to, stats[c], stats[channels + c], stats[2 * channels], channels, c);
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

constexpr int kPiece = 8;            // elements: a byte of the mask
constexpr int kResidentForward = 4;  // blocks of a multiprocessor: the registers of a thread decide
constexpr int kResidentBackward = 3;

/// Pieces that a thread takes together: of 16-bit elements, which need half as many loads, two.
template <class T>
constexpr int kTogether = sizeof(T) == 2 ? 2 : 1;

/// Pieces of 8 elements, distributed so that each thread's channels stay the same: threads are `stride` pieces apart, a
/// multiple of C elements.
struct Pieces {
  int64_t channels;
  int64_t numel;
  int64_t count;   // pieces
  int64_t stride;  // threads that work; the others have nothing to do
  bool aligned;    // 16-byte accesses

  /// resident: blocks of the kernel that a multiprocessor holds.
  Pieces(int64_t channels_, int64_t numel_, int64_t count_, bool aligned_, int resident)
      : channels(channels_), numel(numel_), count(count_), aligned(aligned_) {
    const int64_t period = channels / std::gcd(channels, int64_t{kPiece});
    // As many blocks as run at once, so that no last few run alone: kMostBlocks counts 8 a multiprocessor.
    const int64_t most = std::max(gpu::kMostBlocks * resident / 8, int64_t{1});
    const int64_t threads = std::min(static_cast<int64_t>(gpu::blocks_for(count, kBlock)), most) * kBlock;
    stride = threads < period ? period : threads / period * period;
  }
  [[nodiscard]] unsigned blocks() const { return static_cast<unsigned>((stride + kBlock - 1) / kBlock); }
  /// True when a piece lies before element `end` and is read and written in 16-byte accesses.
  [[nodiscard]] __device__ bool whole_before(int64_t piece, int64_t end) const {
    return aligned && (piece + 1) * kPiece <= end;
  }
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

/// The first `count` elements of a piece, as they lie in memory, and zeros; kWhole: all 8, in 16-byte accesses.
template <bool kWhole, class T>
__device__ Pack<T, kPiece> load_piece(const T* from, int count) {
  if constexpr (kWhole) {
    return gpu::load<kPiece>(from);
  } else {
    Pack<T, kPiece> values{};
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      if (j < count) {
        values.at[j] = from[j];
      }
    }
    return values;
  }
}

template <bool kWhole, class T>
__device__ void store_piece(T* to, int count, const Pack<T, kPiece>& values) {
  if constexpr (kWhole) {
    gpu::store(to, values);
  } else {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      if (j < count) {
        to[j] = values.at[j];
      }
    }
  }
}

/// How many elements of a piece lie before `end`: 0 to 8.
__device__ int elements_before(int64_t end, int64_t begin) {
  const int64_t left = end - begin;
  return static_cast<int>(left < 0 ? 0 : left < kPiece ? left : kPiece);
}

/// Calls f with whether the piece is whole as a std::bool_constant.
template <class F>
__device__ void visit_piece(bool whole, F f) {
  if (whole) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

/// x, residual (or null), y: (rows, C); coefficients, with kNorm also those of the residual: (4, C); mask or null.
/// Moves x, residual and y once, and one bit per element. The pieces after the last element are the mask's last bytes.
/// y may be x or residual.
template <class T, bool kResidual, bool kNorm>
__global__ void __launch_bounds__(kBlock, kResidentForward)
    apply_kernel(Pieces pieces, const T* x, const float* coefficients, const T* residual,
                 const float* residual_coefficients, bool relu, T* y, std::uint8_t* mask) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (thread >= pieces.stride) {
    return;
  }
  const Channels channels(thread, pieces.channels);
  const Eight scale = channels.of(coefficients);
  const Eight shift = channels.of(coefficients + pieces.channels);
  Eight scale2{};
  Eight shift2{};
  if constexpr (kNorm) {
    scale2 = channels.of(residual_coefficients);
    shift2 = channels.of(residual_coefficients + pieces.channels);
  }
  // kPieces pieces, a stride apart: what they need is on its way before the first of it is waited for.
  const auto take = [&]<int kPieces, bool kWhole>(int64_t first, std::integral_constant<int, kPieces>,
                                                  std::bool_constant<kWhole>) {
    Pack<T, kPiece> raw[kPieces];
    Pack<T, kPiece> raw_residual[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64_t begin = (first + k * pieces.stride) * kPiece;
      raw[k] = load_piece<kWhole>(x + begin, elements_before(pieces.numel, begin));
      raw_residual[k] = {};
      if constexpr (kResidual) {
        raw_residual[k] = load_piece<kWhole>(residual + begin, elements_before(pieces.numel, begin));
      }
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64_t piece = first + k * pieces.stride;
      const int count = kWhole ? kPiece : elements_before(pieces.numel, piece * kPiece);
      const Eight value = floats(raw[k]);
      Eight add = floats(raw_residual[k]);
      if constexpr (kNorm) {
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
          add.at[j] = fmaf(add.at[j], scale2.at[j], shift2.at[j]);
        }
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
      store_piece<kWhole>(y + piece * kPiece, count, result);
      if (mask != nullptr) {
        mask[piece] = static_cast<std::uint8_t>(positive);
      }
    }
  };
  int64_t piece = thread;
  constexpr int kPieces = kTogether<T>;
  for (; pieces.whole_before(piece + (kPieces - 1) * pieces.stride, pieces.numel); piece += kPieces * pieces.stride) {
    take(piece, std::integral_constant<int, kPieces>{}, std::true_type{});
  }
  for (; piece < pieces.count; piece += pieces.stride) {
    visit_piece(pieces.whole_before(piece, pieces.numel),
                [&](auto whole) { take(piece, std::integral_constant<int, 1>{}, whole); });
  }
}

/// dy, dy2 (or null), x, dx, dresidual (or null): (rows, C); mask or null; coefficients: (4, C); sums: (2, C); stats:
/// (2C + 1). Reads dy, dy2, x and the mask, writes dx and dresidual, each once; padding rows are not read, except in
/// the piece on the edge.
///   dx = scale * g + (x - mean) * slope + offset
template <class T, bool kSecond, bool kMask>
__global__ void __launch_bounds__(kBlock, kResidentBackward)
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
  // As in apply_kernel; at least one element of each piece counts.
  const auto take = [&]<int kPieces, bool kWhole>(int64_t first, std::integral_constant<int, kPieces>,
                                                  std::bool_constant<kWhole>) {
    Pack<T, kPiece> raw_g[kPieces];
    Pack<T, kPiece> raw_x[kPieces];
    [[maybe_unused]] Pack<T, kPiece> raw_second[kPieces];
    [[maybe_unused]] unsigned bits[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64_t piece = first + k * pieces.stride;
      const int count = elements_before(pieces.numel, piece * kPiece);
      raw_g[k] = load_piece<kWhole>(dy + piece * kPiece, count);
      raw_x[k] = load_piece<kWhole>(x + piece * kPiece, count);
      if constexpr (kSecond) {
        raw_second[k] = load_piece<kWhole>(dy2 + piece * kPiece, count);
      }
      if constexpr (kMask) {
        bits[k] = mask[piece];
      }
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64_t begin = (first + k * pieces.stride) * kPiece;
      const int count = kWhole ? kPiece : elements_before(pieces.numel, begin);
      const int live = elements_before(end, begin);
      Eight g = floats(raw_g[k]);
      const Eight value = floats(raw_x[k]);
      if constexpr (kSecond) {
        add_to(g, floats(raw_second[k]));
      }
      if constexpr (kMask) {
        keep(g, bits[k]);
      }
      Pack<T, kPiece> to_x;
      Pack<T, kPiece> to_residual;
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {
        const float rest = fmaf(value.at[j] - mean.at[j], slope.at[j], offset.at[j]);
        to_x.at[j] = gpu::from_float<T>(j < live ? fmaf(scale.at[j], g.at[j], rest) : 0.0F);
        to_residual.at[j] = gpu::from_float<T>(j < live ? g.at[j] : 0.0F);
      }
      store_piece<kWhole>(dx + begin, count, to_x);
      if (dresidual != nullptr) {
        store_piece<kWhole>(dresidual + begin, count, to_residual);
      }
    }
  };
  int64_t piece = thread;
  constexpr int kPieces = kTogether<T>;
  for (; pieces.whole_before(piece + (kPieces - 1) * pieces.stride, end); piece += kPieces * pieces.stride) {
    take(piece, std::integral_constant<int, kPieces>{}, std::true_type{});
  }
  for (; piece < pieces.count; piece += pieces.stride) {
    const int64_t begin = piece * kPiece;
    visit_piece(pieces.whole_before(piece, pieces.numel), [&]<bool kWhole>(std::bool_constant<kWhole> whole) {
      if (begin < end) {
        take(piece, std::integral_constant<int, 1>{}, whole);
        return;
      }
      const int count = elements_before(pieces.numel, begin);
      store_piece<kWhole>(dx + begin, count, Pack<T, kPiece>{});
      if (dresidual != nullptr) {
        store_piece<kWhole>(dresidual + begin, count, Pack<T, kPiece>{});
      }
    });
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

Pieces pieces_of(const TensorView& x, const TensorView& mask, bool aligned, int resident) {
  const int64_t count = mask.given() ? mask.numel() : (x.numel() + kPiece - 1) / kPiece;
  return {x.shape.back(), x.numel(), count, aligned, resident};
}

/// Calls f with flag as a std::bool_constant.
template <class F>
void visit_flag(bool flag, F&& f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}

/// to: what becomes of the statistics, nothing without coefficients.
void stats_of(CudaContext& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
              const TensorView& workspace, const Finalize& to) {
  gpu::visit_element(x.dtype, "batch_norm_stats", [&]<class T>(std::type_identity<T>) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&]<int kCount>(std::integral_constant<int, kCount>) {
      const Tiling tiling = tiling_of(x, kCount);
      auto* means = static_cast<double*>(workspace.data);
      auto* squares = reinterpret_cast<float*>(means + tiling.chunks * tiling.channels);
      gpu::launch(stats_kernel<T, kCount>, dim3(tiling.blocks()), dim3(kBlock), 0, context.stream(), tiling,
                  batch_of(x), gpu::data<const T>(x), pointer<const int64_t>(valid), means, squares,
                  gpu::tickets(context), gpu::data<float>(stats), to);
    });
  });
}

Finalize finalize_to(const TensorView& weight, const TensorView& bias, double epsilon, double momentum,
                     const TensorView& running_mean, const TensorView& running_var, const TensorView& coefficients) {
  return {
      gpu::data<const float>(weight), gpu::data<const float>(bias),  epsilon, momentum, pointer<float>(running_mean),
      pointer<float>(running_var),    gpu::data<float>(coefficients)};
}

template <bool kResidual, bool kNorm>
void apply(CudaContext& context, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
           const TensorView& residual_coefficients, bool relu, const TensorView& y, const TensorView& mask,
           std::bool_constant<kResidual>, std::bool_constant<kNorm>) {
  gpu::visit_element(x.dtype, "batch_norm_apply", [&]<class T>(std::type_identity<T>) {
    const auto* added = pointer<const T>(residual);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x), added, gpu::data<const T>(y));
    const Pieces pieces = pieces_of(x, mask, aligned, kResidentForward);
    if (pieces.count > 0) {
      gpu::launch(apply_kernel<T, kResidual, kNorm>, dim3(pieces.blocks()), dim3(kBlock), 0, context.stream(), pieces,
                  gpu::data<const T>(x), gpu::data<const float>(coefficients), added,
                  pointer<const float>(residual_coefficients), relu, gpu::data<T>(y), pointer<std::uint8_t>(mask));
    }
  });
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
  stats_of(context, x, valid, stats, workspace, {});
}

void batch_norm_coefficients(CudaContext& context, const TensorView& x, const TensorView& valid,
                             const TensorView& weight, const TensorView& bias, double epsilon, double momentum,
                             const TensorView& stats, const TensorView& running_mean, const TensorView& running_var,
                             const TensorView& coefficients, const TensorView& workspace) {
  stats_of(context, x, valid, stats, workspace,
           finalize_to(weight, bias, epsilon, momentum, running_mean, running_var, coefficients));
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
              gpu::data<const float>(stats),
              finalize_to(weight, bias, epsilon, momentum, running_mean, running_var, coefficients));
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
  visit_flag(residual.given(), [&](auto added) {
    apply(context, x, coefficients, residual, {}, relu, y, mask, added, std::false_type{});
  });
}

void batch_norm_apply_pair(CudaContext& context, const TensorView& x, const TensorView& coefficients,
                           const TensorView& residual, const TensorView& residual_coefficients, bool relu,
                           const TensorView& y, const TensorView& mask) {
  apply(context, x, coefficients, residual, residual_coefficients, relu, y, mask, std::true_type{}, std::true_type{});
}

void batch_norm_backward_reduce(CudaContext& context, const TensorView& dy, const TensorView& dy2,
                                const TensorView& mask, const TensorView& x, const TensorView& coefficients,
                                const TensorView& valid, GradMode mode, const TensorView& sums,
                                const TensorView& dweight, const TensorView& dbias, const TensorView& masked,
                                const TensorView& workspace) {
  const bool wanted = mode != GradMode::ignore;
  const Gradients to{gpu::data<float>(sums), wanted ? gpu::data<float>(dweight) : nullptr,
                     wanted ? gpu::data<float>(dbias) : nullptr, mode == GradMode::accumulate};
  const auto run = [&]<class T, int kCount, bool kSecond, bool kMask, bool kStore>(
                       std::type_identity<T>, std::integral_constant<int, kCount>, std::bool_constant<kSecond>,
                       std::bool_constant<kMask>, std::bool_constant<kStore>) {
    const Tiling tiling = tiling_of(x, kCount);
    gpu::launch(backward_sums_kernel<T, kSecond, kMask, kStore, kCount>, dim3(tiling.blocks()), dim3(kBlock), 0,
                context.stream(), tiling, batch_of(x), gpu::data<const T>(dy), pointer<const T>(dy2),
                pointer<const std::uint8_t>(mask), gpu::data<const T>(x), gpu::data<const float>(coefficients),
                pointer<const int64_t>(valid), pointer<T>(masked), static_cast<float*>(workspace.data),
                gpu::tickets(context), to);
  };
  gpu::visit_element(x.dtype, "batch_norm_backward_reduce", [&]<class T>(std::type_identity<T> type) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x), gpu::data<const T>(dy), pointer<const T>(dy2),
                                                 static_cast<const T*>(pointer<T>(masked)));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&](auto count) {
      visit_flag(dy2.given(), [&](auto second) {
        visit_flag(mask.given(), [&](auto has_mask) {
          visit_flag(masked.given(), [&](auto store) { run(type, count, second, has_mask, store); });
        });
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
    const Pieces pieces = pieces_of(x, TensorView(), aligned, kResidentBackward);
    if (pieces.count > 0) {
      const auto run = [&]<bool kSecond, bool kMask>(std::bool_constant<kSecond>, std::bool_constant<kMask>) {
        gpu::launch(backward_apply_kernel<T, kSecond, kMask>, dim3(pieces.blocks()), dim3(kBlock), 0, context.stream(),
                    pieces, batch_of(x), gpu::data<const T>(dy), second, pointer<const std::uint8_t>(mask),
                    gpu::data<const T>(x), gpu::data<const float>(coefficients), gpu::data<const float>(sums),
                    gpu::data<const float>(stats), pointer<const int64_t>(valid), gpu::data<T>(dx), to_residual);
      };
      visit_flag(dy2.given(),
                 [&](auto second_given) { visit_flag(mask.given(), [&](auto masked) { run(second_given, masked); }); });
    }
  });
}

}  // namespace lockstep::ops::backend
