#pragma once

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>

/// Device code for kernels in which a warp or a block takes one row. No row is split over blocks, so no sums cross
/// blocks. A kernel goes over its row several times, each thread over the same elements. Memory transfers the row once,
/// and the first-level cache serves the other passes (a row of 8192 floats is 32 KiB).
namespace lockstep::gpu {

inline constexpr int kRowBlock = 256;           // threads of a block: 8 warps with one row each, or all for one row
inline constexpr std::int64_t kWarpRow = 1024;  // longest row that a warp takes; a block takes a longer row

/// Calls f(std::integral_constant<int, kThreads>{}) with the number of threads for a row of `extent` elements: a warp,
/// with 8 rows per block, or a block.
template <class F>
void visit_row_threads(std::int64_t extent, F&& f) {
  if (extent <= kWarpRow) {
    f(std::integral_constant<int, kWarp>{});
  } else {
    f(std::integral_constant<int, kRowBlock>{});
  }
}

/// Returns the sum over the kThreads threads of a row, in every thread of the row.
template <int kThreads, class T>
__device__ T row_sum(T value) {
  if constexpr (kThreads == kWarp) {
    return warp_sum(value);
  } else {
    return block_sum<kThreads>(value);
  }
}

/// Returns the largest value of the kThreads threads of a row, in every thread of the row; NaN if a value is NaN.
template <int kThreads, class T>
__device__ T row_max(T value) {
  if constexpr (kThreads == kWarp) {
    return warp_max(value);
  } else {
    return block_max<kThreads>(value);
  }
}

/// Calls f(k, in[k]...), with the values as floats, for the elements k that thread `lane` of kThreads takes. The thread
/// takes pieces of kCount elements that begin below `end`, so k reaches up to kCount - 1 elements beyond `end`. Each of
/// `in` is one row, in whole pieces, aligned as load() requires.
template <int kThreads, int kCount, class F, class... In>
__device__ void visit_row(std::int64_t end, int lane, F f, const In*... in) {
  for (std::int64_t k = lane * kCount; k < end; k += kThreads * kCount) {
    const auto visit = [&](const Pack<In, kCount>&... pieces) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        f(k + j, to_float(pieces.at[j])...);
      }
    };
    visit(load<kCount>(in + k)...);
  }
}

/// Sets out[k] = f(k, in[k]...) for the elements that visit_row() gives this thread. A thread reads a piece before it
/// writes the piece: out may be one of in.
template <int kThreads, int kCount, class F, class T, class... In>
__device__ void transform_row(std::int64_t end, int lane, F f, T* out, const In*... in) {
  for (std::int64_t k = lane * kCount; k < end; k += kThreads * kCount) {
    const auto apply = [&](const Pack<In, kCount>&... pieces) {
      Pack<T, kCount> result;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        result.at[j] = from_float<T>(f(k + j, to_float(pieces.at[j])...));
      }
      return result;
    };
    store(out + k, apply(load<kCount>(in + k)...));
  }
}

}  // namespace lockstep::gpu
