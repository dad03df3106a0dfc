#pragma once

// Device arithmetic that host headers lack. What CUDA approximates (__expf, rsqrtf, ...) is as exact here as the host's
// libm. Part of device.hpp.

#include <math.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

// ---- Integers and bits ----

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) {
    reversed = reversed << 1 | (x >> bit & 1u);
  }
  return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline int __mulhi(int a, int b) {
  return static_cast<int>((static_cast<long long>(a) * b) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  __extension__ using Wide = __int128;
  return static_cast<long long>(static_cast<Wide>(a) * b >> 64);
}
/// Bytes of y:x chosen by the digits of selector; digit & 8 repeats the byte's sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned digit = selector >> 4 * i & 0xFu;
    const unsigned byte = static_cast<unsigned>(bytes >> 8 * (digit & 7u)) & 0xFFu;
    result |= ((digit & 8u) == 0 ? byte : (byte & 0x80u) != 0 ? 0xFFu : 0u) << 8 * i;
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) << (shift & 31u) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) >> (shift & 31u));
}

// ---- The same bits as another type ----

inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}

// ---- Floating point ----

inline float rsqrtf(float x) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
inline float rsqrt(float x) {
  return rsqrtf(x);
}
inline float rcbrtf(float x) {
  return static_cast<float>(1.0 / std::cbrt(static_cast<double>(x)));
}
inline float fdividef(float a, float b) {
  return a / b;
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __expf(float x) {
  return ::expf(x);
}
inline float __exp10f(float x) {
  return ::powf(10.0F, x);
}
inline float exp10f(float x) {
  return ::powf(10.0F, x);
}  // hides the C library's
inline float __logf(float x) {
  return ::logf(x);
}
inline float __log2f(float x) {
  return ::log2f(x);
}
inline float __log10f(float x) {
  return ::log10f(x);
}
inline float __powf(float x, float y) {
  return ::powf(x, y);
}
inline float __sinf(float x) {
  return ::sinf(x);
}
inline float __cosf(float x) {
  return ::cosf(x);
}
inline float __tanf(float x) {
  return ::tanf(x);
}
inline float __saturatef(float x) {
  return x > 0.0F ? (x < 1.0F ? x : 1.0F) : 0.0F;
}  // NaN gives 0
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1.0F / x;
}
inline float __fsqrt_rn(float x) {
  return ::sqrtf(x);
}
inline float __frsqrt_rn(float x) {
  return rsqrtf(x);
}
inline float __fmaf_rn(float a, float b, float c) {
  return ::fmaf(a, b, c);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __fma_rn(double a, double b, double c) {
  return ::fma(a, b, c);
}

namespace lockstep::emulation {

/// x rounded already, to an integer type: the nearest that it has; 0 for NaN, as cvt does for 32 bits.
template <class Integer, class Float>
Integer saturated(Float x) {
  if (!(x == x)) {
    return 0;
  }
  if (x <= static_cast<Float>(std::numeric_limits<Integer>::min())) {
    return std::numeric_limits<Integer>::min();
  }
  if (x >= static_cast<Float>(std::numeric_limits<Integer>::max())) {
    return std::numeric_limits<Integer>::max();
  }
  return static_cast<Integer>(x);
}

}  // namespace lockstep::emulation

#define LOCKSTEP_TO_INTEGER(from, to, float_type, integer)             \
  inline integer __##from##2##to##_rn(float_type x) {                  \
    return lockstep::emulation::saturated<integer>(std::nearbyint(x)); \
  }                                                                    \
  inline integer __##from##2##to##_rz(float_type x) {                  \
    return lockstep::emulation::saturated<integer>(std::trunc(x));     \
  }                                                                    \
  inline integer __##from##2##to##_rd(float_type x) {                  \
    return lockstep::emulation::saturated<integer>(std::floor(x));     \
  }                                                                    \
  inline integer __##from##2##to##_ru(float_type x) {                  \
    return lockstep::emulation::saturated<integer>(std::ceil(x));      \
  }
LOCKSTEP_TO_INTEGER(float, int, float, int)
LOCKSTEP_TO_INTEGER(float, uint, float, unsigned)
LOCKSTEP_TO_INTEGER(float, ll, float, long long)
LOCKSTEP_TO_INTEGER(double, int, double, int)
LOCKSTEP_TO_INTEGER(double, ll, double, long long)
#undef LOCKSTEP_TO_INTEGER
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
  return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) {
  return static_cast<float>(x);
}
inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}

// ---- min and max of CUDA's global namespace: mixed signs give unsigned; a NaN gives the other argument ----

#define LOCKSTEP_MIN_MAX(a_type, b_type, type)                                                        \
  inline type min(a_type a, b_type b) {                                                               \
    return static_cast<type>(a) < static_cast<type>(b) ? static_cast<type>(a) : static_cast<type>(b); \
  }                                                                                                   \
  inline type max(a_type a, b_type b) {                                                               \
    return static_cast<type>(a) > static_cast<type>(b) ? static_cast<type>(a) : static_cast<type>(b); \
  }
#define LOCKSTEP_MIN_MAX_SIGNS(type)                            \
  LOCKSTEP_MIN_MAX(type, type, type)                            \
  LOCKSTEP_MIN_MAX(unsigned type, unsigned type, unsigned type) \
  LOCKSTEP_MIN_MAX(type, unsigned type, unsigned type)          \
  LOCKSTEP_MIN_MAX(unsigned type, type, unsigned type)
LOCKSTEP_MIN_MAX_SIGNS(int)
LOCKSTEP_MIN_MAX_SIGNS(long)
LOCKSTEP_MIN_MAX_SIGNS(long long)
#undef LOCKSTEP_MIN_MAX_SIGNS
#undef LOCKSTEP_MIN_MAX
inline float min(float a, float b) {
  return ::fminf(a, b);
}
inline float max(float a, float b) {
  return ::fmaxf(a, b);
}
inline double min(double a, double b) {
  return ::fmin(a, b);
}
inline double max(double a, double b) {
  return ::fmax(a, b);
}
inline double min(float a, double b) {
  return ::fmin(a, b);
}
inline double max(float a, double b) {
  return ::fmax(a, b);
}
inline double min(double a, float b) {
  return ::fmin(a, b);
}
inline double max(double a, float b) {
  return ::fmax(a, b);
}
