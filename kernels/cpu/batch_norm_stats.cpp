#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/cpu/batch_norm_registers.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;
/// Adds x - shift to sum, and (x - shift)^2 to square, in kLanes neighbouring channels over `periods` periods. A period
/// is one or more rows.
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

/// Computes the mean and M2 = sum (x - mean)^2 of one chunk, in one pass over deviations from a shift. The shift is the
/// mean of the first sixteenth of the chunk's rows.
///
/// This shift loses few bits for any data. Let the shift be the mean of k of the n values, and d its distance from the
/// mean of all n values. Then M2 is at least k d^2. Hence sum (x - shift)^2, which is M2 + n d^2, is at most M2 (1 + n
/// / k).
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

void batch_norm_merge_stats(CpuContext& /*context*/, const TensorView& parts, const TensorView& stats) {
  visit_compute(parts.dtype, "batch_norm_merge_stats", [&]<class T>(std::type_identity<T>) {
    const int64_t width = parts.shape[1];
    const int64_t channels = width / 2;
    T* const merged = stats.as<T>();
    double rows = 0;
    for (int64_t c = 0; c < channels; ++c) {
      double mean = 0;
      double m2 = 0;
      rows = 0;
      const T* part = parts.as<T>();
      for (int64_t p = 0; p < parts.shape[0]; ++p, part += width) {
        const auto part_rows = static_cast<double>(part[2 * channels]);
        if (part_rows > 0) {
          const double share = part_rows / (rows + part_rows);
          const double delta = static_cast<double>(part[c]) - mean;
          mean += delta * share;
          m2 += static_cast<double>(part[channels + c]) + delta * delta * (rows * share);
          rows += part_rows;
        }
      }
      merged[c] = static_cast<T>(mean);
      merged[channels + c] = static_cast<T>(m2);
    }
    merged[2 * channels] = static_cast<T>(rows);
  });
}

}  // namespace lockstep::ops::backend
