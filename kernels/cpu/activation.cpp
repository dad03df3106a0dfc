#include <lockstep/kernels/cpu/activation.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/lanes.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops {
namespace {

using lanes::all;
using lanes::Lanes;
using lanes::multiply_add;

// exp and tanh of a register of numbers, without branches. Both functions split x = n ln 2 + r, where n is the whole
// number nearest to x / ln 2. Hence |r| is at most ln 2 / 2 = 0.35, and exp(x) = 2^n exp(r).

template <class T>
struct Format;

template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kBias = 1023;
  static constexpr int kTerms = 13;  // last power of r in the Taylor series of exp(r); r^14 / 14! is below 2^-56 r
  static constexpr double kShift = 0x1.8p52;           // x + kShift has the whole number nearest to x in its low bits
  static constexpr double kLn2High = 0x1.62e42feep-1;  // has few significant bits, so that n * kLn2High is exact
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kTanhIsOne = 20;  // tanh(kTanhIsOne) rounds to 1
  static constexpr double kExpIsZero = -750;
};

template <>
struct Format<float> {
  using Bits = std::uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
  static constexpr int kTerms = 8;
  static constexpr float kShift = 0x1.8p23F;
  static constexpr float kLn2High = 0x1.63p-1F;
  static constexpr float kLn2Low = -0x1.bd0106p-13F;
  static constexpr float kTanhIsOne = 10;
  static constexpr float kExpIsZero = -110;
};

/// 1 / k! for k from 2 to kTerms, at index k - 2.
template <class T>
constexpr auto kFactors = [] {
  std::array<T, Format<T>::kTerms - 1> factors{};
  double factorial = 1;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    factorial *= static_cast<double>(i + 2);
    factors[i] = static_cast<T>(1 / factorial);
  }
  return factors;
}();

template <class T>
[[gnu::always_inline]] inline Lanes<T> sign_of(const Lanes<T>& x) {  // returns a zero with the sign bit of x
  using Bits = typename Format<T>::Bits;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
  return reinterpret_cast<Lanes<T>>(reinterpret_cast<Lanes<Bits>>(x) & kSign);
}

template <class T>
[[gnu::always_inline]] inline Lanes<T> with_sign(const Lanes<T>& x, const Lanes<T>& sign) {
  using Bits = Lanes<typename Format<T>::Bits>;
  return reinterpret_cast<Lanes<T>>(reinterpret_cast<Bits>(x) | reinterpret_cast<Bits>(sign));
}

template <class T>
[[gnu::always_inline]] inline Lanes<T> absolute(const Lanes<T>& x) {
  using Bits = Lanes<typename Format<T>::Bits>;
  return reinterpret_cast<Lanes<T>>(reinterpret_cast<Bits>(x) ^ reinterpret_cast<Bits>(sign_of<T>(x)));
}

/// Returns 2^n for shifted = n + kShift. 2^n must be a normal number.
template <class T>
[[gnu::always_inline]] inline Lanes<T> power_of_two(const Lanes<T>& shifted) {
  using F = Format<T>;
  return reinterpret_cast<Lanes<T>>((reinterpret_cast<Lanes<typename F::Bits>>(shifted) + F::kBias) << F::kMantissa);
}

/// The parts of a number x = n ln 2 + r: n, and `less` = exp(r) - 1.
template <class T>
struct Split {
  Lanes<T> shifted;  // n + kShift
  Lanes<T> n;
  Lanes<T> less;
};

template <class T>
[[gnu::always_inline]] inline Split<T> split(const Lanes<T>& x) {
  using F = Format<T>;
  const Lanes<T> shifted = multiply_add(x, all(static_cast<T>(std::numbers::log2e)), all(F::kShift));
  const Lanes<T> n = shifted - F::kShift;
  const Lanes<T> r = multiply_add(n, all(-F::kLn2Low), multiply_add(n, all(-F::kLn2High), x));
  constexpr auto& factors = kFactors<T>;
  Lanes<T> sum = all(factors.back());
#pragma GCC unroll 16
  for (std::size_t i = 1; i < factors.size(); ++i) {
    sum = multiply_add(sum, r, all(factors[factors.size() - 1 - i]));
  }
  return {shifted, n, multiply_add(r * r, sum, r)};
}

/// Returns exp(x) for x at most 0. Denormal results are rounded twice; NaN stays NaN.
template <class T>
[[gnu::always_inline]] inline Lanes<T> exp_of_negative(const Lanes<T>& x) {
  using F = Format<T>;
  const Split<T> s = split<T>(x < F::kExpIsZero ? all(F::kExpIsZero) : x);
  // 2^n may be too small for a normal number, so the result is multiplied by two factors whose product is 2^n.
  const Lanes<T> half = multiply_add(s.n, all(T(0.5)), all(F::kShift));
  const Lanes<T> rest = s.n - (half - F::kShift) + F::kShift;
  return (T(1) + s.less) * power_of_two<T>(half) * power_of_two<T>(rest);
}

/// Returns tanh(x) = (exp(2x) - 1) / (exp(2x) + 1). The numerator is computed without cancellation: the result keeps
/// the digits of small x (denormals too), -0, and NaN.
template <class T>
[[gnu::always_inline]] inline Lanes<T> tanh_of(const Lanes<T>& x) {
  using F = Format<T>;
  const Lanes<T> size = absolute<T>(x);
  const Split<T> s = split<T>(T(2) * lanes::least(all(T(F::kTanhIsOne)), size));
  const Lanes<T> power = power_of_two<T>(s.shifted);
  const Lanes<T> numerator = multiply_add(power, s.less, power - T(1));
  return with_sign<T>(numerator / (numerator + T(2)), sign_of<T>(x));
}

template <class T>
[[gnu::always_inline]] inline Lanes<T> sigmoid_of(const Lanes<T>& x) {  // exp(-|x|) cannot overflow
  const Lanes<T> e = exp_of_negative<T>(-absolute<T>(x));
  return (x < T(0) ? e : all(T(1))) / (T(1) + e);
}

// The functions of enum Activation. value(x) and slope(x) take a register of numbers (Gelu: one number).

struct GeluTanh {
  static constexpr double kCubic = 0.044715;
  static constexpr double kScale = 0.7978845608028654;  // sqrt(2 / pi)
  template <class T>
  [[gnu::always_inline]] static Lanes<T> inner(const Lanes<T>& x) {
    return T(kScale) * multiply_add(T(kCubic) * x * x, x, x);
  }
  template <class T>
  [[gnu::always_inline]] static Lanes<T> value(const Lanes<T>& x) {
    return x / T(2) * (T(1) + tanh_of<T>(inner<T>(x)));
  }
  template <class T>
  [[gnu::always_inline]] static Lanes<T> slope(const Lanes<T>& x) {
    const Lanes<T> t = tanh_of<T>(inner<T>(x));
    const Lanes<T> sech2 = (T(1) - t) * (T(1) + t);
    const Lanes<T> inner_slope = T(kScale) * multiply_add(T(3 * kCubic) * x, x, all(T(1)));
    const Lanes<T> second = x / T(2) * sech2 * inner_slope;
    return (T(1) + t) / T(2) + (sech2 == T(0) ? all(T(0)) : second);  // avoids 0 * inf if inner_slope is infinite
  }
};

struct Silu {
  template <class T>
  [[gnu::always_inline]] static Lanes<T> value(const Lanes<T>& x) {
    return x * sigmoid_of<T>(x);
  }
  template <class T>
  [[gnu::always_inline]] static Lanes<T> slope(const Lanes<T>& x) {
    return sigmoid_of<T>(x) * multiply_add(x, sigmoid_of<T>(-x), all(T(1)));
  }
};

struct Tanh {
  template <class T>
  [[gnu::always_inline]] static Lanes<T> value(const Lanes<T>& x) {
    return tanh_of<T>(x);
  }
  template <class T>
  [[gnu::always_inline]] static Lanes<T> slope(const Lanes<T>& x) {
    const Lanes<T> y = tanh_of<T>(x);
    return (T(1) - y) * (T(1) + y);
  }
};

struct Sigmoid {
  template <class T>
  [[gnu::always_inline]] static Lanes<T> value(const Lanes<T>& x) {
    return sigmoid_of<T>(x);
  }
  template <class T>
  [[gnu::always_inline]] static Lanes<T> slope(const Lanes<T>& x) {
    return sigmoid_of<T>(x) * sigmoid_of<T>(-x);
  }
};

struct Relu {
  template <class T>
  [[gnu::always_inline]] static Lanes<T> value(const Lanes<T>& x) {
    return x <= T(0) ? all(T(0)) : x;  // NaN stays NaN
  }
  template <class T>
  [[gnu::always_inline]] static Lanes<T> slope(const Lanes<T>& x) {
    return x > T(0) ? all(T(1)) : (x <= T(0) ? all(T(0)) : x);
  }
};

/// gelu, computed one number at a time with erfc, which is precise for large negative numbers, too.
struct Gelu {
  template <class T>
  static T normal_distribution(T x) {
    return T(0.5) * std::erfc(-x / T(std::numbers::sqrt2));
  }
  template <class T>
  [[gnu::noinline]] static T value(T x) {
    return x * normal_distribution(x);
  }
  template <class T>
  [[gnu::noinline]] static T slope(T x) {
    const T density = std::exp(-x * x / 2) / T(std::sqrt(2 * std::numbers::pi));
    return normal_distribution(x) + x * density;
  }
};

/// Applies f to `registers` full registers, four at a time, so that the processor can overlap the operations of four
/// registers. Every number gets the same instructions, and so the same bits. For this, f must have no product and sum
/// that a compiler may fuse, and only this function may apply f.
template <class T, class F>
[[gnu::noinline]] void map_registers(F f, const T* from, std::int64_t registers, T* to) {
  constexpr int kTogether = 4;
  std::int64_t i = 0;
  for (; i + kTogether <= registers; i += kTogether) {
    Lanes<T> values[kTogether];
#pragma GCC unroll 8
    for (int k = 0; k < kTogether; ++k) {
      values[k] = f(lanes::load(from + (i + k) * lanes::kCount<T>));
    }
#pragma GCC unroll 8
    for (int k = 0; k < kTogether; ++k) {
      lanes::store<T>(values[k], to + (i + k) * lanes::kCount<T>);
    }
  }
  for (; i < registers; ++i) {
    lanes::store<T>(f(lanes::load(from + i * lanes::kCount<T>)), to + i * lanes::kCount<T>);
  }
}

/// Applies f to any number of elements: the last register is padded with zeros.
template <class T, class F>
void map(F f, const T* from, std::int64_t count, T* to) {
  constexpr std::int64_t kCount = lanes::kCount<T>;
  const std::int64_t full = count / kCount;
  map_registers(f, from, full, to);
  if (const std::int64_t rest = count - full * kCount; rest > 0) {
    T last[kCount] = {};
    std::copy_n(from + full * kCount, rest, last);
    map_registers(f, last, 1, last);
    std::copy_n(last, rest, to + full * kCount);
  }
}

/// Calls f(Function{}) for a kind that is computed in registers.
template <class F>
void with_function(Activation kind, F&& f) {
  switch (kind) {
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
    case Activation::gelu:
    case Activation::identity:
      return;
  }
}

template <class T>
void map_values(Activation kind, const T* from, std::int64_t count, T* to) {
  if (kind == Activation::gelu) {
    std::transform(from, from + count, to, [](T x) { return Gelu::value(x); });
  } else if (kind == Activation::identity) {
    if (to != from) {
      std::copy_n(from, count, to);
    }
  } else {
    with_function(kind, [=]<class Function>(Function) {
      map([](const Lanes<T>& x) { return Function::template value<T>(x); }, from, count, to);
    });
  }
}

template <class T>
void map_slopes(Activation kind, const T* from, std::int64_t count, T* to) {
  if (kind == Activation::gelu) {
    std::transform(from, from + count, to, [](T x) { return Gelu::slope(x); });
  } else if (kind == Activation::identity) {
    std::fill_n(to, count, T(1));
  } else {
    with_function(kind, [=]<class Function>(Function) {
      map([](const Lanes<T>& x) { return Function::template slope<T>(x); }, from, count, to);
    });
  }
}

constexpr std::int64_t kPiece = 512;  // number of elements that are converted or multiplied at a time, on the stack

}  // namespace

namespace activations {

void values(Activation kind, const float* from, std::int64_t count, float* to) {
  map_values(kind, from, count, to);
}
void values(Activation kind, const double* from, std::int64_t count, double* to) {
  map_values(kind, from, count, to);
}
void slopes(Activation kind, const float* from, std::int64_t count, float* to) {
  map_slopes(kind, from, count, to);
}
void slopes(Activation kind, const double* from, std::int64_t count, double* to) {
  map_slopes(kind, from, count, to);
}

}  // namespace activations

namespace backend {

void activation_forward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "activation_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    parallel_ranges(context, x.numel(), activations::kGrain, [=](std::int64_t begin, std::int64_t end) {
      if constexpr (std::is_same_v<T, Value<T>>) {
        activations::values(kind, px + begin, end - begin, py + begin);
      } else {
        Value<T> piece[kPiece];
        for (std::int64_t first = begin; first < end; first += kPiece) {
          const std::int64_t count = std::min(kPiece, end - first);
          std::transform(px + first, px + first + count, piece, [](T from) { return value_of(from); });
          activations::values(kind, piece, count, piece);
          store_values<T>(piece, count, py + first);
        }
      }
    });
  });
}

void activation_backward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  visit_element(x.dtype, "activation_backward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    parallel_ranges(context, x.numel(), activations::kGrain, [=](std::int64_t begin, std::int64_t end) {
      Value<T> piece[kPiece];
      for (std::int64_t first = begin; first < end; first += kPiece) {
        const std::int64_t count = std::min(kPiece, end - first);
        std::transform(px + first, px + first + count, piece, [](T from) { return value_of(from); });
        activations::slopes(kind, piece, count, piece);
        for (std::int64_t i = 0; i < count; ++i) {
          pdx[first + i] = T(value_of(pdy[first + i]) * piece[i]);
        }
      }
    });
  });
}

}  // namespace backend
}  // namespace lockstep::ops
