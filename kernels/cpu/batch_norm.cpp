#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/parallel.hpp>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Every pass walks the tensor as one contiguous range over which the channels repeat with a period: one row of C
// channels, or several rows where C is small or not a multiple of 8. Work is done in pieces: up to four periods at a
// time and at most kBlock elements of each, so that what a piece needs stays in the first-level cache and the inner
// loops are long and vectorise whatever C is. A piece starts at a multiple of 8 elements, a byte of the mask.
// Loops marked `omp simd` may write in place: element i depends on element i only.
// T: elements of the tensor; V, Value<T>: of statistics, coefficients and sums.

namespace lockstep::ops::backend {
namespace {

using std::int64_t;

constexpr int64_t kPeriod = 128;      // elements of a period, at least
constexpr int64_t kSumPeriod = 32;    // the same where sums are taken, and a multiple of this
constexpr int64_t kGroup = 2048;      // elements, about, whose sums stay in registers before they join one in memory
constexpr int64_t kBlock = 512;       // elements of one period in a piece
constexpr int64_t kMaxLocal = 2048;   // elements of a table on the stack
constexpr int64_t kTile = 4096;       // elements, at least, that a thread takes at a time
constexpr int64_t kMinChunk = 16384;  // elements; a chunk is summed in the type of values, chunks are joined in double
constexpr int64_t kMinChunkRows = 32;
constexpr int64_t kMaxChunkRows = 256;  // unless kMinChunk asks for more
constexpr int64_t kGrain = 16384;       // elements that are worth a thread
constexpr std::size_t kAlignment = 64;

/// Depends on the shape only.
struct Layout {
  int64_t channels;
  int64_t rows_per_sample = 1;
  int64_t rows;
  int64_t fold = 1;  // rows in a period
  int64_t period;    // elements, a multiple of 8 (of 32 for sums)
  int64_t tile;      // elements, a multiple of four periods
  int64_t chunk;     // elements, a multiple of the period
  int64_t chunks;

  enum class Pass : bool { elementwise, sums };
  explicit Layout(const Shape& shape, Pass pass = Pass::sums) : channels(shape.back()) {
    for (int axis = 1; axis + 1 < shape.rank(); ++axis) {
      rows_per_sample *= shape[axis];
    }
    rows = shape[0] * rows_per_sample;
    const int64_t least = pass == Pass::sums ? kSumPeriod : kPeriod;
    const int64_t unit = pass == Pass::sums ? kSumPeriod : 8;
    while (fold * channels < least || fold * channels % unit != 0) {
      fold *= 2;
    }
    period = fold * channels;
    tile = align_up(kTile, 4 * period);
    const int64_t chunk_rows = std::max(std::clamp(rows / 64, kMinChunkRows, kMaxChunkRows), kMinChunk / channels);
    chunk = align_up(chunk_rows, fold) * channels;
    chunks = (rows * channels + chunk - 1) / chunk;
  }

  [[nodiscard]] int64_t numel() const { return rows * channels; }
  [[nodiscard]] int64_t tiles() const { return (numel() + tile - 1) / tile; }
  [[nodiscard]] int64_t tile_grain() const { return std::max(int64_t{1}, kGrain / tile); }
  [[nodiscard]] int64_t chunk_grain() const { return std::max(int64_t{1}, kGrain / chunk); }
  [[nodiscard]] std::size_t joined_bytes() const { return static_cast<std::size_t>(channels) * 2 * sizeof(double); }
  /// A slot of the workspace: (2, C) doubles for one chunk, then (3, period) values of scratch. A thread uses the
  /// scratch of its first chunk for all of them.
  [[nodiscard]] std::size_t slot_bytes(std::size_t value) const {
    const std::size_t bytes = joined_bytes() + static_cast<std::size_t>(period) * 3 * value;
    return align_up(bytes, kAlignment);
  }
};

struct Slots {
  std::byte* base;
  std::size_t joined_bytes;
  std::size_t slot_bytes;

  Slots(const Layout& layout, const TensorView& workspace, std::size_t value)
      : base(static_cast<std::byte*>(workspace.data)),
        joined_bytes(layout.joined_bytes()),
        slot_bytes(layout.slot_bytes(value)) {}
  [[nodiscard]] double* joined(int64_t chunk) const {
    return reinterpret_cast<double*>(base + static_cast<std::size_t>(chunk) * slot_bytes);
  }
  template <class T>
  [[nodiscard]] T* scratch(int64_t chunk) const {
    return reinterpret_cast<T*>(base + static_cast<std::size_t>(chunk) * slot_bytes + joined_bytes);
  }
};

/// Rows of the valid samples.
int64_t valid_rows(std::string_view op, const Layout& layout, const TensorView& x, const TensorView& valid) {
  if (!valid.given()) {
    return layout.rows;
  }
  const int64_t samples = *valid.as<int64_t>();
  require<ShapeError>(samples >= 0 && samples <= x.shape[0], op, ": valid is ", samples, ", expected 0 to ",
                      x.shape[0]);
  return samples * layout.rows_per_sample;
}

/// Calls f(periods, offset, phase, length) for the pieces of [begin, end): `periods` (a compile-time 4 or 1) runs of
/// `length` elements that are a period apart. begin is a multiple of the period, offset starts at phase in its period.
template <class F>
void for_pieces(int64_t begin, int64_t end, int64_t period, F&& f) {
  const int64_t fours = begin + (end - begin) / (4 * period) * (4 * period);
  for (int64_t phase = 0; phase < period; phase += kBlock) {
    const int64_t length = std::min(kBlock, period - phase);
    for (int64_t at = begin + phase; at < fours; at += 4 * period) {
      f(std::integral_constant<int, 4>{}, at, phase, length);
    }
    for (int64_t at = fours + phase; at < end; at += period) {
      f(std::integral_constant<int, 1>{}, at, phase, std::min(length, end - at));
    }
  }
}

/// Adds up the values of each channel that a period holds.
template <class T>
void fold_period(const T* values, const Layout& layout, double* sums) {
  std::fill_n(sums, layout.channels, 0.0);
  for (int64_t i = 0; i < layout.period; i += layout.channels) {
#pragma omp simd
    for (int64_t c = 0; c < layout.channels; ++c) {
      sums[c] += static_cast<double>(values[i + c]);
    }
  }
}

template <class T>
void repeat(const T* values, int64_t channels, int64_t phase, int64_t length, T* out) {
  int64_t c = phase % channels;
  for (int64_t i = 0; i < length; c = 0) {
    const int64_t run = std::min(channels - c, length - i);
    std::copy_n(values + c, run, out + i);
    i += run;
  }
}

/// C values read as if they were repeated over a period.
template <class T>
class RepeatedRow {
 public:
  RepeatedRow(const T* values, const Layout& layout) : values_(values), layout_(layout) {
    if (layout.fold > 1 && layout.period <= kMaxLocal) {
      repeat(values, layout.channels, 0, layout.period, local_);
    }
  }
  /// Valid until the next call.
  const T* from(int64_t phase, int64_t length) {
    if (layout_.fold == 1) {
      return values_ + phase;
    }
    if (layout_.period <= kMaxLocal) {
      return local_ + phase;
    }
    repeat(values_, layout_.channels, phase, length, local_);
    return local_;
  }

 private:
  const T* values_;
  const Layout& layout_;
  alignas(64) T local_[kMaxLocal];
};

// ---- the ReLU mask -------------------------------------------------------------------------------------------------

#if defined(__AVX2__)
[[gnu::always_inline]] inline __m256 load_8(const float* from) {
  return _mm256_loadu_ps(from);
}
[[gnu::always_inline]] inline __m256 load_8(const BFloat16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
#endif

/// The bits of y > 0, eight elements a byte; the last byte is filled up with zeros.
template <class T>
void pack_positive(const T* y, int64_t count, std::uint8_t* mask) {
  int64_t i = 0;
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
    for (int64_t k = 0; k < std::min(count - i, int64_t{8}); ++k) {
      bits |= static_cast<unsigned>(value_of(y[i + k]) > 0) << k;
    }
    mask[i / 8] = static_cast<std::uint8_t>(bits);
  }
}

/// out = (dy [+ dy2]) where the mask says so, else 0. out may be dy or dy2.
template <bool kSecond, class T>
void masked(const T* dy, const T* dy2, const std::uint8_t* mask, int64_t count, Value<T>* out) {
  int64_t i = 0;
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
  /// The gradient at the output of the affine step for [at, at + count), at a multiple of 8.
  void read(int64_t at, int64_t count, Value<T>* out) const {
    if (mask == nullptr) {
      if (dy2 == nullptr) {
        if constexpr (std::is_same_v<T, Value<T>>) {
          std::copy_n(dy + at, count, out);
        } else {
          std::transform(dy + at, dy + at + count, out, value_of<T>);
        }
      } else {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
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

// ---- statistics ----------------------------------------------------------------------------------------------------

/// Channels whose sums are kept in registers together: 128 bytes.
template <class T>
inline constexpr int64_t kLanes = 128 / sizeof(Value<T>);

/// Calls f(offset, phase, periods) for groups of up to 64 of the whole periods in [0, count): kLanes elements from
/// `phase` of each period are to be added up. Returns where the last, partial period begins.
template <class T, class F>
int64_t for_lanes(int64_t count, int64_t period, F&& f) {
  const int64_t periods = count / period;
  const int64_t group = std::clamp(kGroup / period, int64_t{8}, int64_t{64});
  for (int64_t first = 0; first < periods; first += group) {
    for (int64_t phase = 0; phase < period; phase += kLanes<T>) {
      f(first * period + phase, phase, std::min(group, periods - first));
    }
  }
  return periods * period;
}

/// The elements after these kLanes are read next in this row: hardware does not see it coming.
template <class T>
void prefetch_next(const T* lanes) {
  __builtin_prefetch(lanes + kLanes<T>);
  if constexpr (kLanes<T> * sizeof(T) > 64) {
    __builtin_prefetch(lanes + kLanes<T> + kLanes<T> / 2);
  }
}

/// 32 bytes that + - * work on element by element (an extension of gcc and clang). Arrays of these stay in registers,
/// arrays of T do not.
template <class V>
struct VectorOf {
  using Type [[gnu::vector_size(32)]] = V;
};
template <class T>
using Vector = typename VectorOf<Value<T>>::Type;

template <class T>
void load(const T* from, Vector<T>& to) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    using Halves [[gnu::vector_size(16)]] = std::uint16_t;
    using Words [[gnu::vector_size(32)]] = std::uint32_t;
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
    const Words words = __builtin_convertvector(bits, Words) << 16;
    std::memcpy(&to, &words, sizeof to);
  } else {
    std::memcpy(&to, from, sizeof to);
  }
}

template <class V>
void add_to(V* sums, const Vector<V>& values) {
  Vector<V> v;
  load(sums, v);
  v += values;
  std::memcpy(sums, &v, sizeof v);
}

constexpr int kVectors = 4;  // in kLanes

/// sum += x - shift, square += (x - shift)^2 in kLanes channels, over pieces a period apart.
template <class T>
void add_deviations(const T* x, int64_t period, int64_t periods, const Value<T>* shift, Value<T>* sum,
                    Value<T>* square) {
  constexpr int64_t kN = kLanes<T> / kVectors;
  Vector<T> m[kVectors];
  Vector<T> s[kVectors] = {};
  Vector<T> q[kVectors] = {};
  for (int k = 0; k < kVectors; ++k) {
    load(shift + k * kN, m[k]);
  }
  for (int64_t r = 0; r < periods; ++r, x += period) {
    prefetch_next(x);
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      Vector<T> d;
      load(x + k * kN, d);
      d -= m[k];
      s[k] += d;
      q[k] += d * d;
    }
  }
  for (int k = 0; k < kVectors; ++k) {
    add_to(sum + k * kN, s[k]);
    add_to(square + k * kN, q[k]);
  }
}

/// Mean and M2 of one chunk in one pass over deviations from a shift, the mean of the first sixteenth of its rows. The
/// shift loses few bits whatever the data: k of n values that differ from the mean m by d on average give a variance of
/// at least d^2 k / n, so that sum (x - shift)^2 <= M2 (1 + n / k).
template <class T>
void chunk_stats(const Layout& layout, const T* x, int64_t count, Value<T>* scratch, double* joined) {
  using V = Value<T>;
  const int64_t rows = count / layout.channels;
  const int64_t sample = std::min(rows, align_up(std::max(rows / 16, int64_t{8}), layout.fold));
  V* sum = scratch;
  V* square = sum + layout.period;
  V* shift = square + layout.period;
  std::fill_n(sum, 2 * layout.period, V(0));
  for (int64_t at = 0; at < sample * layout.channels; at += layout.period) {
    const int64_t length = std::min(layout.period, sample * layout.channels - at);
#pragma omp simd
    for (int64_t i = 0; i < length; ++i) {
      sum[i] += value_of(x[at + i]);
    }
  }
  double* mean = joined;
  double* m2 = joined + layout.channels;
  fold_period(sum, layout, mean);
  for (int64_t c = 0; c < layout.channels; ++c) {
    shift[c] = static_cast<V>(mean[c] / static_cast<double>(sample));
  }
  for (int64_t i = layout.channels; i < layout.period; i += layout.channels) {
    std::copy_n(shift, layout.channels, shift + i);
  }
  std::fill_n(sum, layout.period, V(0));
  const int64_t rest = for_lanes<T>(count, layout.period, [&](int64_t at, int64_t phase, int64_t periods) {
    add_deviations(x + at, layout.period, periods, shift + phase, sum + phase, square + phase);
  });
  for (int64_t i = 0; i < count - rest; ++i) {
    const V d = value_of(x[rest + i]) - shift[i];
    sum[i] += d;
    square[i] += d * d;
  }
  fold_period(sum, layout, mean);
  fold_period(square, layout, m2);
  const double inv_rows = 1 / static_cast<double>(rows);
#pragma omp simd
  for (int64_t c = 0; c < layout.channels; ++c) {
    const double offset = mean[c] * inv_rows;
    const double corrected = m2[c] - mean[c] * offset;
    m2[c] = corrected < 0 ? 0 : corrected;
    mean[c] = static_cast<double>(shift[c]) + offset;
  }
}

template <class T>
void stats_of(CpuContext& context, const Layout& layout, const T* x, int64_t rows, Value<T>* stats,
              const Slots& slots) {
  using V = Value<T>;
  const int64_t channels = layout.channels;
  const int64_t count = rows * channels;
  stats[2 * channels] = static_cast<V>(rows);
  if (rows == 0) {
    std::fill_n(stats, 2 * channels, V(0));
    return;
  }
  const int64_t chunks = (count + layout.chunk - 1) / layout.chunk;
  parallel_ranges(context, chunks, layout.chunk_grain(), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * layout.chunk;
      chunk_stats(layout, x + begin, std::min(layout.chunk, count - begin), slots.scratch<V>(first), slots.joined(i));
    }
  });
  parallel_ranges(context, channels, std::max(int64_t{1}, kGrain / chunks), [&](int64_t first, int64_t last) {
    double* mean = slots.joined(0);
    double* m2 = mean + channels;
    const auto rows_of = [&](int64_t chunk) {
      const int64_t whole = std::min(layout.chunk, count - chunk * layout.chunk) / channels;
      return static_cast<double>(whole);
    };
    double joined_rows = rows_of(0);
    for (int64_t i = 1; i < chunks; ++i) {
      const double* chunk_mean = slots.joined(i);
      const double* chunk_m2 = chunk_mean + channels;
      const double chunk_rows = rows_of(i);
      const double share = chunk_rows / (joined_rows + chunk_rows);
      const double cross = joined_rows * share;
#pragma omp simd
      for (int64_t c = first; c < last; ++c) {
        const double delta = chunk_mean[c] - mean[c];
        mean[c] += delta * share;
        m2[c] += chunk_m2[c] + delta * delta * cross;
      }
      joined_rows += chunk_rows;
    }
    for (int64_t c = first; c < last; ++c) {
      stats[c] = static_cast<V>(mean[c]);
      stats[channels + c] = static_cast<V>(m2[c]);
    }
  });
}

// ---- coefficients --------------------------------------------------------------------------------------------------

/// shift is computed with the rounded scale, so that y = bias at x = mean up to one rounding.
template <class T>
void write_coefficients(double mean, double var, double epsilon, const T* weight, const T* bias, int64_t channels,
                        int64_t c, T* coefficients) {
  const double inv_std = 1 / std::sqrt(var + epsilon);
  const T scale = static_cast<T>(static_cast<double>(weight[c]) * inv_std);
  coefficients[c] = scale;
  coefficients[channels + c] = static_cast<T>(static_cast<double>(bias[c]) - mean * static_cast<double>(scale));
  coefficients[2 * channels + c] = static_cast<T>(mean);
  coefficients[3 * channels + c] = static_cast<T>(inv_std);
}

// ---- apply ---------------------------------------------------------------------------------------------------------

template <int kRows, bool kResidual, bool kRelu, class T>
void apply_rows(const T* x, const T* residual, int64_t period, const Value<T>* scale, const Value<T>* shift, T* y,
                int64_t length) {
#pragma omp simd
  for (int64_t i = 0; i < length; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Value<T> v = value_of(x[r * period + i]) * scale[i] + shift[i];
      if constexpr (kResidual) {
        v += value_of(residual[r * period + i]);
      }
      if constexpr (kRelu) {
        v = v <= 0 ? 0 : v;  // NaN stays NaN
      }
      store(v, y[r * period + i]);
    }
  }
}

template <bool kResidual, bool kRelu, class T>
void apply(CpuContext& context, const Layout& layout, const T* x, const Value<T>* coefficients, const T* residual, T* y,
           std::uint8_t* mask) {
  const int64_t numel = layout.numel();
  const int64_t period = layout.period;
  parallel_ranges(context, layout.tiles(), layout.tile_grain(), [&](int64_t first, int64_t last) {
    RepeatedRow<Value<T>> scale(coefficients, layout);
    RepeatedRow<Value<T>> shift(coefficients + layout.channels, layout);
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * layout.tile;
      for_pieces(
          begin, std::min(numel, begin + layout.tile), period, [&](auto n, int64_t at, int64_t phase, int64_t length) {
            apply_rows<n(), kResidual, kRelu>(x + at, kResidual ? residual + at : nullptr, period,
                                              scale.from(phase, length), shift.from(phase, length), y + at, length);
            if (mask != nullptr) {
              for (int r = 0; r < n(); ++r) {
                pack_positive(y + at + r * period, length, mask + (at + r * period) / 8);
              }
            }
          });
    }
  });
  if (mask != nullptr) {
    const auto bytes = static_cast<int64_t>(relu_mask_bytes(numel));
    std::fill(mask + (numel + 7) / 8, mask + bytes, std::uint8_t{0});
  }
}

// ---- backward ------------------------------------------------------------------------------------------------------

/// sum += g, product += g * (x - mean) in kLanes channels, over pieces a period apart; g is the incoming gradient of
/// the elements from `at`, a multiple of 32, in f64 of 16.
template <bool kSecond, bool kMask, class T>
void add_products(const Gradient<T>& in, const T* x, int64_t at, int64_t period, int64_t periods, const Value<T>* mean,
                  Value<T>* sum, Value<T>* product) {
  constexpr int64_t kN = kLanes<T> / kVectors;
  Vector<T> m[kVectors];
  Vector<T> s[kVectors] = {};
  Vector<T> p[kVectors] = {};
  for (int k = 0; k < kVectors; ++k) {
    load(mean + k * kN, m[k]);
  }
  alignas(64) Value<T> buffer[kLanes<T>];
  for (int64_t r = 0; r < periods; ++r, at += period) {
    if constexpr (kMask) {
      masked<kSecond>(in.dy + at, kSecond ? in.dy2 + at : nullptr, in.mask + at / 8, kLanes<T>, buffer);
    }
    prefetch_next(x + at);
    prefetch_next(in.dy + at);
#pragma GCC unroll 4
    for (int k = 0; k < kVectors; ++k) {
      Vector<T> g;
      if constexpr (kMask) {
        load(buffer + k * kN, g);
      } else {
        load(in.dy + at + k * kN, g);
      }
      if constexpr (kSecond && !kMask) {
        Vector<T> second;
        load(in.dy2 + at + k * kN, second);
        g += second;
      }
      Vector<T> d;
      load(x + at + k * kN, d);
      s[k] += g;
      p[k] += g * (d - m[k]);
    }
  }
  for (int k = 0; k < kVectors; ++k) {
    add_to(sum + k * kN, s[k]);
    add_to(product + k * kN, p[k]);
  }
}

template <bool kSecond, bool kMask, class T>
void chunk_products(const Layout& layout, const Gradient<T>& in, const T* x, int64_t begin, int64_t end,
                    const Value<T>* inv_std, const Value<T>* mean, Value<T>* sum, Value<T>* product, double* joined) {
  std::fill_n(sum, layout.period, Value<T>(0));
  std::fill_n(product, layout.period, Value<T>(0));
  const int64_t rest =
      begin + for_lanes<T>(end - begin, layout.period, [&](int64_t at, int64_t phase, int64_t periods) {
        add_products<kSecond, kMask>(in, x, begin + at, layout.period, periods, mean + phase, sum + phase,
                                     product + phase);
      });
  Value<T> buffer[kLanes<T>];
  for (int64_t at = rest; at < end; at += kLanes<T>) {
    const int64_t length = std::min(kLanes<T>, end - at);
    in.read(at, length, buffer);
    for (int64_t i = 0; i < length; ++i) {
      sum[at - rest + i] += buffer[i];
      product[at - rest + i] += buffer[i] * (value_of(x[at + i]) - mean[at - rest + i]);
    }
  }
  fold_period(sum, layout, joined);
  fold_period(product, layout, joined + layout.channels);
  for (int64_t c = 0; c < layout.channels; ++c) {
    joined[layout.channels + c] *= static_cast<double>(inv_std[c]);
  }
}

template <bool kSecond, bool kMask, class T>
void backward_sums(CpuContext& context, const Layout& layout, const Gradient<T>& in, const T* x,
                   const Value<T>* coefficients, int64_t rows, GradMode mode, Value<T>* sums, Value<T>* dweight,
                   Value<T>* dbias, const Slots& slots) {
  using V = Value<T>;
  const int64_t channels = layout.channels;
  const int64_t count = rows * channels;
  const int64_t chunks = (count + layout.chunk - 1) / layout.chunk;
  const V* inv_std = coefficients + 3 * channels;
  parallel_ranges(context, chunks, layout.chunk_grain(), [&](int64_t first, int64_t last) {
    V* sum = slots.scratch<V>(first);
    V* product = sum + layout.period;
    V* mean = product + layout.period;
    repeat(coefficients + 2 * channels, channels, 0, layout.period, mean);
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * layout.chunk;
      chunk_products<kSecond, kMask>(layout, in, x, begin, std::min(count, begin + layout.chunk), inv_std, mean, sum,
                                     product, slots.joined(i));
    }
  });
  const auto give = [mode](V value, V* gradient, int64_t c) {
    if (mode == GradMode::overwrite) {
      gradient[c] = value;
    } else if (mode == GradMode::accumulate) {
      gradient[c] += value;
    }
  };
  if (chunks == 0) {
    std::fill_n(sums, 2 * channels, V(0));
    for (int64_t c = 0; c < channels; ++c) {
      give(V(0), dbias, c);
      give(V(0), dweight, c);
    }
    return;
  }
  parallel_ranges(context, channels, std::max(int64_t{1}, kGrain / chunks), [&](int64_t first, int64_t last) {
    double* sum = slots.joined(0);
    double* product = sum + channels;
    for (int64_t i = 1; i < chunks; ++i) {
      const double* chunk = slots.joined(i);
#pragma omp simd
      for (int64_t c = first; c < last; ++c) {
        sum[c] += chunk[c];
        product[c] += chunk[channels + c];
      }
    }
    for (int64_t c = first; c < last; ++c) {
      sums[c] = static_cast<V>(sum[c]);
      sums[channels + c] = static_cast<V>(product[c]);
      give(sums[c], dbias, c);
      give(sums[channels + c], dweight, c);
    }
  });
}

/// dx = scale * g + (x - mean) * slope + offset, the numbers of each channel read as if repeated over a period.
template <class T>
class BackwardTable {
 public:
  struct Rows {
    const T* scale;
    const T* mean;
    const T* slope;
    const T* offset;
  };
  BackwardTable(const Layout& layout, const T* coefficients, const T* sums, double count)
      : layout_(layout), coefficients_(coefficients), sums_(sums), inv_count_(count > 0 ? 1 / count : 0.0) {
    if (layout.period <= kMaxLocal) {
      fill(0, layout.period);
    }
  }
  /// Valid until the next call.
  Rows from(int64_t phase, int64_t length) {
    if (layout_.period > kMaxLocal) {
      fill(phase, length);
      phase = 0;
    }
    return {scale_ + phase, mean_ + phase, slope_ + phase, offset_ + phase};
  }

 private:
  void fill(int64_t phase, int64_t length) {
    const int64_t channels = layout_.channels;
    int64_t c = phase % channels;
    for (int64_t i = 0; i < length; ++i) {
      scale_[i] = coefficients_[c];
      mean_[i] = coefficients_[2 * channels + c];
      const double step = -static_cast<double>(scale_[i]) * inv_count_;
      const auto inv_std = static_cast<double>(coefficients_[3 * channels + c]);
      slope_[i] = static_cast<T>(step * inv_std * static_cast<double>(sums_[channels + c]));
      offset_[i] = static_cast<T>(step * static_cast<double>(sums_[c]));
      c = c + 1 < channels ? c + 1 : 0;
    }
  }
  const Layout& layout_;
  const T* coefficients_;
  const T* sums_;
  double inv_count_;
  alignas(64) T scale_[kMaxLocal];
  alignas(64) T mean_[kMaxLocal];
  alignas(64) T slope_[kMaxLocal];
  alignas(64) T offset_[kMaxLocal];
};

/// g: rows g_period apart; x and dx: period.
template <int kRows, class G, class T>
void backward_rows(const G* g, int64_t g_period, const T* x, int64_t period,
                   const typename BackwardTable<Value<T>>::Rows& table, T* dx, int64_t length) {
  const Value<T>* scale = table.scale;
  const Value<T>* mean = table.mean;
  const Value<T>* slope = table.slope;
  const Value<T>* offset = table.offset;
#pragma omp simd
  for (int64_t i = 0; i < length; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      store(scale[i] * value_of(g[r * g_period + i]) + ((value_of(x[r * period + i]) - mean[i]) * slope[i] + offset[i]),
            dx[r * period + i]);
    }
  }
}

template <class T>
void backward(CpuContext& context, const Layout& layout, const Gradient<T>& in, const T* x,
              const Value<T>* coefficients, const Value<T>* sums, double count, int64_t rows, T* dx, T* dresidual) {
  const int64_t numel = layout.numel();
  const int64_t valid = rows * layout.channels;
  const int64_t period = layout.period;
  parallel_ranges(context, layout.tiles(), layout.tile_grain(), [&](int64_t first, int64_t last) {
    BackwardTable<Value<T>> table(layout, coefficients, sums, count);
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * layout.tile;
      const int64_t end = std::min(numel, begin + layout.tile);
      const int64_t stop = std::clamp(valid, begin, end);
      for_pieces(begin, stop, period, [&](auto n, int64_t at, int64_t phase, int64_t length) {
        if (dresidual == nullptr && in.plain()) {
          backward_rows<n()>(in.dy + at, period, x + at, period, table.from(phase, length), dx + at, length);
          return;
        }
        if constexpr (std::is_same_v<T, Value<T>>) {
          T* g = (dresidual != nullptr ? dresidual : dx) + at;
          for (int r = 0; r < n(); ++r) {
            in.read(at + r * period, length, g + r * period);
          }
          backward_rows<n()>(g, period, x + at, period, table.from(phase, length), dx + at, length);
        } else {  // elements would round the gradient
          alignas(64) Value<T> g[n() * kBlock];
          for (int r = 0; r < n(); ++r) {
            in.read(at + r * period, length, g + r * kBlock);
            if (dresidual != nullptr) {
              store_values(g + r * kBlock, length, dresidual + at + r * period);
            }
          }
          backward_rows<n()>(g, kBlock, x + at, period, table.from(phase, length), dx + at, length);
        }
      });
      std::fill(dx + stop, dx + end, T(0));
      if (dresidual != nullptr) {
        std::fill(dresidual + stop, dresidual + end, T(0));
      }
    }
  });
}

template <class T>
T* pointer(const TensorView& view) {
  return view.given() ? view.as<T>() : nullptr;
}

}  // namespace

std::size_t batch_norm_workspace_bytes(const CpuContext& /*context*/, const TensorView& x) {
  const Layout layout(x.shape);
  return static_cast<std::size_t>(layout.chunks) * layout.slot_bytes(size_of(accumulation_dtype(x.dtype)));
}

void batch_norm_stats(CpuContext& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
                      const TensorView& workspace) {
  const Layout layout(x.shape);
  const int64_t rows = valid_rows("batch_norm_stats", layout, x, valid);
  visit_element(x.dtype, "batch_norm_stats", [&]<class T>(std::type_identity<T>) {
    stats_of(context, layout, x.as<T>(), rows, stats.as<Value<T>>(), Slots(layout, workspace, sizeof(Value<T>)));
  });
}

void batch_norm_finalize(CpuContext& /*context*/, const TensorView& stats, const TensorView& weight,
                         const TensorView& bias, double epsilon, double momentum, const TensorView& running_mean,
                         const TensorView& running_var, const TensorView& coefficients) {
  visit_compute(stats.dtype, "batch_norm_finalize", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = weight.shape[0];
    const T* values = stats.as<T>();
    const auto count = static_cast<double>(values[2 * channels]);
    const double unbiased = std::max(count - 1, 1.0);
    T* const means = pointer<T>(running_mean);
    T* const vars = pointer<T>(running_var);
    for (int64_t c = 0; c < channels; ++c) {
      const auto mean = static_cast<double>(values[c]);
      const auto m2 = static_cast<double>(values[channels + c]);
      write_coefficients(mean, count > 0 ? m2 / count : 0.0, epsilon, weight.as<T>(), bias.as<T>(), channels, c,
                         coefficients.as<T>());
      if (means != nullptr && count > 0) {
        means[c] = static_cast<T>((1 - momentum) * static_cast<double>(means[c]) + momentum * mean);
        vars[c] = static_cast<T>((1 - momentum) * static_cast<double>(vars[c]) + momentum * (m2 / unbiased));
      }
    }
  });
}

void batch_norm_finalize_inference(CpuContext& /*context*/, const TensorView& running_mean,
                                   const TensorView& running_var, const TensorView& weight, const TensorView& bias,
                                   double epsilon, const TensorView& coefficients) {
  visit_compute(weight.dtype, "batch_norm_finalize_inference", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = weight.shape[0];
    for (int64_t c = 0; c < channels; ++c) {
      write_coefficients(static_cast<double>(running_mean.as<T>()[c]), static_cast<double>(running_var.as<T>()[c]),
                         epsilon, weight.as<T>(), bias.as<T>(), channels, c, coefficients.as<T>());
    }
  });
}

void batch_norm_apply(CpuContext& context, const TensorView& x, const TensorView& coefficients,
                      const TensorView& residual, bool relu, const TensorView& y, const TensorView& mask) {
  const Layout layout(x.shape, Layout::Pass::elementwise);
  visit_element(x.dtype, "batch_norm_apply", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    const auto* pc = coefficients.as<Value<T>>();
    const T* pr = pointer<T>(residual);
    T* py = y.as<T>();
    auto* pm = pointer<std::uint8_t>(mask);
    if (pr != nullptr) {
      relu ? apply<true, true>(context, layout, px, pc, pr, py, pm)
           : apply<true, false>(context, layout, px, pc, pr, py, pm);
    } else {
      relu ? apply<false, true>(context, layout, px, pc, pr, py, pm)
           : apply<false, false>(context, layout, px, pc, pr, py, pm);
    }
  });
}

void batch_norm_backward_reduce(CpuContext& context, const TensorView& dy, const TensorView& dy2,
                                const TensorView& mask, const TensorView& x, const TensorView& coefficients,
                                const TensorView& valid, GradMode mode, const TensorView& sums,
                                const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  const Layout layout(x.shape);
  const int64_t rows = valid_rows("batch_norm_backward_reduce", layout, x, valid);
  visit_element(x.dtype, "batch_norm_backward_reduce", [&]<class T>(std::type_identity<T>) {
    const Gradient<T> in{dy.as<T>(), pointer<T>(dy2), pointer<std::uint8_t>(mask)};
    const bool wanted = mode != GradMode::ignore;
    const auto run = in.dy2 != nullptr
                         ? (in.mask != nullptr ? backward_sums<true, true, T> : backward_sums<true, false, T>)
                         : (in.mask != nullptr ? backward_sums<false, true, T> : backward_sums<false, false, T>);
    run(context, layout, in, x.as<T>(), coefficients.as<Value<T>>(), rows, mode, sums.as<Value<T>>(),
        wanted ? dweight.as<Value<T>>() : nullptr, wanted ? dbias.as<Value<T>>() : nullptr,
        Slots(layout, workspace, sizeof(Value<T>)));
  });
}

void batch_norm_backward_apply(CpuContext& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                               const TensorView& x, const TensorView& coefficients, const TensorView& sums,
                               const TensorView& stats, const TensorView& valid, const TensorView& dx,
                               const TensorView& dresidual) {
  const Layout layout(x.shape, Layout::Pass::elementwise);
  const int64_t rows = valid_rows("batch_norm_backward_apply", layout, x, valid);
  visit_element(x.dtype, "batch_norm_backward_apply", [&]<class T>(std::type_identity<T>) {
    const Gradient<T> in{dy.as<T>(), pointer<T>(dy2), pointer<std::uint8_t>(mask)};
    backward(context, layout, in, x.as<T>(), coefficients.as<Value<T>>(), sums.as<Value<T>>(),
             static_cast<double>(stats.as<Value<T>>()[2 * layout.channels]), rows, dx.as<T>(), pointer<T>(dresidual));
  });
}

}  // namespace lockstep::ops::backend
