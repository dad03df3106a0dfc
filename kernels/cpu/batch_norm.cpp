#include <lockstep/kernels/batch_norm.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/relu_mask.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;
/// Writes the four coefficients of channel c: scale, shift, mean, inv_std. The shift is computed from the rounded
/// scale, so that x = mean gives y = bias up to one rounding.
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

/// The kind of tensor that is added to the output of a batch norm: none, a plain tensor, or the output of another norm.
enum class Added : unsigned char { none, tensor, norm };

template <int kRows, Added kAdded, bool kRelu, class T>
void apply_rows(const T* x, const T* residual, int64_t period, const Value<T>* scale, const Value<T>* shift,
                const Value<T>* scale2, const Value<T>* shift2, T* y, int64_t length) {
#pragma omp simd
  for (int64_t i = 0; i < length; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Value<T> v = value_of(x[r * period + i]) * scale[i] + shift[i];
      if constexpr (kAdded == Added::tensor) {
        v += value_of(residual[r * period + i]);
      }
      if constexpr (kAdded == Added::norm) {
        v += value_of(residual[r * period + i]) * scale2[i] + shift2[i];
      }
      if constexpr (kRelu) {
        v = v <= 0 ? 0 : v;  // NaN stays NaN
      }
      store(v, y[r * period + i]);
    }
  }
}

/// Computes y, and the mask unless `mask` is null. If kAdded is Added::norm, `coefficients2` points to the coefficients
/// of the batch norm of the residual. Otherwise `coefficients2` is null.
template <Added kAdded, bool kRelu, class T>
void apply(CpuContext& context, const Layout& layout, const T* x, const Value<T>* coefficients, const T* residual,
           const Value<T>* coefficients2, T* y, std::uint8_t* mask) {
  constexpr bool kNorm = kAdded == Added::norm;
  const int64_t numel = layout.numel();
  const int64_t period = layout.period;
  parallel_ranges(context, layout.tiles(), layout.tile_grain(), [&](int64_t first, int64_t last) {
    RepeatedRow<Value<T>> scale(coefficients, layout);
    RepeatedRow<Value<T>> shift(coefficients + layout.channels, layout);
    std::optional<RepeatedRow<Value<T>>> scale2;
    std::optional<RepeatedRow<Value<T>>> shift2;
    if constexpr (kNorm) {
      scale2.emplace(coefficients2, layout);
      shift2.emplace(coefficients2 + layout.channels, layout);
    }
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * layout.tile;
      for_pieces(begin, std::min(numel, begin + layout.tile), period,
                 [&](auto n, int64_t at, int64_t phase, int64_t length) {
                   apply_rows<n(), kAdded, kRelu>(x + at, kAdded != Added::none ? residual + at : nullptr, period,
                                                  scale.from(phase, length), shift.from(phase, length),
                                                  kNorm ? scale2->from(phase, length) : nullptr,
                                                  kNorm ? shift2->from(phase, length) : nullptr, y + at, length);
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

}  // namespace

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
      if (means != nullptr && count > 0 && std::isfinite(mean) && std::isfinite(m2)) {
        means[c] = static_cast<T>((1 - momentum) * static_cast<double>(means[c]) + momentum * mean);
        vars[c] = static_cast<T>((1 - momentum) * static_cast<double>(vars[c]) + momentum * (m2 / unbiased));
      }
    }
  });
}

void batch_norm_coefficients(CpuContext& context, const TensorView& x, const TensorView& valid,
                             const TensorView& weight, const TensorView& bias, double epsilon, double momentum,
                             const TensorView& stats, const TensorView& running_mean, const TensorView& running_var,
                             const TensorView& coefficients, const TensorView& workspace) {
  batch_norm_stats(context, x, valid, stats, workspace);
  batch_norm_finalize(context, stats, weight, bias, epsilon, momentum, running_mean, running_var, coefficients);
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
    const Value<T>* none = nullptr;
    if (pr != nullptr) {
      relu ? apply<Added::tensor, true>(context, layout, px, pc, pr, none, py, pm)
           : apply<Added::tensor, false>(context, layout, px, pc, pr, none, py, pm);
    } else {
      relu ? apply<Added::none, true>(context, layout, px, pc, pr, none, py, pm)
           : apply<Added::none, false>(context, layout, px, pc, pr, none, py, pm);
    }
  });
}

void batch_norm_apply_pair(CpuContext& context, const TensorView& x, const TensorView& coefficients,
                           const TensorView& residual, const TensorView& residual_coefficients, bool relu,
                           const TensorView& y, const TensorView& mask) {
  const Layout layout(x.shape, Layout::Pass::elementwise);
  visit_element(x.dtype, "batch_norm_apply_pair", [&]<class T>(std::type_identity<T>) {
    const auto run = relu ? apply<Added::norm, true, T> : apply<Added::norm, false, T>;
    run(context, layout, x.as<T>(), coefficients.as<Value<T>>(), residual.as<T>(), residual_coefficients.as<Value<T>>(),
        y.as<T>(), pointer<std::uint8_t>(mask));
  });
}

}  // namespace lockstep::ops::backend
