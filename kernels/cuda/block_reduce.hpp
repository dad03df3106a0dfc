#pragma once

#include <lockstep/kernels/cuda/port.hpp>

namespace lockstep::gpu {

inline constexpr unsigned kAllLanes = 0xffffffffU;

/// Sum over the warp, in every lane. All 32 lanes call it. The order is fixed: the same bits every time.
template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

/// The larger one; a NaN wins.
template <class T>
__device__ T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

/// The largest of the warp, in every lane, like warp_sum(). A NaN wins.
template <class T>
__device__ T warp_max(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = larger(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

/// The values of all warps of a block of kThreads threads, joined in order by join(a, b), in every thread. Has two
/// barriers, so it may be called again at once.
template <int kThreads, class T, class Join>
__device__ T join_warps(T value, Join join) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  LOCKSTEP_SHARED(T, partial, [kWarps]);
  if (threadIdx.x % kWarp == 0) {
    partial[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  T total = partial[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    total = join(total, partial[i]);
  }
  __syncthreads();  // before the next join overwrites partial
  return total;
}

/// Sum over a block of kThreads threads (1-D, a multiple of the warp), in every thread. All threads call it. Has two
/// barriers, so it may be called again at once. Fixed order.
template <int kThreads, class T>
__device__ T block_sum(T value) {
  return join_warps<kThreads>(warp_sum(value), [](T a, T b) { return a + b; });
}

/// The largest over a block, like block_sum(). A NaN wins.
template <int kThreads, class T>
__device__ T block_max(T value) {
  return join_warps<kThreads>(warp_max(value), [](T a, T b) { return larger(a, b); });
}

/// value[j] = sum over threadIdx.y of the values of the threads with this threadIdx.x, in order; valid where
/// threadIdx.y is 0. For blocks of (kWarp, kLanes) threads. All threads call it. Has two barriers, so it may be called
/// again at once.
template <int kLanes, int kCount>
__device__ void sum_lanes(float (&value)[kCount]) {
  LOCKSTEP_SHARED(float, partial, [kLanes][kCount][kWarp]);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    partial[threadIdx.y][j][threadIdx.x] = value[j];
  }
  __syncthreads();
  if (threadIdx.y == 0) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      for (int lane = 1; lane < kLanes; ++lane) {
        value[j] += partial[lane][j][threadIdx.x];
      }
    }
  }
  __syncthreads();  // before the next call overwrites partial
}

}  // namespace lockstep::gpu
