#include <lockstep/kernels/clip.hpp>

#include <cmath>

namespace lockstep::ops::backend {

void clip_factor(CpuContext& /*context*/, double max_norm, const ClipScalars& s) {
  visit_compute(s.factor.dtype, "clip_factor", [&]<class T>(std::type_identity<T>) {
    const double inverse_scale = s.loss_scale.given() ? 1.0 / static_cast<double>(*s.loss_scale.as<T>()) : 1.0;
    double factor = inverse_scale;
    bool skip = false;
    if (s.squared_norm.given()) {
      const double norm = std::sqrt(*s.squared_norm.as<double>()) * inverse_scale;
      skip = !std::isfinite(norm);
      if (max_norm > 0 && max_norm < norm + 1e-6) {
        factor *= max_norm / (norm + 1e-6);
      }
      if (s.norm.given()) {
        *s.norm.as<double>() = norm;
      }
    }
    *s.factor.as<T>() = skip ? T{0} : static_cast<T>(factor);
    *s.skip.as<std::int32_t>() = skip ? 1 : 0;
    if (const TensorView& count = skip ? s.skipped : s.step; count.given()) {
      ++*count.as<std::int64_t>();
    }
  });
}

}  // namespace lockstep::ops::backend
