#pragma once

// Arithmetic of device code that the toolkit's headers lack for host compilers. Functions that CUDA approximates
// (__expf, rsqrtf, ...) are as exact here as the host's libm. Part of device.hpp.

#include <math.h>
#include <stdlib.h>

#include <cmath>
#include <limits>

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
}  // hides exp10f() of the C library
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

/// Converts x, which is already rounded, to the nearest value of an integer type. NaN gives 0, as with the 32-bit cvt
/// instruction.
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

// ---- min and max in the global namespace, as in CUDA: mixed signs give unsigned; NaN gives the other argument ----

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
