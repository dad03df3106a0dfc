#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/kernels/clip.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// Options of dynamic loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). The loss is
/// multiplied by a scale, so that small gradients do not become 0 in f16; the gradients are divided by the scale before
/// use. The defaults are those of torch.amp.GradScaler, except for the bounds, which GradScaler lacks: without `most` a
/// scale could become infinite for good.
struct LossScaleOptions {
  double growth = 2;             ///< the scale is multiplied by growth after `interval` updates without a skip; above 1
  double backoff = 0.5;          ///< the scale is multiplied by backoff when an update is skipped; between 0 and 1
  std::int64_t interval = 2000;  ///< at least 1
  double least = 1;              ///< lower bound of the scale, an f32 number, 0 < least <= most
  double most = 16777216;        ///< upper bound of the scale, an f32 number; default 2^24
};

/// Updates the scale after clip_factor() has decided about an update:
///   skip is no_weight:  nothing changes
///   else not 0:         scale = max(scale * backoff, least), good = 0
///   skip is 0:          good = good + 1; if good is now interval:  scale = min(scale * growth, most), good = 0
/// Computes in f64, and rounds to the type of scale. skip: i32 scalar, a value of Skip (clip.hpp); scale: f32 or f64
/// scalar; good: i64 scalar. They share no memory. No value comes from the host, so a captured step replays correctly.
/// No workspace. Throws UsageError for options out of range.
void loss_scale_update(Context& context, const LossScaleOptions& options, const TensorView& skip,
                       const TensorView& scale, const TensorView& good);

void require_loss_scale_options(std::string_view op, const LossScaleOptions& options);

namespace backend {  // the functions that loss_scale.cpp calls after its checks
LOCKSTEP_BACKENDS(loss_scale_update);
}  // namespace backend

}  // namespace lockstep::ops
