#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include <lockstep/kernels/activation.hpp>

/// The functions of enum Activation and their derivatives on the host. Their own namespace: one of them is tanh.
namespace lockstep::ops::activations {

inline constexpr std::int64_t kGrain = 2048;  // elements that are worth a thread: each costs an exponential

template <class T>
T sigmoid(T x) {  // exp of no positive number: nothing overflows
  const T e = std::exp(-std::abs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}

/// Phi(x); erfc keeps the digits of its tail.
template <class T>
T normal_distribution(T x) {
  return T(0.5) * std::erfc(-x / T(std::numbers::sqrt2));
}

struct Gelu {
  template <class T>
  static T value(T x) {
    return x * normal_distribution(x);
  }
  template <class T>
  static T slope(T x) {
    const T density = std::exp(-x * x / 2) / T(std::sqrt(2 * std::numbers::pi));
    return normal_distribution(x) + x * density;
  }
};

struct GeluTanh {
  static constexpr double kCubic = 0.044715;
  template <class T>
  static T inner(T x) {
    return T(std::sqrt(2 / std::numbers::pi)) * (x + T(kCubic) * x * x * x);
  }
  template <class T>
  static T value(T x) {
    return x / 2 * (1 + std::tanh(inner(x)));
  }
  template <class T>
  static T slope(T x) {
    const T t = std::tanh(inner(x));
    const T sech2 = (1 - t) * (1 + t);
    const T inner_slope = T(std::sqrt(2 / std::numbers::pi)) * (1 + 3 * T(kCubic) * x * x);
    return (1 + t) / 2 + (sech2 == 0 ? T(0) : x / 2 * sech2 * inner_slope);  // inner_slope may be infinite
  }
};

struct Silu {
  template <class T>
  static T value(T x) {
    return x * sigmoid(x);
  }
  template <class T>
  static T slope(T x) {
    return sigmoid(x) * (1 + x * sigmoid(-x));
  }
};

struct Tanh {
  template <class T>
  static T value(T x) {
    return std::tanh(x);
  }
  template <class T>
  static T slope(T x) {
    const T y = std::tanh(x);
    return (1 - y) * (1 + y);
  }
};

struct Sigmoid {
  template <class T>
  static T value(T x) {
    return sigmoid(x);
  }
  template <class T>
  static T slope(T x) {
    return sigmoid(x) * sigmoid(-x);
  }
};

struct Relu {
  template <class T>
  static T value(T x) {
    return x <= T(0) ? T(0) : x;  // NaN stays NaN
  }
  template <class T>
  static T slope(T x) {
    return x > T(0) ? T(1) : (x <= T(0) ? T(0) : x);
  }
};

struct Identity {
  template <class T>
  static T value(T x) {
    return x;
  }
  template <class T>
  static T slope(T /*x*/) {
    return T(1);
  }
};

/// Calls f with the one of the structs above that `kind` names.
template <class F>
void visit(Activation kind, F&& f) {
  switch (kind) {
    case Activation::gelu:
      return f(Gelu{});
    case Activation::gelu_tanh:
      return f(GeluTanh{});
    case Activation::silu:
      return f(Silu{});
    case Activation::tanh:
      return f(Tanh{});
    case Activation::sigmoid:
      return f(Sigmoid{});
    case Activation::relu:
      return f(Relu{});
    case Activation::identity:
      return f(Identity{});
  }
}

}  // namespace lockstep::ops::activations
