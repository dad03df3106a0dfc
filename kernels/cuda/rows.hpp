#pragma once

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cuda/block_reduce.hpp>
#include <lockstep/kernels/cuda/element.hpp>

/// Device code for kernels in which a warp or a block takes one row. No row is split over blocks, so no sum needs
/// several blocks. A kernel goes over its row several times; a thread takes the same elements each time. The row comes
/// from memory once, then from the first-level cache (a row of 8192 floats is 32 KiB).
namespace lockstep::gpu {

inline constexpr int kRowBlock = 256;  // number of threads of a block: 8 warps, which take one row each or all one row
inline constexpr std::int64_t kWarpRow = 1024;  // longest row that one warp takes; a whole block takes a longer row

/// Calls f(std::integral_constant<int, kThreads>{}), where kThreads is the number of threads for a row of `extent`
/// elements: kWarp (8 rows per block) or kRowBlock (one row per block).
template <class F>
void visit_row_threads(std::int64_t extent, F&& f) {
  if (extent <= kWarpRow) {
    f(std::integral_constant<int, kWarp>{});
  } else {
    f(std::integral_constant<int, kRowBlock>{});
  }
}

/// Returns, in each of the kThreads threads of a row, the sum of `value` over these threads.
template <int kThreads, class T>
__device__ T row_sum(T value) {
  if constexpr (kThreads == kWarp) {
    return warp_sum(value);
  } else {
    return block_sum<kThreads>(value);
  }
}

/// Returns, in each of the kThreads threads of a row, the largest `value` of these threads, or NaN if one is NaN.
template <int kThreads, class T>
__device__ T row_max(T value) {
  if constexpr (kThreads == kWarp) {
    return warp_max(value);
  } else {
    return block_max<kThreads>(value);
  }
}

/// Calls f(k, in[k]...), with in[k] as float, for the indexes k of a row that thread `lane` of kThreads takes: pieces
/// of kCount indexes that begin below `end`. The last piece may reach up to kCount - 1 indexes beyond `end`. Each of
/// `in` is one row, made up of whole pieces and aligned as load() requires.
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

/// Sets out[k] = f(k, in[k]...) for all k that visit_row() would visit in this thread. The thread reads a piece of each
/// row of `in` before it writes that piece of `out`, so `out` may be one of `in`.
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
