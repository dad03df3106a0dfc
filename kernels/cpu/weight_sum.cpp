#include <lockstep/kernels/weight_sum.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/chunk_sum.hpp>
#include <lockstep/kernels/reduce.hpp>

namespace lockstep::ops::backend {

void weight_sum(CpuContext& context, const TensorView& weights, const TensorView& valid, const TensorView& scale,
                GradMode mode, const TensorView& sum, const TensorView& total, const TensorView& workspace) {
  const std::int64_t samples = weights.shape[0];
  const std::int64_t features = samples == 0 ? 1 : weights.numel() / samples;
  const std::int64_t counting =
      valid.given() ? std::clamp(*valid.as<std::int64_t>(), std::int64_t{0}, samples) : samples;
  visit_compute(weights.dtype, "weight_sum", [&]<class T>(std::type_identity<T>) {
    const T* w = weights.as<T>();
    const double all =
        chunk_sum(context, counting * features, kSumChunk, static_cast<double*>(workspace.data),
                  [=](std::int64_t begin, std::int64_t end) {
                    return lane_sum(begin, end, [=](std::int64_t i) { return static_cast<double>(w[i]); });
                  }) /
        static_cast<double>(features);
    if (total.given()) {
      *total.as<double>() += all;
    }
    if (mode != GradMode::ignore) {
      const auto scaled = static_cast<T>(all * (scale.given() ? static_cast<double>(*scale.as<T>()) : 1.0));
      *sum.as<T>() = mode == GradMode::accumulate ? *sum.as<T>() + scaled : scaled;
    }
  });
}

}  // namespace lockstep::ops::backend
