#include <lockstep/kernels/batch_norm_given.hpp>

#include <cmath>
#include <cstdint>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/cpu/element.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;

/// Returns true if the sums (2, C) of every channel are finite and precise enough: at least the share kGivenLeft of the
/// sum of squares must remain when the mean's part is subtracted. `rows` is the number of rows that were summed.
template <class T>
bool sums_hold(const T* sums, std::int64_t channels, double rows) {
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto sum = static_cast<double>(sums[c]);
    const auto squares = static_cast<double>(sums[channels + c]);
    if (!std::isfinite(squares) || !(squares - sum * (sum / rows) >= squares * kGivenLeft)) {
      return false;
    }
  }
  return true;
}

}  // namespace

void batch_norm_coefficients_given(CpuContext& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace) {
  bool hold = x.shape[0] > 0 && (!valid.given() || *valid.as<std::int64_t>() == x.shape[0]);
  visit_compute(stats.dtype, "batch_norm_coefficients_given", [&]<class T>(std::type_identity<T>) {
    const std::int64_t channels = x.shape.back();
    const std::int64_t count = x.numel() / channels;
    const auto rows = static_cast<double>(count);
    hold = hold && sums_hold(sums.as<T>(), channels, rows);
    if (!hold) {
      return;
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto sum = static_cast<double>(sums.as<T>()[c]);
      const double squares = static_cast<double>(sums.as<T>()[channels + c]) - sum * (sum / rows);
      stats.as<T>()[c] = static_cast<T>(static_cast<double>(shift.as<T>()[c]) + sum / rows);
      stats.as<T>()[channels + c] = static_cast<T>(squares);
    }
    stats.as<T>()[2 * channels] = static_cast<T>(rows);
  });
  if (!hold) {
    batch_norm_coefficients(context, x, valid, weight, bias, epsilon, momentum, stats, running_mean, running_var,
                            coefficients, workspace);
    return;
  }
  batch_norm_finalize(context, stats, weight, bias, epsilon, momentum, running_mean, running_var, coefficients);
}

void batch_norm_gradients_given(CpuContext& /*context*/, const TensorView& sum_g, const TensorView& sum_gx,
                                GradMode mode, const TensorView& sums, const TensorView& dweight,
                                const TensorView& dbias) {
  visit_compute(sums.dtype, "batch_norm_gradients_given", [&]<class T>(std::type_identity<T>) {
    const std::int64_t channels = sum_g.shape[0];
    for (std::int64_t c = 0; c < channels; ++c) {
      const T g = sum_g.as<T>()[c];
      const T gx = sum_gx.as<T>()[c];
      sums.as<T>()[c] = g;
      sums.as<T>()[channels + c] = gx;
      if (mode != GradMode::ignore) {
        const bool add = mode == GradMode::accumulate;
        dbias.as<T>()[c] = add ? dbias.as<T>()[c] + g : g;
        dweight.as<T>()[c] = add ? dweight.as<T>()[c] + gx : gx;
      }
    }
  });
}

}  // namespace lockstep::ops::backend
