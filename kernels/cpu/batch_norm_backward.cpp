#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/cpu/batch_norm_registers.hpp>
#include <lockstep/kernels/cpu/batch_norm_sums.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/relu_mask.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;
/// Adds g to sum, and g * (x - mean) to product, in kLanes neighbouring channels over `periods` periods. A period is
/// one or more rows. g is the incoming gradient of the elements from `at` on; `at` must be a multiple of 32 (16 in
/// f64).
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
  join_sums(context, chunks, channels, slots, mode, sums, dweight, dbias);
}

/// A table that holds, for each channel, the four numbers of the formula dx = scale * g + (x - mean) * slope + offset.
/// A period is one or more rows of C channels; from() returns the numbers repeated for each row of the period.
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
  /// Returns the channels' numbers for `length` elements, from element `phase` of a period (one or more rows) on. The
  /// result is valid until the next call.
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

/// Computes kRows rows of dx. Consecutive rows of g are g_period elements apart; consecutive rows of x and of dx are
/// `period` elements apart.
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

/// Writes the gradient g, rounded to T, in the valid rows, and 0 in the padding rows. Element i of `to` depends on
/// element i of the inputs only, so `to` may be dy or dy2.
template <class T>
void store_masked(CpuContext& context, const Layout& layout, const Gradient<T>& in, int64_t rows, T* to) {
  const int64_t numel = layout.numel();
  const int64_t valid = rows * layout.channels;
  parallel_ranges(context, (numel + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t first, int64_t last) {
    alignas(64) Value<T> g[kBlock];
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * kBlock;
      const int64_t end = std::min(numel, begin + kBlock);
      const int64_t stop = std::clamp(valid, begin, end);
      in.read(begin, stop - begin, g);
      store_values(g, stop - begin, to + begin);
      std::fill(to + stop, to + end, T(0));
    }
  });
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
        } else {  // storing g in T would round the gradient: g stays in a local array of values
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

}  // namespace

void batch_norm_backward_reduce(CpuContext& context, const TensorView& dy, const TensorView& dy2,
                                const TensorView& mask, const TensorView& x, const TensorView& coefficients,
                                const TensorView& valid, GradMode mode, const TensorView& sums,
                                const TensorView& dweight, const TensorView& dbias, const TensorView& masked,
                                const TensorView& workspace) {
  const Layout layout(x.shape);
  const int64_t rows = valid_rows("batch_norm_backward_reduce", layout, x, valid);
  visit_element(x.dtype, "batch_norm_backward_reduce", [&]<class T>(std::type_identity<T>) {
    Gradient<T> in{dy.as<T>(), pointer<T>(dy2), pointer<std::uint8_t>(mask)};
    if (masked.given()) {
      store_masked(context, layout, in, rows, masked.as<T>());
      in = {masked.as<T>(), nullptr, nullptr};
    }
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
