#include <lockstep/kernels/activation.hpp>

#include <cmath>
#include <cstdint>
#include <numbers>

#include <lockstep/runtime/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using std::numbers::pi;
using std::numbers::sqrt2;

constexpr std::int64_t kGrain = 2048;  // elements that are worth a thread: each costs an exponential

template <class T>
T sigmoid(T x) {  // exp of no positive number: nothing overflows
  const T e = std::exp(-std::abs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}

/// Phi(x); erfc keeps the digits of its tail.
template <class T>
T normal_distribution(T x) {
  return T(0.5) * std::erfc(-x / T(sqrt2));
}

// The functions and their derivatives.

struct Gelu {
  template <class T>
  static T value(T x) {
    return x * normal_distribution(x);
  }
  template <class T>
  static T slope(T x) {
    const T density = std::exp(-x * x / 2) / T(std::sqrt(2 * pi));
    return normal_distribution(x) + x * density;
  }
};

struct GeluTanh {
  static constexpr double kCubic = 0.044715;
  template <class T>
  static T inner(T x) {
    return T(std::sqrt(2 / pi)) * (x + T(kCubic) * x * x * x);
  }
  template <class T>
  static T value(T x) {
    return x / 2 * (1 + std::tanh(inner(x)));
  }
  template <class T>
  static T slope(T x) {
    const T t = std::tanh(inner(x));
    const T sech2 = (1 - t) * (1 + t);
    const T inner_slope = T(std::sqrt(2 / pi)) * (1 + 3 * T(kCubic) * x * x);
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
  }
}

}  // namespace

void activation_forward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& y) {
  visit_compute(x.dtype, "activation_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    visit(kind, [&]<class Function>(Function) {
      parallel_ranges(context, x.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          py[i] = Function::value(px[i]);
        }
      });
    });
  });
}

void activation_backward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  visit_compute(x.dtype, "activation_backward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    visit(kind, [&]<class Function>(Function) {
      parallel_ranges(context, x.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          pdx[i] = pdy[i] * Function::slope(px[i]);
        }
      });
    });
  });
}

}  // namespace lockstep::ops::backend
