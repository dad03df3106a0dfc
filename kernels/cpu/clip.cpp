#include <lockstep/kernels/clip.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::ops::backend {

void clip_factor(CpuContext& /*context*/, double max_norm, const ClipScalars& s) {
  visit_compute(s.factor.dtype, "clip_factor", [&]<class T>(std::type_identity<T>) {
    const auto value_of = [](const TensorView& scalar) {
      return scalar.given() ? static_cast<double>(*scalar.as<T>()) : 1.0;
    };
    const double divisor = value_of(s.divisor);
    Skip skip = std::isfinite(divisor) && divisor > 0 ? Skip::no : Skip::no_weight;
    const double inverse_scale = skip == Skip::no ? 1.0 / (value_of(s.loss_scale) * divisor) : 0;
    double factor = inverse_scale;
    if (skip == Skip::no_weight) {
      if (s.norm.given()) {
        *s.norm.as<double>() = 0;
      }
    } else if (s.squared_norm.given()) {
      const double* squares = s.squared_norm.as<double>();
      const double norm = std::sqrt(std::accumulate(squares, squares + s.squared_norm.numel(), 0.0)) * inverse_scale;
      skip = std::isfinite(norm) ? Skip::no : Skip::not_finite;
      const double length = norm + std::min(1e-6, 1e-3 * norm);
      if (max_norm > 0 && max_norm < length) {
        factor *= max_norm / length;
      }
      if (s.norm.given()) {
        *s.norm.as<double>() = norm;
      }
    }
    *s.factor.as<T>() = skip == Skip::no ? static_cast<T>(factor) : T{0};
    *s.skip.as<std::int32_t>() = static_cast<std::int32_t>(skip);
    if (skip == Skip::no && s.step.given()) {
      ++*s.step.as<std::int64_t>();
    }
    if (skip == Skip::not_finite && s.skipped.given()) {
      ++*s.skipped.as<std::int64_t>();
    }
  });
}

}  // namespace lockstep::ops::backend
