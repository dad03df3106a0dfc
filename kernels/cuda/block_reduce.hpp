#pragma once

#include <lockstep/kernels/cuda/port.hpp>

namespace lockstep::gpu {

inline constexpr unsigned kAllLanes = 0xffffffffU;

/// Returns the sum of `value` over the warp, in every lane. All 32 lanes must call warp_sum(). The order of the
/// additions is fixed, so that the same values always give the same bits.
template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

/// Returns the larger of `a` and `b`, or NaN if one of them is NaN.
template <class T>
__device__ T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

/// Returns the largest `value` of the warp, in every lane, or NaN if any lane has NaN. All 32 lanes must call
/// warp_max().
template <class T>
__device__ T warp_max(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = larger(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

/// Joins one value of each warp of a block by join(a, b), in the order of the warps. Returns the result in every
/// thread. All kThreads threads of the block must call join_warps(). It ends with a barrier, so the threads may call it
/// again at once.
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

/// Returns the sum of `value` over a one-dimensional block of kThreads threads (whole warps), in every thread and in a
/// fixed order. All threads must call block_sum(). It ends with a barrier, so the threads may call it again at once.
template <int kThreads, class T>
__device__ T block_sum(T value) {
  return join_warps<kThreads>(warp_sum(value), [](T a, T b) { return a + b; });
}

/// Returns the largest `value` of a block, in every thread, or NaN if any thread has NaN. All threads of the block must
/// call block_max(), and may call it again at once.
template <int kThreads, class T>
__device__ T block_max(T value) {
  return join_warps<kThreads>(warp_max(value), [](T a, T b) { return larger(a, b); });
}

/// Sums value[j] over threadIdx.y, in order, among the threads with the same threadIdx.x. The result is valid in the
/// threads whose threadIdx.y is 0. All threads of a block of (kWarp, kLanes) threads must call sum_lanes(). It ends
/// with a barrier, so the threads may call it again at once.
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
  __syncthreads();  // waits until all threads have read partial, which the next call overwrites
}

}  // namespace lockstep::gpu
