#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/kernels/clip.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// Options of dynamic loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). The loss is
/// multiplied by a scale, so that small gradients do not become 0 in f16; the gradients are divided by the scale before
/// use. The defaults are those of torch.amp.GradScaler, except for the bounds `least` and `most`, which GradScaler
/// lacks: without `most` the scale could become infinite and would stay so.
struct LossScaleOptions {
  double growth = 2;             ///< factor of the scale after `interval` updates without a skip; above 1
  double backoff = 0.5;          ///< factor of the scale when an update is skipped; between 0 and 1
  std::int64_t interval = 2000;  ///< number of updates without a skip before the scale grows; at least 1
  double least = 1;              ///< lower bound of the scale, from 1e-37 to `most`
  double most = 16777216;        ///< upper bound of the scale, at most 3e38; the default is 2^24
};

/// Updates `scale` and `good` after clip_factor() has written to `skip` whether an update is skipped:
///   if skip is Skip::no_weight:        nothing changes
///   if skip is another nonzero value:  scale = max(scale * backoff, least), good = 0
///   if skip is 0:  good = good + 1;  if good is now at least interval:  scale = min(scale * growth, most), good = 0
/// Computes in f64, and rounds to the type of scale. skip: i32 scalar, a value of Skip (clip.hpp); scale: f32 or f64
/// scalar; good: i64 scalar. The three scalars share no memory. The device reads the scalars when the op runs, not when
/// it is enqueued; so the op may be captured in a CUDA graph. No workspace. Throws UsageError for options out of range.
void loss_scale_update(Context& context, const LossScaleOptions& options, const TensorView& skip,
                       const TensorView& scale, const TensorView& good);

void require_loss_scale_options(std::string_view op, const LossScaleOptions& options);

namespace backend {  // the functions that loss_scale.cpp calls after its checks
LOCKSTEP_BACKENDS(loss_scale_update);
}  // namespace backend

}  // namespace lockstep::ops
