#pragma once

#include <lockstep/kernels/cuda/port.hpp>

namespace lockstep::gpu {

inline constexpr unsigned kAllLanes = 0xffffffffU;

/// Sum over the warp, in every lane. All 32 lanes call it. Fixed order: the same bits every time.
template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

template <class T>
__device__ T warp_max(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, offset);
    value = other > value || other != other ? other : value;  // a NaN wins
  }
  return value;
}

/// Sum over a block of kThreads threads (1-D, a multiple of the warp), in every thread. All threads call it. Two
/// barriers: it may be called again at once. Fixed order.
template <int kThreads, class T>
__device__ T block_sum(T value) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  LOCKSTEP_SHARED(T, partial, [kWarps]);
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) {
    partial[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  T total = partial[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    total += partial[i];
  }
  __syncthreads();  // before the next call overwrites partial
  return total;
}

/// value[j] = sum over threadIdx.y of what the threads with this threadIdx.x hold, in order; valid where threadIdx.y is
/// 0. Blocks of (kWarp, kLanes) threads. All threads call it. Two barriers: it may be called again at once.
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
