#pragma once

// The device side of CUDA for host compilers. Kernel files include this header in place of nvcc's built-in names. Some
// declarations come from the toolkit's own headers. Not provided: __activemask and warpSize (see README.md), textures,
// inline PTX, clusters.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <cstddef>
#include <type_traits>

#include "device_calls.hpp"
#include "device_half.hpp"
#include "device_integer.hpp"
#include "device_math.hpp"
#include "device_memory.hpp"
#include "emulator.hpp"
#include "indices.hpp"

// For host compilers the toolkit defines __global__, __device__, __host__, __constant__ and __grid_constant__ as empty.
#undef __shared__  // kernels use LOCKSTEP_SHARED instead
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__  // libstdc++ uses an attribute of this name

/// Defines a shared variable of one block: LOCKSTEP_SHARED(float, tile, [32][33]). A type that contains a comma needs
/// an alias. The lambda has a new type at each use and in each instantiation of a template. So each use and each
/// instantiation has a variable of its own.
#define LOCKSTEP_SHARED(type, name, extents) \
  auto& name = ::lockstep::emulation::shared<type extents>([] {}, #name, {__builtin_FILE(), __builtin_LINE()})

/// Defines a pointer to the dynamic shared memory of the launch, aligned to 16 bytes. Example:
/// LOCKSTEP_DYNAMIC_SHARED(float, partial);
#define LOCKSTEP_DYNAMIC_SHARED(type, name) \
  type* const name =                        \
      static_cast<type*>(::lockstep::emulation::dynamic_shared(#name, {__builtin_FILE(), __builtin_LINE()}))

namespace lockstep::emulation {

template <class T, class Tag>
inline constexpr char kSharedKey = 0;

template <class T, class Tag>
T& shared(Tag, const char* name, Place place) {
  return *static_cast<T*>(shared_variable(&kSharedKey<T, Tag>, sizeof(T), alignof(T), name, place));
}

/// Runs a collective operation of a warp on one value of up to 16 bytes for each lane.
template <class T>
T collective(Collective kind, unsigned mask, T value, int argument, int width, Place place) {
  warp_collective(kind, mask, argument, width, &value, sizeof(T), place);
  return value;
}

}  // namespace lockstep::emulation

// The last parameter of the functions below is the source line of the caller.
#define LOCKSTEP_PLACE ::lockstep::emulation::Place place = {__builtin_FILE(), __builtin_LINE()}

inline void __syncthreads(LOCKSTEP_PLACE) {
  lockstep::emulation::block_barrier(lockstep::emulation::Barrier::sync, 0, place);
}
inline int __syncthreads_count(int predicate, LOCKSTEP_PLACE) {
  return lockstep::emulation::block_barrier(lockstep::emulation::Barrier::count, predicate, place);
}
inline int __syncthreads_and(int predicate, LOCKSTEP_PLACE) {
  return lockstep::emulation::block_barrier(lockstep::emulation::Barrier::all, predicate, place);
}
inline int __syncthreads_or(int predicate, LOCKSTEP_PLACE) {
  return lockstep::emulation::block_barrier(lockstep::emulation::Barrier::any, predicate, place);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, LOCKSTEP_PLACE) {
  lockstep::emulation::warp_collective(lockstep::emulation::Collective::sync, mask, 0, 32, nullptr, 0, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, LOCKSTEP_PLACE) {
  return lockstep::emulation::collective(lockstep::emulation::Collective::ballot, mask, predicate != 0 ? 1u : 0u, 0, 32,
                                         place);
}
inline int __any_sync(unsigned mask, int predicate, LOCKSTEP_PLACE) {
  return __ballot_sync(mask, predicate, place) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, LOCKSTEP_PLACE) {
  return __ballot_sync(mask, predicate != 0 ? 0 : 1, place) == 0 ? 1 : 0;
}

// Shuffles have overloads for the same types as in CUDA, so that arguments are converted as in CUDA.
#define LOCKSTEP_SHUFFLE(type, name, argument, kind)                                             \
  inline type name(unsigned mask, type value, argument source, int width = 32, LOCKSTEP_PLACE) { \
    return lockstep::emulation::collective(lockstep::emulation::Collective::kind, mask, value,   \
                                           static_cast<int>(source), width, place);              \
  }
#define LOCKSTEP_SHUFFLES(type)                                    \
  LOCKSTEP_SHUFFLE(type, __shfl_sync, int, shuffle)                \
  LOCKSTEP_SHUFFLE(type, __shfl_up_sync, unsigned, shuffle_up)     \
  LOCKSTEP_SHUFFLE(type, __shfl_down_sync, unsigned, shuffle_down) \
  LOCKSTEP_SHUFFLE(type, __shfl_xor_sync, int, shuffle_xor)
LOCKSTEP_SHUFFLES(int)
LOCKSTEP_SHUFFLES(unsigned)
LOCKSTEP_SHUFFLES(long)
LOCKSTEP_SHUFFLES(unsigned long)
LOCKSTEP_SHUFFLES(long long)
LOCKSTEP_SHUFFLES(unsigned long long)
LOCKSTEP_SHUFFLES(float)
LOCKSTEP_SHUFFLES(double)
LOCKSTEP_SHUFFLES(__half)
LOCKSTEP_SHUFFLES(__half2)
LOCKSTEP_SHUFFLES(__nv_bfloat16)
LOCKSTEP_SHUFFLES(__nv_bfloat162)
#undef LOCKSTEP_SHUFFLES
#undef LOCKSTEP_SHUFFLE

[[noreturn]] inline void __trap(LOCKSTEP_PLACE) {
  lockstep::emulation::fail_kernel("__trap()", place);
}

#undef LOCKSTEP_PLACE
