// Batch norm of x (rows, C), one launch per step. batch_norm.md explains the files, docs/cuda.md the ideas. There are
// two kinds of kernels, both with blocks of 256 threads, and with 16-byte accesses if addresses and C allow them.
//
// Kernels that sum: a block takes a chunk of rows of a tile of channels. A thread keeps the same kCount channels: 16
// bytes of a row, or one element. The threads with the same channels are called lanes; each of them takes every
// lanes-th row of the chunk. Shared memory joins the sums of the lanes. The block that finishes the last chunk of a
// tile adds up the sums of all chunks of this tile. The order of the additions depends on the shape only. Chunks are
// taken from the last to the first, because the previous kernel has just written the end of the tensor, which a cache
// may still hold.
//
// Elementwise kernels: a thread takes pieces of 8 elements, which share one byte of the mask. The distance of a
// thread's pieces is a multiple of C. So the thread's 8 channels stay the same, and their coefficients stay in
// registers.
//
// Memory bandwidth bounds these kernels. Number of tensors of the size of x that a kernel reads + writes: stats 1 + 0;
// apply 1 + 1, with a residual 2 + 1; backward sums 2 + 0; backward apply 2 + 1. dy2 adds 1 read; masked and dresidual
// add 1 write each; the mask takes 1 bit per element. The other kernels move a few numbers per channel, so their time
// is the latency of the launch.

#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include <lockstep/kernels/cuda/batch_norm_steps.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/tickets.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;

// ---- sums ----------------------------------------------------------------------------------------------------------

/// Computes the statistics of x, and the coefficients unless to.coefficients is null. x: (rows, C); valid: scalar or
/// null; means, squares: (chunks, C); tickets: counters that are 0 before and after the launch; stats: (2C + 1). Reads
/// the valid rows of x once. Writes and reads 12 bytes per chunk and channel; a chunk has at least 64 rows.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, 2)
    stats_kernel(Tiling tiling, Batch batch, const T* x, const int64_t* valid, double* means, float* squares,
                 unsigned* tickets, float* stats, Finalize to) {
  gpu::wait_for_earlier();
  sum_moments<kCount>(tiling, batch, x, valid, means, squares, tickets, stats, to,
                      [](int64_t, int, const Pack<T, kCount>&) {});
}

/// Merges the statistics of `count` groups of rows, in double and in the order of the groups. `parts` has one row of
/// statistics for each group. parts: (count, 2C + 1); stats: (2C + 1). A thread takes a channel, and reads the numbers
/// of each group once.
__global__ void __launch_bounds__(kBlock)
    merge_parts_kernel(int64_t count, int64_t channels, const float* parts, float* stats) {
  gpu::wait_for_earlier();
  const int64_t width = 2 * channels + 1;
  for (int64_t c = gpu::grid_thread(); c < channels; c += gpu::grid_threads()) {
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

/// Sums the gradient g and g * (x - mean) per channel. g is dy, or dy + dy2 with kSecond; with kMask g is 0 where the
/// mask's bit is 0. With kStore g is rounded and written to `masked`, and padding rows of `masked` are set to 0. With
/// kPair there is a third sum, of g * (x - mean) of `other`, a norm that gets the same g.
///
/// dy, dy2 (null unless kSecond): (rows, C); mask: a bit per element; valid: scalar or null; masked (null unless
/// kStore): (rows, C), may be dy or dy2; partial: (2, chunks, C), with kPair (3, chunks, C); tickets: counters that are
/// 0 before and after the launch.
///
/// Reads the valid rows of dy, dy2 and x once, and one bit of the mask per element. Writes and reads 4 bytes per sum,
/// chunk and channel.
template <class T, bool kSecond, bool kMask, bool kStore, bool kPair, int kCount>
__global__ void __launch_bounds__(kBlock, 2)
    backward_sums_kernel(Tiling tiling, Batch batch, const T* dy, const T* dy2, const std::uint8_t* mask,
                         Summed<T> norm, Summed<T> other, const int64_t* valid, T* masked, float* partial,
                         unsigned* tickets) {
  gpu::wait_for_earlier();
  sum_gradients<kSecond, kMask, kStore, kPair, kCount>(
      tiling, batch, dy, dy2, mask, norm, other, valid, masked, partial, tickets,
      [](int64_t, int64_t, const Pack<T, kCount>&, const Pack<float, kCount>&) {});
}

// ---- coefficients --------------------------------------------------------------------------------------------------

/// Computes coefficients and running statistics from stats (2C + 1). `to` points to the results; struct Finalize lists
/// their shapes. A thread takes a channel: it reads 16 bytes and writes 16 bytes. With running statistics it reads 24
/// bytes and writes 24 bytes.
__global__ void finalize_kernel(int64_t channels, const float* stats, Finalize to) {
  gpu::wait_for_earlier();
  for (int64_t c = gpu::grid_thread(); c < channels; c += gpu::grid_threads()) {
    finalize(to, stats[c], stats[channels + c], stats[2 * channels], channels, c);
  }
}

/// Computes coefficients (4, C) from running_mean, running_var, weight and bias, (C) each. A thread takes a channel: it
/// reads 16 bytes and writes 16.
__global__ void finalize_inference_kernel(int64_t channels, const float* running_mean, const float* running_var,
                                          const float* weight, const float* bias, double epsilon, float* coefficients) {
  gpu::wait_for_earlier();
  for (int64_t c = gpu::grid_thread(); c < channels; c += gpu::grid_threads()) {
    write_coefficients(static_cast<double>(running_mean[c]), static_cast<double>(running_var[c]), epsilon, weight, bias,
                       channels, c, coefficients);
  }
}

// ---- elementwise passes --------------------------------------------------------------------------------------------

constexpr int kResidentForward = 4;  // number of blocks on a multiprocessor, limited by the threads' registers
constexpr int kResidentBackward = 3;
constexpr int kResidentPair = 2;

/// Number of pieces that a thread loads before it uses the first piece: two pieces of 16-bit elements or one piece of
/// f32 elements, which take the same number of loads.
template <class T>
constexpr int kTogether = sizeof(T) == 2 ? 2 : 1;

/// Divides pieces of 8 elements among threads. A thread takes every `stride`-th piece. `stride` pieces hold a multiple
/// of C elements, so that all pieces of a thread have the same channels.
struct Pieces {
  int64_t channels;
  int64_t numel;
  int64_t count;   // number of pieces
  int64_t stride;  // number of threads that take pieces; the remaining threads of the last block are idle
  bool aligned;    // true if all tensors allow 16-byte accesses

  /// `resident` is the number of blocks of the kernel that a multiprocessor holds.
  Pieces(int64_t channels_, int64_t numel_, int64_t count_, bool aligned_, int resident)
      : channels(channels_), numel(numel_), count(count_), aligned(aligned_) {
    const int64_t period = channels / std::gcd(channels, int64_t{kPiece});
    // The number of blocks is limited to the number that can run at once: `resident` per multiprocessor, while
    // kMostBlocks counts 8 per multiprocessor. With more blocks, the last few would run alone.
    const int64_t most = std::max(gpu::kMostBlocks * resident / 8, int64_t{1});
    const int64_t threads = std::min(static_cast<int64_t>(gpu::blocks_for(count, kBlock)), most) * kBlock;
    stride = threads < period ? period : threads / period * period;
  }
  [[nodiscard]] unsigned blocks() const { return static_cast<unsigned>((stride + kBlock - 1) / kBlock); }
  /// Returns true if `piece` ends before element `end` and 16-byte accesses can read and write the piece.
  [[nodiscard]] __device__ bool whole_before(int64_t piece, int64_t end) const {
    return aligned && (piece + 1) * kPiece <= end;
  }
};

/// The channels of the 8 elements of a piece, which are the same for all pieces of a thread.
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

/// Loads the first `count` elements of the piece at `from`, unconverted, and puts zeros after them. With kWhole loads
/// all 8 elements in 16-byte accesses, and does not use `count`.
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

/// Returns how many elements of the piece that begins at element `begin` lie before element `end`: 0 to 8.
__device__ int elements_before(int64_t end, int64_t begin) {
  const int64_t left = end - begin;
  return static_cast<int>(left < 0 ? 0 : left < kPiece ? left : kPiece);
}

/// Calls f with `whole` turned into a std::bool_constant.
template <class F>
__device__ void visit_piece(bool whole, F f) {
  if (whole) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

/// Computes y of the forward pass, and the mask unless `mask` is null. x, residual (or null), y: (rows, C), y may be x
/// or residual; coefficients, with kNorm also residual_coefficients: (4, C); mask: a bit per element. Reads x and
/// residual once, writes y once, and writes one bit of the mask per element. Pieces after the last element write only
/// zeros to the last bytes of the mask.
template <class T, bool kResidual, bool kNorm>
__global__ void __launch_bounds__(kBlock, kResidentForward)
    apply_kernel(Pieces pieces, const T* x, const float* coefficients, const T* residual,
                 const float* residual_coefficients, bool relu, T* y, std::uint8_t* mask) {
  gpu::wait_for_earlier();
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
  // Processes kPieces pieces: piece `first`, and then every pieces.stride-th piece. All pieces are loaded before the
  // first is used.
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
      const unsigned positive = normalise(value, scale, shift, add, relu, count, result);
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

/// Returns the Slopes with which a thread computes dx in its `channels`. coefficients: (4, C); sums: (2, C); stats: (2C
/// + 1); width: C.
__device__ Slopes<kPiece> slopes_of(const Channels& channels, int64_t width, const float* coefficients,
                                    const float* sums, const float* stats) {
  return {channels.of(coefficients),
          channels.of(coefficients + 2 * width),
          channels.of(coefficients + 3 * width),
          channels.of(sums),
          channels.of(sums + width),
          stats[2 * width]};
}

/// Computes dx = scale * g + (x - mean) * slope + offset, and dresidual = g. Here g is dy, or dy + dy2 if dy2 is not
/// null; g is 0 where the mask's bit is 0. Padding rows are not read, except in the piece that the last valid row
/// shares with padding.
///
/// dy, dy2 (or null), x, dx, dresidual (or null): (rows, C); mask: a bit per element, or null; coefficients: (4, C);
/// sums: (2, C); stats: (2C + 1); valid: scalar or null. Reads dy, dy2, x and the mask once, writes dx and dresidual
/// once.
template <class T, bool kSecond, bool kMask>
__global__ void __launch_bounds__(kBlock, kResidentBackward)
    backward_apply_kernel(Pieces pieces, Batch batch, const T* dy, const T* dy2, const std::uint8_t* mask, const T* x,
                          const float* coefficients, const float* sums, const float* stats, const int64_t* valid, T* dx,
                          T* dresidual) {
  gpu::wait_for_earlier();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (thread >= pieces.stride) {
    return;
  }
  const Channels channels(thread, pieces.channels);
  const Slopes<kPiece> slopes = slopes_of(channels, pieces.channels, coefficients, sums, stats);
  const int64_t end = valid_rows(batch, valid) * pieces.channels;
  // Processes kPieces pieces, as `take` of apply_kernel does. Each of these pieces has an element in a valid row.
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
        to_x.at[j] = gpu::from_float<T>(j < live ? slopes.at(j, g.at[j], value.at[j]) : 0.0F);
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

/// The inputs and the output dx of one batch norm of a pair.
template <class T>
struct Given {
  const T* x;                 // shape (rows, C)
  const float* coefficients;  // shape (4, C)
  const float* sums;          // shape (2, C)
  T* dx;                      // shape (rows, C)
};

/// Computes dx of both norms of a pair. g: (rows, C), may be dx of one of the norms; first, second: the norms; stats:
/// (2C + 1); valid: scalar or null. Reads g and both x once, writes both dx once. Padding rows are not read, except in
/// the piece that the last valid row shares with padding.
template <class T>
__global__ void __launch_bounds__(kBlock, kResidentPair)
    backward_apply_pair_kernel(Pieces pieces, Batch batch, const T* g, Given<T> first, Given<T> second,
                               const float* stats, const int64_t* valid) {
  gpu::wait_for_earlier();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (thread >= pieces.stride) {
    return;
  }
  const Channels channels(thread, pieces.channels);
  const Slopes<kPiece> slopes = slopes_of(channels, pieces.channels, first.coefficients, first.sums, stats);
  const Slopes<kPiece> slopes2 = slopes_of(channels, pieces.channels, second.coefficients, second.sums, stats);
  const int64_t end = valid_rows(batch, valid) * pieces.channels;
  const auto take = [&]<int kPieces, bool kWhole>(int64_t from, std::integral_constant<int, kPieces>,
                                                  std::bool_constant<kWhole>) {
    Pack<T, kPiece> raw_g[kPieces];
    Pack<T, kPiece> raw_x[kPieces];
    Pack<T, kPiece> raw_x2[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64_t begin = (from + k * pieces.stride) * kPiece;
      const int count = elements_before(pieces.numel, begin);
      raw_g[k] = load_piece<kWhole>(g + begin, count);
      raw_x[k] = load_piece<kWhole>(first.x + begin, count);
      raw_x2[k] = load_piece<kWhole>(second.x + begin, count);
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int64_t begin = (from + k * pieces.stride) * kPiece;
      const int count = kWhole ? kPiece : elements_before(pieces.numel, begin);
      const int live = elements_before(end, begin);
      const Eight gradient = floats(raw_g[k]);
      const Eight value = floats(raw_x[k]);
      const Eight value2 = floats(raw_x2[k]);
      Pack<T, kPiece> dx;
      Pack<T, kPiece> dx2;
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {
        dx.at[j] = gpu::from_float<T>(j < live ? slopes.at(j, gradient.at[j], value.at[j]) : 0.0F);
        dx2.at[j] = gpu::from_float<T>(j < live ? slopes2.at(j, gradient.at[j], value2.at[j]) : 0.0F);
      }
      store_piece<kWhole>(first.dx + begin, count, dx);
      store_piece<kWhole>(second.dx + begin, count, dx2);
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
      store_piece<kWhole>(first.dx + begin, count, Pack<T, kPiece>{});
      store_piece<kWhole>(second.dx + begin, count, Pack<T, kPiece>{});
    });
  }
}

// ---- launches ------------------------------------------------------------------------------------------------------

Pieces pieces_of(const TensorView& x, const TensorView& mask, bool aligned, int resident) {
  const int64_t count = mask.given() ? mask.numel() : (x.numel() + kPiece - 1) / kPiece;
  return {x.shape.back(), x.numel(), count, aligned, resident};
}

/// Enqueues stats_kernel. `to` receives coefficients and running statistics, unless to.coefficients is null.
void stats_of(CudaContext& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
              const TensorView& workspace, const Finalize& to) {
  gpu::visit_element(x.dtype, "batch_norm_stats", [&]<class T>(std::type_identity<T>) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&]<int kCount>(std::integral_constant<int, kCount>) {
      const Tiling tiling = tiling_of(x, kCount);
      auto* means = static_cast<double*>(workspace.data);
      auto* squares = reinterpret_cast<float*>(means + tiling.chunks * tiling.channels);
      gpu::launch(stats_kernel<T, kCount>, dim3(blocks_of(tiling)), dim3(kBlock), 0, context.stream(), tiling,
                  batch_of(x), gpu::data<const T>(x), pointer<const int64_t>(valid), means, squares,
                  gpu::tickets(context), gpu::data<float>(stats), to);
    });
  });
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

/// Enqueues backward_sums_kernel. With kPair `other` is the second norm of the pair; otherwise `other` is empty.
template <bool kMask, bool kStore, bool kPair>
void backward_sums(CudaContext& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                   const NormBackward& norm, const NormBackward& other, const TensorView& valid,
                   const TensorView& masked, const TensorView& workspace, std::bool_constant<kMask>,
                   std::bool_constant<kStore>, std::bool_constant<kPair>) {
  const TensorView& x = norm.x;
  gpu::visit_element(x.dtype, "batch_norm_backward_reduce", [&]<class T>(std::type_identity<T>) {
    const bool aligned =
        gpu::aligned_to_vectors(gpu::data<const T>(x), pointer<const T>(other.x), gpu::data<const T>(dy),
                                pointer<const T>(dy2), static_cast<const T*>(pointer<T>(masked)));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&]<int kCount>(std::integral_constant<int, kCount>) {
      visit_flag(dy2.given(), [&]<bool kSecond>(std::bool_constant<kSecond>) {
        const Tiling tiling = tiling_of(x, kCount);
        gpu::launch(backward_sums_kernel<T, kSecond, kMask, kStore, kPair, kCount>, dim3(blocks_of(tiling)),
                    dim3(kBlock), 0, context.stream(), tiling, batch_of(x), gpu::data<const T>(dy),
                    pointer<const T>(dy2), pointer<const std::uint8_t>(mask), summed_of<T>(norm), summed_of<T>(other),
                    pointer<const int64_t>(valid), pointer<T>(masked), static_cast<float*>(workspace.data),
                    gpu::tickets(context));
      });
    });
  });
}

}  // namespace

std::size_t batch_norm_workspace_bytes(const CudaContext& /*context*/, const TensorView& x) {
  const Tiling wide = tiling_of(x, x.shape.back() % (16 / static_cast<int64_t>(size_of(x.dtype))) == 0
                                       ? 16 / static_cast<int>(size_of(x.dtype))
                                       : 1);
  const Tiling narrow = tiling_of(x, 1);  // the tiling for tensors that do not begin at a 16-byte boundary
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
  const NormBackward norm{x, coefficients, sums, dweight, dbias, mode};
  visit_flag(mask.given(), [&](auto has_mask) {
    visit_flag(masked.given(), [&](auto store) {
      backward_sums(context, dy, dy2, mask, norm, {}, valid, masked, workspace, has_mask, store, std::false_type{});
    });
  });
}

void batch_norm_backward_reduce_pair(CudaContext& context, const TensorView& dy, const TensorView& dy2,
                                     const TensorView& mask, const NormBackward& first, const NormBackward& second,
                                     const TensorView& valid, const TensorView& masked, const TensorView& workspace) {
  backward_sums(context, dy, dy2, mask, first, second, valid, masked, workspace, std::true_type{}, std::true_type{},
                std::true_type{});
}

void batch_norm_backward_apply_pair(CudaContext& context, const TensorView& g, const NormBackward& first,
                                    const NormBackward& second, const TensorView& stats, const TensorView& valid) {
  gpu::visit_element(g.dtype, "batch_norm_backward_apply_pair", [&]<class T>(std::type_identity<T>) {
    const auto given = [](const NormBackward& norm) {
      return Given<T>{gpu::data<const T>(norm.x), gpu::data<const float>(norm.coefficients),
                      gpu::data<const float>(norm.sums), gpu::data<T>(norm.dx)};
    };
    const bool aligned =
        gpu::aligned_to_vectors(gpu::data<const T>(g), gpu::data<const T>(first.x), gpu::data<const T>(second.x),
                                gpu::data<const T>(first.dx), gpu::data<const T>(second.dx));
    const Pieces pieces = pieces_of(g, TensorView(), aligned, kResidentPair);
    if (pieces.count > 0) {
      gpu::launch(backward_apply_pair_kernel<T>, dim3(pieces.blocks()), dim3(kBlock), 0, context.stream(), pieces,
                  batch_of(g), gpu::data<const T>(g), given(first), given(second), gpu::data<const float>(stats),
                  pointer<const int64_t>(valid));
    }
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
