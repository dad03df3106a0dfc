#include <lockstep/kernels/batch_norm_given.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/batch_norm_periods.hpp>
#include <lockstep/kernels/cpu/element.hpp>

namespace lockstep::ops::backend {

using namespace batch_norm;

void batch_norm_coefficients_given(CpuContext& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace) {
  if (x.shape[0] == 0 || (valid.given() && *valid.as<std::int64_t>() != x.shape[0])) {
    batch_norm_coefficients(context, x, valid, weight, bias, epsilon, momentum, stats, running_mean, running_var,
                            coefficients, workspace);
    return;
  }
  visit_compute(stats.dtype, "batch_norm_coefficients_given", [&]<class T>(std::type_identity<T>) {
    const std::int64_t channels = x.shape.back();
    const auto rows = static_cast<double>(x.numel() / channels);
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto sum = static_cast<double>(sums.as<T>()[c]);
      const double squares = static_cast<double>(sums.as<T>()[channels + c]) - sum * (sum / rows);
      stats.as<T>()[c] = static_cast<T>(static_cast<double>(shift.as<T>()[c]) + sum / rows);
      stats.as<T>()[channels + c] = static_cast<T>(squares < 0 ? 0 : squares);  // NaN stays NaN
    }
    stats.as<T>()[2 * channels] = static_cast<T>(rows);
  });
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
