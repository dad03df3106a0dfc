#pragma once

#include <type_traits>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/cuda/port.hpp>

/// The functions of enum Activation and their derivatives on the device, in f32.
namespace lockstep::gpu {

namespace detail {

inline constexpr float kSqrtHalf = 0.70710678F;       // sqrt(1 / 2)
inline constexpr float kInvSqrtTwoPi = 0.39894228F;   // 1 / sqrt(2 pi)
inline constexpr float kSqrtTwoOverPi = 0.79788456F;  // sqrt(2 / pi)
inline constexpr float kCubic = 0.044715F;

/// The values sigma(x) and sigma(-x), computed from one exponential that cannot overflow.
struct Sigmas {
  float at_x, at_minus_x;
};

__device__ inline Sigmas sigmas(float x) {
  const float e = expf(-fabsf(x));
  const float large = 1.0F / (1.0F + e);
  const float small = e * large;
  return x >= 0.0F ? Sigmas{large, small} : Sigmas{small, large};
}

__device__ inline float normal_distribution(float x) {
  return 0.5F * erfcf(-x * kSqrtHalf);
}

}  // namespace detail

template <ops::Activation kKind>
struct Activated {
  __device__ static float value(float x) {
    using ops::Activation;
    if constexpr (kKind == Activation::gelu) {
      return x * detail::normal_distribution(x);
    } else if constexpr (kKind == Activation::gelu_tanh) {
      return 0.5F * x * (1.0F + tanhf(detail::kSqrtTwoOverPi * fmaf(detail::kCubic * x * x, x, x)));
    } else if constexpr (kKind == Activation::silu) {
      return x * detail::sigmas(x).at_x;
    } else if constexpr (kKind == Activation::tanh) {
      return tanhf(x);
    } else if constexpr (kKind == Activation::sigmoid) {
      return detail::sigmas(x).at_x;
    } else if constexpr (kKind == Activation::relu) {
      return x <= 0.0F ? 0.0F : x;  // NaN stays NaN
    } else {
      return x;
    }
  }

  __device__ static float slope(float x) {
    using ops::Activation;
    if constexpr (kKind == Activation::gelu) {
      return detail::normal_distribution(x) + x * (detail::kInvSqrtTwoPi * expf(-0.5F * x * x));
    } else if constexpr (kKind == Activation::gelu_tanh) {
      const float square = x * x;
      const float t = tanhf(detail::kSqrtTwoOverPi * fmaf(detail::kCubic * square, x, x));
      const float sech2 = (1.0F - t) * (1.0F + t);
      const float inner_slope = detail::kSqrtTwoOverPi * fmaf(3.0F * detail::kCubic, square, 1.0F);
      // inner_slope may be infinite when sech2 is 0; the condition avoids 0 * infinity, which is NaN.
      return 0.5F * (1.0F + t) + (sech2 == 0.0F ? 0.0F : 0.5F * x * sech2 * inner_slope);
    } else if constexpr (kKind == Activation::silu) {
      const detail::Sigmas s = detail::sigmas(x);
      return s.at_x * fmaf(x, s.at_minus_x, 1.0F);
    } else if constexpr (kKind == Activation::tanh) {
      const float y = tanhf(x);
      return (1.0F - y) * (1.0F + y);
    } else if constexpr (kKind == Activation::sigmoid) {
      const detail::Sigmas s = detail::sigmas(x);
      return s.at_x * s.at_minus_x;
    } else if constexpr (kKind == Activation::relu) {
      return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x);
    } else {
      return 1.0F;
    }
  }
};

/// An activation that is chosen at run time.
template <ops::Activation... kKinds>
struct ChosenActivation {
  ops::Activation kind;

  /// Calls f(Activated<kind>{}) on the host.
  template <class F>
  void visit(F&& f) const {
    static_cast<void>(((kind == kKinds && (f(Activated<kKinds>{}), true)) || ...));
  }
  // value() and slope() compute the chosen function in kernels, for code paths that do not justify one kernel per kind.
  __device__ float value(float x) const {
    float result = x;
    static_cast<void>(((kind == kKinds && (result = Activated<kKinds>::value(x), true)) || ...));
    return result;
  }
  __device__ float slope(float x) const {
    float result = 1.0F;
    static_cast<void>(((kind == kKinds && (result = Activated<kKinds>::slope(x), true)) || ...));
    return result;
  }
};
using AnyActivation = ChosenActivation<ops::Activation::identity, ops::Activation::relu, ops::Activation::gelu,
                                       ops::Activation::gelu_tanh, ops::Activation::silu, ops::Activation::tanh,
                                       ops::Activation::sigmoid>;

}  // namespace lockstep::gpu
