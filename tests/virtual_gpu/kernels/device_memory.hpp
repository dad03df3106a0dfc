#pragma once

// Atomics, fences, and loads and stores with cache hints. Part of device.hpp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "device_calls.hpp"

namespace lockstep::emulation {

template <std::size_t kBytes>
struct BitsOf;
template <>
struct BitsOf<2> {
  using Type = std::uint16_t;
};
template <>
struct BitsOf<4> {
  using Type = std::uint32_t;
};
template <>
struct BitsOf<8> {
  using Type = std::uint64_t;
};

/// Sets *address to change(*address) in one step and returns the old value. All threads of a kernel share one OS
/// thread, so no other thread runs between the load and the store. The load and the store use __atomic builtins,
/// because the race checker would count plain accesses as the kernel's.
template <class T, class Change>
[[gnu::always_inline]] inline T update(T* address, Place place, Change change) {
  using Bits = typename BitsOf<sizeof(T)>::Type;
  before_atomic(address, sizeof(T), place);
  auto* bits = reinterpret_cast<Bits*>(address);
  Bits raw = __atomic_load_n(bits, __ATOMIC_RELAXED);
  T old;
  __builtin_memcpy(static_cast<void*>(&old), &raw, sizeof(T));
  const T changed = change(old);
  __builtin_memcpy(&raw, static_cast<const void*>(&changed), sizeof(T));
  __atomic_store_n(bits, raw, __ATOMIC_RELAXED);
  return old;
}

}  // namespace lockstep::emulation

// Atomics have overloads for exactly the types of CUDA, so that code that nvcc rejects is rejected here, too. Integers
// wrap around.
#define LOCKSTEP_PLACE ::lockstep::emulation::Place place = {__builtin_FILE(), __builtin_LINE()}
#define LOCKSTEP_ATOMIC(name, type, result)                                                           \
  [[gnu::always_inline]] inline type name(type* address, type value, LOCKSTEP_PLACE) {                \
    return lockstep::emulation::update(address, place, [value](type old) -> type { return result; }); \
  }
#define LOCKSTEP_WRAPPING(type, operation)                       \
  static_cast<type>(static_cast<std::make_unsigned_t<type>>(old) \
                        operation static_cast<std::make_unsigned_t<type>>(value))

LOCKSTEP_ATOMIC(atomicAdd, int, LOCKSTEP_WRAPPING(int, +))
LOCKSTEP_ATOMIC(atomicAdd, unsigned, old + value)
LOCKSTEP_ATOMIC(atomicAdd, unsigned long long, old + value)
LOCKSTEP_ATOMIC(atomicAdd, float, old + value)
LOCKSTEP_ATOMIC(atomicAdd, double, old + value)
LOCKSTEP_ATOMIC(atomicAdd, __half, __hadd(old, value))
LOCKSTEP_ATOMIC(atomicAdd, __half2, __hadd2(old, value))
LOCKSTEP_ATOMIC(atomicAdd, __nv_bfloat16, __hadd(old, value))
LOCKSTEP_ATOMIC(atomicAdd, __nv_bfloat162, __hadd2(old, value))
LOCKSTEP_ATOMIC(atomicSub, int, LOCKSTEP_WRAPPING(int, -))
LOCKSTEP_ATOMIC(atomicSub, unsigned, old - value)
LOCKSTEP_ATOMIC(atomicExch, int, (static_cast<void>(old), value))
LOCKSTEP_ATOMIC(atomicExch, unsigned, (static_cast<void>(old), value))
LOCKSTEP_ATOMIC(atomicExch, unsigned long long, (static_cast<void>(old), value))
LOCKSTEP_ATOMIC(atomicExch, float, (static_cast<void>(old), value))
LOCKSTEP_ATOMIC(atomicMin, int, value < old ? value : old)
LOCKSTEP_ATOMIC(atomicMin, unsigned, value < old ? value : old)
LOCKSTEP_ATOMIC(atomicMin, long long, value < old ? value : old)
LOCKSTEP_ATOMIC(atomicMin, unsigned long long, value < old ? value : old)
LOCKSTEP_ATOMIC(atomicMax, int, value > old ? value : old)
LOCKSTEP_ATOMIC(atomicMax, unsigned, value > old ? value : old)
LOCKSTEP_ATOMIC(atomicMax, long long, value > old ? value : old)
LOCKSTEP_ATOMIC(atomicMax, unsigned long long, value > old ? value : old)
LOCKSTEP_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
LOCKSTEP_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
LOCKSTEP_ATOMIC(atomicAnd, int, old& value)
LOCKSTEP_ATOMIC(atomicAnd, unsigned, old& value)
LOCKSTEP_ATOMIC(atomicAnd, unsigned long long, old& value)
LOCKSTEP_ATOMIC(atomicOr, int, old | value)
LOCKSTEP_ATOMIC(atomicOr, unsigned, old | value)
LOCKSTEP_ATOMIC(atomicOr, unsigned long long, old | value)
LOCKSTEP_ATOMIC(atomicXor, int, old ^ value)
LOCKSTEP_ATOMIC(atomicXor, unsigned, old ^ value)
LOCKSTEP_ATOMIC(atomicXor, unsigned long long, old ^ value)
#undef LOCKSTEP_WRAPPING
#undef LOCKSTEP_ATOMIC

#define LOCKSTEP_CAS(type)                                                                                \
  [[gnu::always_inline]] inline type atomicCAS(type* address, type compare, type value, LOCKSTEP_PLACE) { \
    return lockstep::emulation::update(address, place,                                                    \
                                       [=](type old) -> type { return old == compare ? value : old; });   \
  }
LOCKSTEP_CAS(int)
LOCKSTEP_CAS(unsigned)
LOCKSTEP_CAS(unsigned long long)
LOCKSTEP_CAS(unsigned short)
#undef LOCKSTEP_CAS
#undef LOCKSTEP_PLACE

inline void __threadfence() {
  lockstep::emulation::thread_fence(true);
}
inline void __threadfence_system() {
  lockstep::emulation::thread_fence(true);
}
inline void __threadfence_block() {
  lockstep::emulation::thread_fence(false);
}

#define LOCKSTEP_LOAD(name)                                                                            \
  template <class T>                                                                                   \
  [[gnu::always_inline]] inline T name(const T* address) {                                             \
    static_assert(std::has_single_bit(sizeof(T)) && sizeof(T) <= 16, "a scalar, half or vector type"); \
    return *address;                                                                                   \
  }
LOCKSTEP_LOAD(__ldg)
LOCKSTEP_LOAD(__ldca)
LOCKSTEP_LOAD(__ldcg)
LOCKSTEP_LOAD(__ldcs)
LOCKSTEP_LOAD(__ldlu)
LOCKSTEP_LOAD(__ldcv)
#undef LOCKSTEP_LOAD

#define LOCKSTEP_STORE(name)                                                                           \
  template <class T>                                                                                   \
  [[gnu::always_inline]] inline void name(T* address, std::type_identity_t<T> value) {                 \
    static_assert(std::has_single_bit(sizeof(T)) && sizeof(T) <= 16, "a scalar, half or vector type"); \
    *address = value;                                                                                  \
  }
LOCKSTEP_STORE(__stwb)
LOCKSTEP_STORE(__stcg)
LOCKSTEP_STORE(__stcs)
LOCKSTEP_STORE(__stwt)
#undef LOCKSTEP_STORE
