#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <lockstep/kernels/cpu/element.hpp>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/// The mask of a ReLU, with one bit per element (batch_norm.hpp). The forward pass computes the mask from the output;
/// the backward pass zeroes gradients by the mask.
namespace lockstep::ops::batch_norm {

#if defined(__AVX2__)
[[gnu::always_inline]] inline __m256 load_8(const float* from) {
  return _mm256_loadu_ps(from);
}
[[gnu::always_inline]] inline __m256 load_8(const BFloat16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
#endif

/// Writes a bit for each element, 1 if y > 0: eight elements per byte. The last byte is padded with zeros.
template <class T>
void pack_positive(const T* y, std::int64_t count, std::uint8_t* mask) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  if constexpr (std::is_same_v<Value<T>, float>) {
    for (; i + 32 <= count; i += 32) {
      std::uint32_t bits = 0;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const __m256 positive = _mm256_cmp_ps(load_8(y + i + 8 * k), _mm256_setzero_ps(), _CMP_GT_OQ);
        bits |= static_cast<std::uint32_t>(_mm256_movemask_ps(positive)) << 8 * k;
      }
      std::memcpy(mask + i / 8, &bits, sizeof bits);
    }
  }
#endif
  for (; i < count; i += 8) {
    unsigned bits = 0;
    for (std::int64_t k = 0; k < std::min(count - i, std::int64_t{8}); ++k) {
      bits |= static_cast<unsigned>(value_of(y[i + k]) > 0) << k;
    }
    mask[i / 8] = static_cast<std::uint8_t>(bits);
  }
}

/// Sets out = (dy [+ dy2]) for elements whose mask bit is 1, otherwise 0. out may be dy or dy2.
template <bool kSecond, class T>
void masked(const T* dy, const T* dy2, const std::uint8_t* mask, std::int64_t count, Value<T>* out) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  if constexpr (std::is_same_v<Value<T>, float>) {
    const __m256i byte = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (; i + 32 <= count; i += 32) {
      std::int32_t word = 0;
      std::memcpy(&word, mask + i / 8, sizeof word);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const __m256i select = _mm256_slli_epi32(byte, 8 * k);
        const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(word), select);
        __m256 g = load_8(dy + i + 8 * k);
        if constexpr (kSecond) {
          g = _mm256_add_ps(g, load_8(dy2 + i + 8 * k));
        }
        _mm256_storeu_ps(out + i + 8 * k, _mm256_and_ps(g, _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, select))));
      }
    }
  }
#endif
  for (; i < count; ++i) {
    const Value<T> g = kSecond ? value_of(dy[i]) + value_of(dy2[i]) : value_of(dy[i]);
    out[i] = (mask[i >> 3] >> (i & 7) & 1) != 0 ? g : 0;
  }
}

template <class T>
struct Gradient {
  const T* dy;
  const T* dy2;
  const std::uint8_t* mask;

  [[nodiscard]] bool plain() const { return dy2 == nullptr && mask == nullptr; }
  /// Writes the gradient g = (dy [+ dy2]) masked for the elements [at, at + count) to `out`. `at` must be a multiple of
  /// 8.
  void read(std::int64_t at, std::int64_t count, Value<T>* out) const {
    if (mask == nullptr) {
      if (dy2 == nullptr) {
        if constexpr (std::is_same_v<T, Value<T>>) {
          std::copy_n(dy + at, count, out);
        } else {
          std::transform(dy + at, dy + at + count, out, value_of<T>);
        }
      } else {
#pragma omp simd
        for (std::int64_t i = 0; i < count; ++i) {
          out[i] = value_of(dy[at + i]) + value_of(dy2[at + i]);
        }
      }
    } else if (dy2 == nullptr) {
      masked<false>(dy + at, dy, mask + at / 8, count, out);
    } else {
      masked<true>(dy + at, dy2 + at, mask + at / 8, count, out);
    }
  }
};

}  // namespace lockstep::ops::batch_norm
