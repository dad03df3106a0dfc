#pragma once

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/detail/batch_norm_tiling.hpp>
#include <lockstep/kernels/dispatch.hpp>

/// Device code of the batch norm kernels that sum over the rows of each channel, or use such sums. This code divides
/// rows among blocks, joins the sums of threads and chunks, writes the results, and has the formula of dx.
namespace lockstep::ops::batch_norm {

using gpu::Pack;
using std::int64_t;

/// A batch of samples * per_sample rows.
struct Batch {
  int64_t samples;
  int64_t per_sample;
};

/// Returns the number of valid rows: the rows of the first *valid samples. *valid is clamped to 0 .. N. If `valid` is
/// null, all rows are valid.
__device__ inline int64_t valid_rows(const Batch& batch, const int64_t* valid) {
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

/// Returns the number of blocks for a launch in which a block takes one item of `tiling` after the other, in a
/// grid-stride loop. An item is a chunk of rows of a tile of columns.
inline unsigned blocks_of(const Tiling& tiling) {
  return gpu::blocks_for(tiling.items(), 1);
}

/// An item of a sum: one chunk of rows of one tile of columns. Items are numbered from the last chunk to the first.
struct Item {
  int64_t chunk;
  int64_t tile;

  __device__ Item(const Tiling& tiling, int64_t number)
      : chunk(tiling.chunks - 1 - number / tiling.tiles), tile(number % tiling.tiles) {}
};

/// The kValues numbers of one thread, such as sums, which join_lanes() joins with the numbers of other threads.
template <class Real, int kValues>
struct Part {
  Real at[kValues];
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

/// Joins the numbers of `lanes` threads, which are `tile` threads apart, by join(mine, other). Each thread passes its
/// own numbers as `mine`; afterwards lane 0 has the result in `mine`. All threads of the block must call join_lanes().
/// Repeatedly the lower half of the lanes takes the numbers of the upper half, until one lane is left. This order is
/// fixed.
template <class Join, class Real, int kValues>
__device__ void join_lanes(Part<Real, kValues>& mine, int tile, int lanes, Join join) {
  LOCKSTEP_SHARED(Real, parked, [kValues][kBlock]);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread / tile;
  while (lanes > 1) {
    const int half = (lanes + 1) / 2;
    if (lane >= half && lane < lanes) {  // true at most once per thread: `parked` is not overwritten while it is read
#pragma unroll
      for (int k = 0; k < kValues; ++k) {
        parked[k][thread] = mine.at[k];
      }
    }
    __syncthreads();  // after this barrier `parked` can be read
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
  __syncthreads();  // after this barrier `parked` may be written again
}

/// Joins the sums of the first `live` chunks of a tile, which are the chunks with valid rows. The sums are joined in
/// double, so that hundreds of chunks cost no precision. All threads of the block must call merge_tile().
///
/// kBlock / width lanes share the chunks of a channel; each lane takes a run of neighbouring chunks. join_chunks(c,
/// first, last, part) must add the sums of the lane's chunks [first, last) of channel c to `part`, which is zero
/// before. Then the parts of the lanes are added up, and one thread per channel calls finish(c, part).
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

/// Destination of the sums (2, C), dweight (C) and dbias (C). dweight and dbias are null if they are not wanted.
struct Gradients {
  float* sums;
  float* dweight;
  float* dbias;
  bool accumulate;
};

/// Writes both sums of channel `c`, rounded to float, and dweight and dbias unless they are null.
__device__ inline void write_sums(const Gradients& to, double sum_g, double sum_product, int64_t channels, int64_t c) {
  const float sum = static_cast<float>(sum_g);
  const float product = static_cast<float>(sum_product);
  to.sums[c] = sum;
  to.sums[channels + c] = product;
  if (to.dweight != nullptr) {
    to.dweight[c] = to.accumulate ? to.dweight[c] + product : product;
    to.dbias[c] = to.accumulate ? to.dbias[c] + sum : sum;
  }
}

/// Computes dx = scale * g + (x - mean) * slope + offset in kCount channels.
template <int kCount>
struct Slopes {
  using Values = Pack<float, kCount>;
  Values scale;
  Values mean;
  Values slope;
  Values offset;

  /// sums: the sum of g per channel; products: the sum of g * xhat; rows: the number of rows in these sums.
  __device__ Slopes(const Values& scale_, const Values& mean_, const Values& inv_std, const Values& sums,
                    const Values& products, float rows)
      : scale(scale_), mean(mean_), slope(inv_std), offset(sums) {
    const float inv_rows = rows > 0.0F ? 1.0F / rows : 0.0F;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float step = -scale.at[j] * inv_rows;
      slope.at[j] *= step * products.at[j];
      offset.at[j] *= step;
    }
  }
  /// Returns dx of an element in channel `j` with gradient `g` and input `x`.
  __device__ float at(int j, float g, float x) const {
    return fmaf(scale.at[j], g, fmaf(x - mean.at[j], slope.at[j], offset.at[j]));
  }
};

// ---- launches ------------------------------------------------------------------------------------------------------

template <class T>
T* pointer(const TensorView& view) {
  return view.given() ? static_cast<T*>(view.data) : nullptr;
}

inline Batch batch_of(const TensorView& x) {
  const int64_t samples = x.shape[0];
  return {samples, samples > 0 ? x.numel() / x.shape.back() / samples : 0};
}

inline Tiling tiling_of(const TensorView& x, int per_column) {
  return {x.numel() / x.shape.back(), x.shape.back(), per_column};
}

/// Calls f with `flag` turned into a std::bool_constant.
template <class F>
decltype(auto) visit_flag(bool flag, F&& f) {
  return flag ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace lockstep::ops::batch_norm
