// Batch norm, ReLU and a 3 x 3 max pool at stride 2 in one pass, from x (N, H, W, C) to y and index (N, P, Q, C), and
// the gradient of the three. The normalised image and its gradient are not stored.
//
// A block has 256 threads. A thread keeps the same kCount channels (16 bytes of a pixel, or one element), so that
// coefficients stay in registers. It takes pixels at a fixed distance, so that only its first pixel needs a division.
// It loads all elements that a pixel needs (9 in forward, 4 in backward) before it uses the first one. Elements that
// several windows share come from the caches. In backward a thread computes a pixel of dx from dy of the at most four
// windows whose maximum is this pixel. So no two threads write one element. Only the sums of backward_sums_kernel use
// shared memory; this kernel has the tiling of batch_norm.cu.
//
// Memory bandwidth bounds the kernels. For elements of s bytes, forward reads s bytes per element of x and writes s + 1
// per element of y. backward_sums reads s per element of x and s + 1 per element of dy. backward_apply reads as many
// and writes s per element of dx.

#include <lockstep/kernels/batch_norm_pool.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <lockstep/kernels/cuda/batch_norm_sums.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/tickets.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;

constexpr int kResidentForward = 3;  // number of blocks on a multiprocessor, limited by the threads' registers
constexpr int kResidentBackward = 2;

/// The extents of an image in pixels.
struct Extents {
  int height;
  int width;
};

/// The geometry of a pool with 3 x 3 windows at stride 2.
struct Stem {
  Extents x;
  Extents y;
  int top;  // rows of padding above an image; `left` counts the columns of padding on its left
  int left;
  int64_t channels;
};

/// The position of a thread's current pixel in a tensor of images. advance() moves the position by `rows` lines and
/// `columns` pixels, to the thread's next pixel.
struct Walk {
  int64_t image;
  int row;
  int column;

  __device__ Walk(int64_t pixel, const Extents& e)
      : image(pixel / e.width / e.height),
        row(static_cast<int>(pixel / e.width % e.height)),
        column(static_cast<int>(pixel % e.width)) {}
  /// Returns the index of the pixel in row `line` and column `place` of this image, in a tensor of images of extents
  /// `e`. If the image has no such pixel, returns the index of its nearest pixel, so that the load needs no branch.
  [[nodiscard]] __device__ int64_t of(const Extents& e, int line, int place) const {
    const int inside = line < 0 ? 0 : line < e.height ? line : e.height - 1;
    const int along = place < 0 ? 0 : place < e.width ? place : e.width - 1;
    return (image * e.height + inside) * e.width + along;
  }
  __device__ void advance(const Extents& e, int rows, int columns) {
    column += columns;
    row += rows;
    if (column >= e.width) {
      column -= e.width;
      ++row;
    }
    while (row >= e.height) {
      row -= e.height;
      ++image;
    }
  }
};

/// A type of kCount (8, 4 or 1) bytes, which one access loads or stores.
template <int kCount>
using Bytes = std::conditional_t<kCount == 8, uint2, std::conditional_t<kCount == 4, unsigned, unsigned char>>;

template <int kCount>
__device__ Pack<std::uint8_t, kCount> load_bytes(const std::uint8_t* from) {
  const Bytes<kCount> bits = *reinterpret_cast<const Bytes<kCount>*>(from);
  Pack<std::uint8_t, kCount> value;
  memcpy(&value, &bits, kCount);
  return value;
}

template <int kCount>
__device__ void store_bytes(std::uint8_t* to, const Pack<std::uint8_t, kCount>& value) {
  Bytes<kCount> bits;
  memcpy(&bits, &value, kCount);
  *reinterpret_cast<Bytes<kCount>*>(to) = bits;
}

/// Returns kCount copies of `value`.
template <class T, int kCount>
__device__ Pack<T, kCount> all_of(T value) {
  Pack<T, kCount> result;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    result.at[j] = value;
  }
  return result;
}

/// Returns g of the pixel `at` of x: the sum of dy over the windows whose maximum is this pixel, in row-major order. At
/// stride 2 at most 2 x 2 windows cover a pixel. `dy` and `index`, (N, P, Q, C), point to the thread's first channel.
template <class T, int kCount>
__device__ Pack<float, kCount> gather(const Stem& stem, const Walk& at, const T* dy, const std::uint8_t* index) {
  const int row = at.row + stem.top;  // row in the padded image; two window rows can cover this row
  const int column = at.column + stem.left;
  Pack<T, kCount> gradient[4];
  Pack<std::uint8_t, kCount> winner[4];
  int here[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int p = row / 2 - 1 + k / 2;
    const int q = column / 2 - 1 + k % 2;
    const int r = row - 2 * p;
    const int s = column - 2 * q;
    const bool covers = r < 3 && s < 3 && p >= 0 && q >= 0 && p < stem.y.height && q < stem.y.width;
    here[k] = covers ? 3 * r + s : -1;
    const int64_t from = at.of(stem.y, p, q) * stem.channels;
    gradient[k] = gpu::load<kCount>(dy + from);
    winner[k] = load_bytes<kCount>(index + from);
  }
  Pack<float, kCount> g{};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      g.at[j] += winner[k].at[j] == here[k] ? gpu::to_float(gradient[k].at[j]) : 0.0F;
    }
  }
  return g;
}

/// How threads share the pixels of a tensor. A column is a piece of kCount channels of all pixels. Thread i takes
/// column i % columns of the pixels i / columns, i / columns + stride, ...
struct Share {
  int64_t columns;  // number of pieces of kCount channels in a pixel
  int64_t pixels;
  int64_t stride;  // distance from a pixel of a thread to the thread's next pixel, in pixels
  int rows;        // `stride` pixels are `rows` whole lines of an image and `along` more pixels
  int along;

  /// `resident` is the number of blocks of the kernel that a multiprocessor holds.
  Share(int64_t channels, int64_t pixels_, int width, int per_piece, int resident)
      : columns(channels / per_piece), pixels(pixels_) {
    // The number of blocks is limited to the number that can run at once: `resident` per multiprocessor, while
    // kMostBlocks counts 8 per multiprocessor. With more blocks, the last few would run alone.
    const int64_t most = std::max(gpu::kMostBlocks * resident / 8, int64_t{1}) * kBlock;
    stride = std::clamp(most / columns, int64_t{1}, pixels);
    rows = static_cast<int>(stride / width);
    along = static_cast<int>(stride % width);
  }
  [[nodiscard]] unsigned blocks() const { return static_cast<unsigned>((stride * columns + kBlock - 1) / kBlock); }
};

/// Computes y, and in index the position of the maximum in each window. x: (N, H, W, C); coefficients: (4, C); y,
/// index: (N, P, Q, C).
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, kResidentForward)
    forward_kernel(Stem stem, Share share, const T* x, const float* coefficients, T* y, std::uint8_t* index) {
  gpu::wait_for_earlier();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t c = thread % share.columns * kCount;
  int64_t pixel = thread / share.columns;
  if (pixel >= share.stride) {
    return;
  }
  Pack<float, kCount> scale;
  Pack<float, kCount> shift;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    scale.at[j] = coefficients[c + j];
    shift.at[j] = coefficients[stem.channels + c + j];
  }
  Walk at(pixel, stem.y);
  for (; pixel < share.pixels; pixel += share.stride, at.advance(stem.y, share.rows, share.along)) {
    const int top = 2 * at.row - stem.top;
    const int left = 2 * at.column - stem.left;
    Pack<T, kCount> raw[9];
    unsigned inside = 0;
#pragma unroll
    for (int k = 0; k < 9; ++k) {
      const int h = top + k / 3;
      const int w = left + k % 3;
      raw[k] = gpu::load<kCount>(x + at.of(stem.x, h, w) * stem.channels + c);
      inside |= (h >= 0 && w >= 0 && h < stem.x.height && w < stem.x.width ? 1U : 0U) << k;
    }
    Pack<float, kCount> best{};  // begins at 0, because the results of the ReLU before the pool are never below 0
    Pack<std::uint8_t, kCount> winner = all_of<std::uint8_t, kCount>(kNoWinner);
#pragma unroll
    for (int k = 0; k < 9; ++k) {
      const bool counts = (inside >> k & 1U) != 0;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float exact = fmaf(gpu::to_float(raw[k].at[j]), scale.at[j], shift.at[j]);
        const float value = gpu::to_float(gpu::from_float<T>(exact));
        const float before = best.at[j];
        const bool wins = counts && !(value <= before) && before == before;  // a NaN replaces any number
        best.at[j] = wins ? value : before;
        winner.at[j] = wins ? static_cast<std::uint8_t>(k) : winner.at[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      winner.at[j] = best.at[j] > 0.0F ? winner.at[j] : kNoWinner;  // the gradient of a maximum of 0 or NaN is 0
    }
    gpu::store(y + pixel * stem.channels + c, gpu::rounded<T>(best.at));
    store_bytes(index + pixel * stem.channels + c, winner);
  }
}

/// Sums the gradient g (see gather()) and g * (x - mean) per channel, over the valid samples only. dy, index: (N, P, Q,
/// C); x: (N, H, W, C); coefficients: (4, C); valid: scalar or null; partial: (2, chunks, C) for the two sums; tickets:
/// counters that are 0 before and after the launch. A thread takes every tiling.lanes-th pixel; this distance is `rows`
/// lines and `along` pixels. Writes and reads 8 bytes per chunk and channel.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, kResidentBackward)
    backward_sums_kernel(Stem stem, Tiling tiling, Batch batch, int rows, int along, const T* dy,
                         const std::uint8_t* index, const T* x, const float* coefficients, const int64_t* valid,
                         float* partial, unsigned* tickets, Gradients to) {
  gpu::wait_for_earlier();
  const int64_t valid_row = valid_rows(batch, valid);
  const int64_t channels = tiling.channels;
  const int lane = static_cast<int>(threadIdx.x) / tiling.tile;
  const int column = static_cast<int>(threadIdx.x) % tiling.tile;
  const auto join_chunks = [&](int64_t c, int64_t first, int64_t last, Part<double, 2>& part) {
#pragma unroll 4
    for (int64_t i = first; i < last; ++i) {
      part.at[0] += static_cast<double>(partial[i * channels + c]);
      part.at[1] += static_cast<double>(partial[(tiling.chunks + i) * channels + c]);
    }
  };
  const auto finish = [&](int64_t c, const Part<double, 2>& part) {
    write_sums(to, part.at[0], part.at[1] * static_cast<double>(coefficients[3 * channels + c]), channels, c);
  };
  for (int64_t number = blockIdx.x; number < tiling.tiles * tiling.chunks; number += gridDim.x) {
    const Item item(tiling, number);
    const int64_t c = (item.tile * tiling.tile + column) * kCount;
    const int64_t begin = item.chunk * tiling.chunk;
    const int64_t end = begin + tiling.chunk < valid_row ? begin + tiling.chunk : valid_row;
    const bool mine = lane < tiling.lanes && c < channels;
    Part<float, 2 * kCount> sums{};
    if (mine && begin + lane < end) {
      Pack<float, kCount> mean;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        mean.at[j] = coefficients[2 * channels + c + j];
      }
      Walk at(begin + lane, stem.x);
      for (int64_t pixel = begin + lane; pixel < end; pixel += tiling.lanes, at.advance(stem.x, rows, along)) {
        const Pack<T, kCount> raw = gpu::load<kCount>(x + pixel * channels + c);
        const Pack<float, kCount> g = gather<T, kCount>(stem, at, dy + c, index + c);
        const Pack<float, kCount> value = floats(raw);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          sums.at[j] += g.at[j];
          sums.at[kCount + j] = fmaf(g.at[j], value.at[j] - mean.at[j], sums.at[kCount + j]);
        }
      }
    }
    join_lanes(sums, tiling.tile, tiling.lanes, JoinSums{});
    if (mine && lane == 0 && begin < end) {
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

/// Computes dx. dy, index: (N, P, Q, C); x, dx: (N, H, W, C); coefficients: (4, C); sums: (2, C); stats: (2C + 1);
/// valid: scalar or null. Padding samples of x are not read; dx is 0 for them.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, kResidentBackward)
    backward_apply_kernel(Stem stem, Share share, Batch batch, const T* dy, const std::uint8_t* index, const T* x,
                          const float* coefficients, const float* sums, const float* stats, const int64_t* valid,
                          T* dx) {
  gpu::wait_for_earlier();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t channels = stem.channels;
  const int64_t c = thread % share.columns * kCount;
  int64_t pixel = thread / share.columns;
  if (pixel >= share.stride) {
    return;
  }
  const auto of = [&](const float* values) {
    Pack<float, kCount> result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      result.at[j] = values[c + j];
    }
    return result;
  };
  const Slopes<kCount> slopes(of(coefficients), of(coefficients + 2 * channels), of(coefficients + 3 * channels),
                              of(sums), of(sums + channels), stats[2 * channels]);
  const int64_t end = valid_rows(batch, valid);
  Walk at(pixel, stem.x);
  for (; pixel < share.pixels; pixel += share.stride, at.advance(stem.x, share.rows, share.along)) {
    Pack<float, kCount> result{};
    if (pixel < end) {
      const Pack<T, kCount> raw = gpu::load<kCount>(x + pixel * channels + c);
      const Pack<float, kCount> g = gather<T, kCount>(stem, at, dy + c, index + c);
      const Pack<float, kCount> value = floats(raw);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        result.at[j] = slopes.at(j, g.at[j], value.at[j]);
      }
    }
    gpu::store(dx + pixel * channels + c, gpu::rounded<T>(result.at));
  }
}

/// Returns the geometry of the pool. `y` is a tensor of the pooled shape: y in the forward pass, dy in the backward
/// pass.
Stem stem_of(const PoolDesc& desc, const TensorView& x, const TensorView& y) {
  const auto extents = [](const TensorView& images) {
    return Extents{static_cast<int>(images.shape[1]), static_cast<int>(images.shape[2])};
  };
  return {extents(x), extents(y), static_cast<int>(desc.pad_before[0]), static_cast<int>(desc.pad_before[1]),
          x.shape[3]};
}

Share share_of(const TensorView& images, int per_piece, int resident) {
  return {images.shape[3], images.numel() / images.shape[3], static_cast<int>(images.shape[2]), per_piece, resident};
}

}  // namespace

void batch_norm_pool_forward(CudaContext& context, const PoolDesc& desc, const TensorView& x,
                             const TensorView& coefficients, const TensorView& y, const TensorView& index) {
  if (y.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "batch_norm_pool_forward", [&]<class T>(std::type_identity<T>) {
    auto* const winners = gpu::data<std::uint8_t>(index);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x), gpu::data<const T>(y),
                                                 static_cast<const std::uint8_t*>(winners));
    gpu::visit_pieces<T>(aligned, x.shape[3], [&]<int kCount>(std::integral_constant<int, kCount>) {
      const Share share = share_of(y, kCount, kResidentForward);
      gpu::launch(forward_kernel<T, kCount>, dim3(share.blocks()), dim3(kBlock), 0, context.stream(),
                  stem_of(desc, x, y), share, gpu::data<const T>(x), gpu::data<const float>(coefficients),
                  gpu::data<T>(y), winners);
    });
  });
}

void batch_norm_pool_backward_reduce(CudaContext& context, const PoolDesc& desc, const TensorView& dy,
                                     const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                     const TensorView& valid, GradMode mode, const TensorView& sums,
                                     const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  const bool wanted = mode != GradMode::ignore;
  const Gradients to{gpu::data<float>(sums), wanted ? gpu::data<float>(dweight) : nullptr,
                     wanted ? gpu::data<float>(dbias) : nullptr, mode == GradMode::accumulate};
  gpu::visit_element(x.dtype, "batch_norm_pool_backward_reduce", [&]<class T>(std::type_identity<T>) {
    const auto* const winners = gpu::data<const std::uint8_t>(index);
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x), gpu::data<const T>(dy), winners);
    gpu::visit_pieces<T>(aligned, x.shape[3], [&]<int kCount>(std::integral_constant<int, kCount>) {
      const Tiling tiling = tiling_of(x, kCount);
      const auto width = static_cast<int>(x.shape[2]);
      gpu::launch(backward_sums_kernel<T, kCount>, dim3(blocks_of(tiling)), dim3(kBlock), 0, context.stream(),
                  stem_of(desc, x, dy), tiling, batch_of(x), tiling.lanes / width, tiling.lanes % width,
                  gpu::data<const T>(dy), winners, gpu::data<const T>(x), gpu::data<const float>(coefficients),
                  pointer<const int64_t>(valid), static_cast<float*>(workspace.data), gpu::tickets(context), to);
    });
  });
}

void batch_norm_pool_backward_apply(CudaContext& context, const PoolDesc& desc, const TensorView& dy,
                                    const TensorView& index, const TensorView& x, const TensorView& coefficients,
                                    const TensorView& sums, const TensorView& stats, const TensorView& valid,
                                    const TensorView& dx) {
  if (dx.numel() == 0) {
    return;
  }
  gpu::visit_element(x.dtype, "batch_norm_pool_backward_apply", [&]<class T>(std::type_identity<T>) {
    const auto* const winners = gpu::data<const std::uint8_t>(index);
    const bool aligned =
        gpu::aligned_to_vectors(gpu::data<const T>(x), gpu::data<const T>(dy), gpu::data<const T>(dx), winners);
    gpu::visit_pieces<T>(aligned, x.shape[3], [&]<int kCount>(std::integral_constant<int, kCount>) {
      const Share share = share_of(x, kCount, kResidentBackward);
      gpu::launch(backward_apply_kernel<T, kCount>, dim3(share.blocks()), dim3(kBlock), 0, context.stream(),
                  stem_of(desc, x, dy), share, batch_of(x), gpu::data<const T>(dy), winners, gpu::data<const T>(x),
                  gpu::data<const float>(coefficients), gpu::data<const float>(sums), gpu::data<const float>(stats),
                  pointer<const int64_t>(valid), gpu::data<T>(dx));
    });
  });
}

}  // namespace lockstep::ops::backend
