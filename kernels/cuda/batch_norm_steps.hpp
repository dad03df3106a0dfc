#pragma once

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/cuda/batch_norm_sums.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/tickets.hpp>

/// The steps of batch norm as device functions. For each step of a pass batch_norm.cu launches a kernel; for a whole
/// pass batch_norm_fused.cu launches one kernel. Here x, dy and the other tensors have shape (rows, C).
namespace lockstep::ops::batch_norm {

/// Sets values[j] to zero if bit j of `bits` is 0.
template <int kCount>
__device__ void keep(Pack<float, kCount>& values, unsigned bits) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    values.at[j] = (bits >> j & 1U) != 0 ? values.at[j] : 0.0F;
  }
}

// ---- statistics -----------------------------------------------------------------------------------------------------

/// The moments of kCount channels: kCount means, kCount sums of squared deviations from the mean, the number of rows.
template <class Real, int kCount>
using Moments = Part<Real, 2 * kCount + 1>;

/// Changes `a` to the moments of all rows that are in `a` or in `b`, by the formula of Chan, Golub and LeVeque.
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

/// Returns the moments of the rows that a thread takes: rows lane, lane + lanes, ... of a column of kCount channels, in
/// a chunk of `rows` rows. `x` points to the column in the chunk's first row. Reads each of these rows once, and calls
/// keep_row(row, raw) for it.
///
/// The sums are sums of deviations from the thread's first value, because the mean of x may be far from 0. If this
/// value is an outlier, the relative error is larger, at most by about a factor of the number of the thread's rows. A
/// mean is stored as its difference from the channel's value in the chunk's first row, so that small differences
/// between large means keep their bits.
template <int kCount, class T, class KeepRow>
__device__ Moments<float, kCount> column_moments(const T* x, int64_t channels, int lane, int lanes, int64_t rows,
                                                 KeepRow keep_row) {
  Moments<float, kCount> moments{};
  if (lane >= rows) {
    return moments;
  }
  const int count = static_cast<int>((rows - lane + lanes - 1) / lanes);
  const T* from = x + lane * channels;
  const int64_t step = lanes * channels;
  const Pack<T, kCount> first = gpu::load<kCount>(from);
  keep_row(lane, first);
  const Pack<float, kCount> shift = floats(first);
  Pack<float, kCount> sum{};
  Pack<float, kCount> square{};
#pragma unroll 8
  for (int i = 1; i < count; ++i) {
    const Pack<T, kCount> raw = gpu::load<kCount>(from + i * step);
    keep_row(lane + i * lanes, raw);
    const Pack<float, kCount> value = floats(raw);
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

/// Inputs and outputs of finalize(). All arrays have C numbers, except coefficients (4, C), which is null if no
/// coefficients are wanted.
struct Finalize {
  const float* weight;
  const float* bias;
  double epsilon;
  double momentum;
  float* running_mean;  // running_mean and running_var are null if they are not wanted
  float* running_var;
  float* coefficients;
};

/// Writes the coefficients of channel `c`. Computes in double, like the host, as these are a few numbers per channel.
/// The shift is computed from the rounded scale, so that x = mean gives y = bias up to one rounding.
__device__ inline void write_coefficients(double mean, double variance, double epsilon, const float* weight,
                                          const float* bias, int64_t channels, int64_t c, float* coefficients) {
  const double inv_std = 1.0 / sqrt(variance + epsilon);
  const float scale = static_cast<float>(static_cast<double>(weight[c]) * inv_std);
  coefficients[c] = scale;
  coefficients[channels + c] = static_cast<float>(static_cast<double>(bias[c]) - mean * static_cast<double>(scale));
  coefficients[2 * channels + c] = static_cast<float>(mean);
  coefficients[3 * channels + c] = static_cast<float>(inv_std);
}

/// Writes the coefficients and running statistics of channel `c`. Takes the statistics rounded to float, as `stats`
/// stores them. So a kernel that computes all in one launch and separate kernels, which read `stats`, give the same
/// bits.
__device__ inline void finalize(const Finalize& to, float stored_mean, float stored_squares, float stored_count,
                                int64_t channels, int64_t c) {
  const double count = static_cast<double>(stored_count);
  const double unbiased = count > 2.0 ? count - 1.0 : 1.0;
  const double mean = static_cast<double>(stored_mean);
  const double squares = static_cast<double>(stored_squares);
  write_coefficients(mean, count > 0.0 ? squares / count : 0.0, to.epsilon, to.weight, to.bias, channels, c,
                     to.coefficients);
  if (to.running_mean != nullptr && count > 0.0 && isfinite(mean) && isfinite(squares)) {
    to.running_mean[c] =
        static_cast<float>((1.0 - to.momentum) * static_cast<double>(to.running_mean[c]) + to.momentum * mean);
    to.running_var[c] = static_cast<float>((1.0 - to.momentum) * static_cast<double>(to.running_var[c]) +
                                           to.momentum * (squares / unbiased));
  }
}

/// Computes the moments of the items that this block takes. An item is one chunk of rows of one tile of channels. The
/// block that finishes the last item of a tile joins the tile's chunks and writes stats; if to.coefficients is not
/// null, it also calls finalize(). All threads of all blocks must call sum_moments().
///
/// x: (rows, C); means, squares: (chunks, C); tickets: counters that are 0 before and after the launch; stats: (2C +
/// 1). Each thread calls keep_row(turn, row, raw) for each of its valid rows: `turn` is the item's number among the
/// block's items, `row` is the row's number in the chunk.
template <int kCount, class T, class KeepRow>
__device__ void sum_moments(const Tiling& tiling, const Batch& batch, const T* x, const int64_t* valid, double* means,
                            float* squares, unsigned* tickets, float* stats, const Finalize& to, KeepRow keep_row) {
  const int64_t valid_row = valid_rows(batch, valid);
  const int64_t channels = tiling.channels;
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Part<double, 3>& part) {
    // The shift is the mean of the first chunk, so that deviations from the shift lose no bits of a large mean. If
    // there is no valid row, `means` holds no value, and the shift is 0.
    const double shift = first < last ? means[c] : 0.0;
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
  int64_t turn = 0;
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Item item(tiling, number);
    const int64_t c = (item.tile * tiling.tile + column) * kCount;
    const int64_t left = valid_row - item.chunk * tiling.chunk;
    const int64_t rows = left < tiling.chunk ? left : tiling.chunk;  // 0 or less for a chunk after the last valid row
    const bool mine = lane < tiling.lanes && c < channels;
    const T* from = x + item.chunk * tiling.chunk * channels + c;
    Moments<float, kCount> moments =
        column_moments<kCount>(from, channels, lane, tiling.lanes, mine ? rows : 0,
                               [&](int row, const Pack<T, kCount>& raw) { keep_row(turn, row, raw); });
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
    ++turn;
  }
}

// ---- gradients ------------------------------------------------------------------------------------------------------

/// A batch norm whose gradients are summed, and the destination of the sums.
template <class T>
struct Summed {
  const T* x;                 // shape (rows, C)
  const float* coefficients;  // shape (4, C)
  Gradients to;
};

/// Sums the masked gradients g of the items that this block takes. Items, tickets and the order of the sums are those
/// of sum_moments(). keep_row(turn, row, raw x, g) is called for each valid row.
///
/// dy, dy2: (rows, C); masked (null unless kStore): (rows, C), may be dy or dy2; partial: (2, chunks, C) for sum g and
/// sum g * (x - mean); tickets: counters that are 0 before and after the launch. With kPair partial is (3, chunks, C):
/// the third sum is g * (x - mean) of `other`, a norm that gets the same g.
template <bool kSecond, bool kMask, bool kStore, bool kPair, int kCount, class T, class KeepRow>
__device__ void sum_gradients(const Tiling& tiling, const Batch& batch, const T* dy, const T* dy2,
                              const std::uint8_t* mask, const Summed<T>& norm, const Summed<T>& other,
                              const int64_t* valid, T* masked, float* partial, unsigned* tickets, KeepRow keep_row) {
  constexpr int kSums = kPair ? 3 : 2;
  const int64_t valid_row = valid_rows(batch, valid);
  const int64_t channels = tiling.channels;
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  const int64_t step = channels * tiling.lanes;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Part<double, kSums>& part) {
#pragma unroll 4
    for (int64_t i = first; i < last; ++i) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        part.at[k] += static_cast<double>(partial[(k * tiling.chunks + i) * channels + c]);
      }
    }
  };
  const auto finish = [&](int64_t c, const Part<double, kSums>& part) {
    write_sums(norm.to, part.at[0], part.at[1] * static_cast<double>(norm.coefficients[3 * channels + c]), channels, c);
    if constexpr (kPair) {
      write_sums(other.to, part.at[0], part.at[2] * static_cast<double>(other.coefficients[3 * channels + c]), channels,
                 c);
    }
  };
  int64_t turn = 0;
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Item item(tiling, number);
    const int64_t c = (item.tile * tiling.tile + column) * kCount;
    const int64_t left = valid_row - item.chunk * tiling.chunk;
    const int64_t rows = left < 0 ? 0 : left < tiling.chunk ? left : tiling.chunk;
    const bool mine = lane < tiling.lanes && c < channels;
    const int64_t begin = (item.chunk * tiling.chunk + lane) * channels + c;
    const int count = lane < rows ? static_cast<int>((rows - lane + tiling.lanes - 1) / tiling.lanes) : 0;
    Part<float, kSums * kCount> sums{};
    if (mine && count > 0) {
      Pack<float, kCount> mean;
      [[maybe_unused]] Pack<float, kCount> other_mean;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mean.at[j] = norm.coefficients[2 * channels + c + j];
        if constexpr (kPair) {
          other_mean.at[j] = other.coefficients[2 * channels + c + j];
        }
      }
      // Processes kRows of the thread's rows, from number `first` on. All rows are loaded before the first is used.
      const auto add_rows = [&]<int kRows>(int first, std::integral_constant<int, kRows>) {
        Pack<T, kCount> raw_g[kRows];
        Pack<T, kCount> raw_x[kRows];
        [[maybe_unused]] Pack<T, kCount> raw_other[kRows];
        [[maybe_unused]] Pack<T, kCount> raw_second[kRows];
        [[maybe_unused]] unsigned bits[kRows];
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const int64_t at = begin + (first + k) * step;
          raw_g[k] = gpu::load<kCount>(dy + at);
          raw_x[k] = gpu::load<kCount>(norm.x + at);
          if constexpr (kPair) {
            raw_other[k] = gpu::load<kCount>(other.x + at);
          }
          if constexpr (kSecond) {
            raw_second[k] = gpu::load<kCount>(dy2 + at);
          }
          if constexpr (kMask) {
            bits[k] = static_cast<unsigned>(mask[at >> 3]) >> (at & 7);  // the bits of a column lie in one byte
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
          keep_row(turn, lane + (first + k) * tiling.lanes, raw_x[k], g);
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
            sums.at[j] += g.at[j];
            sums.at[kCount + j] = fmaf(g.at[j], value.at[j] - mean.at[j], sums.at[kCount + j]);
          }
          if constexpr (kPair) {
            const Pack<float, kCount> more = floats(raw_other[k]);
#pragma unroll
            for (int j = 0; j < kCount; ++j) {
              float& product = sums.at[2 * kCount + j];
              product = fmaf(g.at[j], more.at[j] - other_mean.at[j], product);
            }
          }
        }
      };
      constexpr int kRows = kSecond || kPair ? 2 : 4;
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
      for (int j = 0; j < kSums * kCount; ++j) {
        partial[(j / kCount * tiling.chunks + item.chunk) * channels + c + j % kCount] = sums.at[j];
      }
    }
    gpu::when_last(tickets, item.tile, tiling.tiles, tiling.chunks, [&](int64_t tile) {
      merge_tile<kSums>(tiling, tile, kCount, (valid_row + tiling.chunk - 1) / tiling.chunk, join_chunks, finish);
    });
    ++turn;
  }
}

// ---- the other passes -----------------------------------------------------------------------------------------------

inline constexpr int kPiece = 8;  // number of elements of a piece; the mask has one byte per piece

using Eight = Pack<float, kPiece>;

/// Computes y = value * scale + shift + add, applies a ReLU if `relu` is true, and rounds y to T. Returns a bit mask
/// for the first `count` elements: bit j is 1 if y[j] > 0.
template <class T>
__device__ unsigned normalise(const Eight& value, const Eight& scale, const Eight& shift, const Eight& add, bool relu,
                              int count, Pack<T, kPiece>& y) {
  unsigned positive = 0;
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    float v = fmaf(value.at[j], scale.at[j], shift.at[j]) + add.at[j];
    if (relu) {
      v = v <= 0.0F ? 0.0F : v;  // NaN stays NaN
    }
    y.at[j] = gpu::from_float<T>(v);
    positive |= (j < count && gpu::to_float(y.at[j]) > 0.0F ? 1U : 0U) << j;
  }
  return positive;
}

// ---- launches -------------------------------------------------------------------------------------------------------

inline Finalize finalize_to(const TensorView& weight, const TensorView& bias, double epsilon, double momentum,
                            const TensorView& running_mean, const TensorView& running_var,
                            const TensorView& coefficients) {
  return {
      gpu::data<const float>(weight), gpu::data<const float>(bias),  epsilon, momentum, pointer<float>(running_mean),
      pointer<float>(running_var),    gpu::data<float>(coefficients)};
}

template <class T>
Summed<T> summed_of(const NormBackward& norm) {
  const bool wanted = norm.mode != GradMode::ignore;
  return {pointer<const T>(norm.x),
          pointer<const float>(norm.coefficients),
          {pointer<float>(norm.sums), wanted ? gpu::data<float>(norm.dweight) : nullptr,
           wanted ? gpu::data<float>(norm.dbias) : nullptr, norm.mode == GradMode::accumulate}};
}

}  // namespace lockstep::ops::batch_norm
