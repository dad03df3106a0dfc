#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// The reason why an update is skipped, or `no`. clip_factor() writes this number into ArenaUpdate::skip.
enum class Skip : std::int32_t {
  no = 0,
  not_finite = 1,  ///< the norm of the gradients is NaN or infinite
  no_weight = 2,   ///< ClipScalars::divisor is not a positive, finite number, for example if no sample has a weight
};

/// Scalars of clip_factor(), on the device.
struct ClipScalars {
  /// In, f64, (n), n at least 1: partial sums of the squares of all gradients as stored, loss scale included.
  /// clip_factor() adds the n partial sums in order.
  TensorView squared_norm;
  TensorView loss_scale;  ///< in, of the type of factor: number by which the gradients were multiplied; 1 if not given
  TensorView divisor;     ///< in, of the type of factor: sum of the weights of all samples; 1 if not given
  TensorView factor;      ///< out, f32 or f64: value for ArenaUpdate::factor; 0 when the update is skipped
  TensorView skip;        ///< out, i32: a value of Skip, for ArenaUpdate::skip
  TensorView step;        ///< in and out, i64, optional: grows by 1 unless the update is skipped
  TensorView skipped;     ///< in and out, i64, optional: grows by 1 when the norm is not finite
  TensorView norm;        ///< out, f64, optional: sqrt(squared_norm) / (loss_scale * divisor), or 0 for Skip::no_weight
};

/// Computes the factor of an update, and decides whether the update is skipped. The op does this on the device, so that
/// the host need not wait for the norm of the gradients:
///   scale = loss_scale * divisor;  norm = sqrt(squared_norm) / scale
///   factor = min(1, max_norm / (norm + min(1e-6, norm / 1000))) / scale
/// This is torch.nn.utils.clip_grad_norm_ in f64, but torch adds 1e-6 to every norm, even to small ones. The update is
/// skipped if the divisor is 0, negative, NaN or infinite, or if the norm is NaN or infinite.
///
/// If max_norm is 0, factor = 1 / scale. In this case squared_norm may be missing; then only the divisor decides
/// whether the update is skipped, and norm must not be given. Throws UsageError if max_norm is negative or not finite,
/// or if max_norm or norm is given without squared_norm. Throws ShapeError if a view other than squared_norm is not a
/// scalar, views share memory, or factor or skip is missing.
void clip_factor(Context& context, double max_norm, const ClipScalars& scalars);

namespace backend {  // the functions that clip.cpp calls after its checks
LOCKSTEP_BACKENDS(clip_factor);
}  // namespace backend

}  // namespace lockstep::ops
