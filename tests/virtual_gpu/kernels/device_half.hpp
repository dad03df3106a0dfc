#pragma once

// Functions of half and bfloat16 that the toolkit's headers declare for device code only. They compute in double and
// round once. The result equals that of a correctly rounded GPU instruction, unless the double result is a tie. Part of
// device.hpp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace lockstep::emulation {

inline double widen(__half x) {
  return static_cast<double>(__half2float(x));
}
inline double widen(__nv_bfloat16 x) {
  return static_cast<double>(__bfloat162float(x));
}
inline void narrow(double x, __half& result) {
  result = __double2half(x);
}
inline void narrow(double x, __nv_bfloat16& result) {
  result = __double2bfloat16(x);
}
template <class T>
T narrowed(double x) {
  T result;
  narrow(x, result);
  return result;
}

}  // namespace lockstep::emulation

#define LOCKSTEP_HALF(half, half2, name, expression)        \
  inline half h##name(half argument) {                      \
    const double x = lockstep::emulation::widen(argument);  \
    return lockstep::emulation::narrowed<half>(expression); \
  }                                                         \
  inline half2 h2##name(half2 argument) {                   \
    half2 result;                                           \
    result.x = h##name(argument.x);                         \
    result.y = h##name(argument.y);                         \
    return result;                                          \
  }
#define LOCKSTEP_HALVES(half, half2)                                                                            \
  inline half __hfma(half a, half b, half c) {                                                                  \
    return lockstep::emulation::narrowed<half>(                                                                 \
        std::fma(lockstep::emulation::widen(a), lockstep::emulation::widen(b), lockstep::emulation::widen(c))); \
  }                                                                                                             \
  inline half __hfma_relu(half a, half b, half c) {                                                             \
    const half sum = __hfma(a, b, c);                                                                           \
    return lockstep::emulation::widen(sum) < 0.0 ? lockstep::emulation::narrowed<half>(0.0) : sum;              \
  }                                                                                                             \
  inline half2 __hfma2(half2 a, half2 b, half2 c) {                                                             \
    half2 result;                                                                                               \
    result.x = __hfma(a.x, b.x, c.x);                                                                           \
    result.y = __hfma(a.y, b.y, c.y);                                                                           \
    return result;                                                                                              \
  }                                                                                                             \
  LOCKSTEP_HALF(half, half2, exp, std::exp(x))                                                                  \
  LOCKSTEP_HALF(half, half2, exp2, std::exp2(x))                                                                \
  LOCKSTEP_HALF(half, half2, log, std::log(x))                                                                  \
  LOCKSTEP_HALF(half, half2, log2, std::log2(x))                                                                \
  LOCKSTEP_HALF(half, half2, sqrt, std::sqrt(x))                                                                \
  LOCKSTEP_HALF(half, half2, rsqrt, 1.0 / std::sqrt(x))                                                         \
  LOCKSTEP_HALF(half, half2, rcp, 1.0 / x)                                                                      \
  LOCKSTEP_HALF(half, half2, sin, std::sin(x))                                                                  \
  LOCKSTEP_HALF(half, half2, cos, std::cos(x))                                                                  \
  LOCKSTEP_HALF(half, half2, tanh, std::tanh(x))                                                                \
  LOCKSTEP_HALF(half, half2, ceil, std::ceil(x))                                                                \
  LOCKSTEP_HALF(half, half2, floor, std::floor(x))                                                              \
  LOCKSTEP_HALF(half, half2, trunc, std::trunc(x))                                                              \
  LOCKSTEP_HALF(half, half2, rint, std::nearbyint(x))
LOCKSTEP_HALVES(__half, __half2)
LOCKSTEP_HALVES(__nv_bfloat16, __nv_bfloat162)
#undef LOCKSTEP_HALVES
#undef LOCKSTEP_HALF
