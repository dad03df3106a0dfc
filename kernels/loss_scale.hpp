#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/kernels/clip.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// A loss is multiplied by a scale so that small gradients do not become 0 in f16, and the gradients are divided by it
/// before they are used (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). The defaults are those of
/// torch.amp.GradScaler, but for the bounds, which it has not: without `most` a scale could become infinite and stay
/// so.
struct LossScaleOptions {
  double growth = 2;             ///< the scale times this after `interval` updates without a skip; above 1
  double backoff = 0.5;          ///< the scale times this when an update is skipped; between 0 and 1
  std::int64_t interval = 2000;  ///< at least 1
  double least = 1;              ///< bounds of the scale, 0 < least <= most; both are f32
  double most = 16777216;        ///< 2^24
};

/// After clip_factor() has decided about an update:
///   skip no_weight:  nothing
///   else not 0:      scale = max(scale * backoff, least), good = 0
///   0:               good = good + 1, and when that is interval:  scale = min(scale * growth, most), good = 0
/// in f64, rounded to the type of scale. skip: i32 scalar, a value of Skip (clip.hpp); scale: f32 or f64 scalar; good:
/// i64 scalar. They share no memory. Nothing here comes from the host, so that a captured step replays rightly. No
/// workspace. UsageError: options out of range.
void loss_scale_update(Context& context, const LossScaleOptions& options, const TensorView& skip,
                       const TensorView& scale, const TensorView& good);

void require_loss_scale_options(std::string_view op, const LossScaleOptions& options);

namespace backend {  // called after the checks of loss_scale.cpp
void loss_scale_update(CpuContext&, const LossScaleOptions& options, const TensorView& skip, const TensorView& scale,
                       const TensorView& good);
void loss_scale_update(CudaContext&, const LossScaleOptions& options, const TensorView& skip, const TensorView& scale,
                       const TensorView& good);
}  // namespace backend

}  // namespace lockstep::ops
