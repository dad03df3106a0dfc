#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

/// A vector register of numbers, for loops whose speed depends on vector registers and that compilers do not vectorise.
/// Lanes uses the vector types of gcc and clang, so it works on every processor. Every lane does the same operations in
/// the same order: the result for a number does not depend on its lane. If a loop pads its last register, instead of
/// finishing with single numbers, the bits do not depend on the number of elements either.
namespace lockstep::ops::lanes {

#if defined(__AVX512F__)
inline constexpr std::size_t kBytes = 64;
#elif defined(__AVX2__)
inline constexpr std::size_t kBytes = 32;
#else
inline constexpr std::size_t kBytes = 16;
#endif

template <class T>
inline constexpr std::int64_t kCount = static_cast<std::int64_t>(kBytes / sizeof(T));

namespace detail {

template <class T>
struct Type {
  typedef T type __attribute__((vector_size(kBytes)));  // NOLINT(modernize-use-using): gcc drops it from an alias
};

}  // namespace detail

/// A register of kCount<T> numbers. T is float, double or an unsigned integer.
template <class T>
using Lanes = typename detail::Type<T>::type;

template <class T>
[[nodiscard, gnu::always_inline]] inline Lanes<T> load(const T* from) {
  Lanes<T> lanes;
  std::memcpy(&lanes, from, kBytes);
  return lanes;
}

template <class T>
[[gnu::always_inline]] inline void store(const Lanes<T>& lanes, T* to) {
  std::memcpy(to, &lanes, kBytes);
}

/// Returns a register that holds `value` in all lanes.
template <class T>
[[nodiscard, gnu::always_inline]] inline Lanes<T> all(T value) {
  return value - Lanes<T>{};  // value - 0 keeps -0; value + 0 would turn -0 into 0
}

/// Returns a * b + c, rounded once on processors with fused multiply-add. The float and double versions call the
/// intrinsic, because gcc does not fuse every chain of sums on some processors, whatever -ffp-contract says.
[[nodiscard, gnu::always_inline]] inline Lanes<float> multiply_add(const Lanes<float>& a, const Lanes<float>& b,
                                                                   const Lanes<float>& c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
[[nodiscard, gnu::always_inline]] inline Lanes<double> multiply_add(const Lanes<double>& a, const Lanes<double>& b,
                                                                    const Lanes<double>& c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

/// Returns in each lane the smaller of a and b, or b if a or b is NaN.
[[nodiscard, gnu::always_inline]] inline Lanes<float> least(const Lanes<float>& a, const Lanes<float>& b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xFFFF, a, b);  // gcc 12 warns about _mm512_min_ps
#else
  return a < b ? a : b;
#endif
}
[[nodiscard, gnu::always_inline]] inline Lanes<double> least(const Lanes<double>& a, const Lanes<double>& b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_pd(0xFF, a, b);
#else
  return a < b ? a : b;
#endif
}

namespace detail {

/// One step of a transposition, for two rows a and b that are `half` rows apart. In every group of 2 * half lanes,
/// exchanges the second half of a with the first half of b.
template <int half, class T, int... lane>
[[gnu::always_inline]] inline void exchange(Lanes<T>& a, Lanes<T>& b, std::integer_sequence<int, lane...> /*lanes*/) {
  constexpr int kLanes = static_cast<int>(kCount<T>);
  const Lanes<T> first = __builtin_shufflevector(a, b, ((lane & half) == 0 ? lane : kLanes + lane - half)...);
  b = __builtin_shufflevector(a, b, ((lane & half) == 0 ? lane + half : kLanes + lane)...);
  a = first;
}

template <int half, class T>
[[gnu::always_inline]] inline void turn(Lanes<T>* rows) {
  if constexpr (half > 0) {
#pragma GCC unroll 16
    for (int row = 0; row < static_cast<int>(kCount<T>); ++row) {
      if ((row & half) == 0) {
        exchange<half, T>(rows[row], rows[row + half], std::make_integer_sequence<int, static_cast<int>(kCount<T>)>());
      }
    }
    turn<half / 2, T>(rows);
  }
}

}  // namespace detail

/// Transposes a square matrix with kCount<T> rows: lane j of row i becomes lane i of row j.
template <class T>
[[gnu::always_inline]] inline void transpose(Lanes<T>* rows) {
  detail::turn<static_cast<int>(kCount<T> / 2), T>(rows);
}

}  // namespace lockstep::ops::lanes
