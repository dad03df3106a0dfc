#include <lockstep/kernels/loss_scale.hpp>

#include <algorithm>

namespace lockstep::ops::backend {

void loss_scale_update(CpuContext& /*context*/, const LossScaleOptions& options, const TensorView& skip,
                       const TensorView& scale, const TensorView& good) {
  visit_compute(scale.dtype, "loss_scale_update", [&]<class T>(std::type_identity<T>) {
    auto& value = *scale.as<T>();
    auto& count = *good.as<std::int64_t>();
    const auto why = static_cast<Skip>(*skip.as<std::int32_t>());
    if (why == Skip::no_weight) {
      return;
    }
    if (why != Skip::no) {
      value = static_cast<T>(std::max(static_cast<double>(value) * options.backoff, options.least));
      count = 0;
    } else if (++count >= options.interval) {
      value = static_cast<T>(std::min(static_cast<double>(value) * options.growth, options.most));
      count = 0;
    }
  });
}

}  // namespace lockstep::ops::backend
