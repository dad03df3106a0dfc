#pragma once

#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// What clip_factor() writes to ArenaUpdate::skip.
enum class Skip : std::int32_t {
  no = 0,
  not_finite = 1,  ///< the norm of the gradients is NaN or infinite
  no_weight = 2,   ///< the divisor is not a positive, finite number: there was nothing to learn from
};

/// Scalars of clip_factor(), on the device.
struct ClipScalars {
  TensorView squared_norm;  ///< in, f64: sum of the squares of all gradients as they are, e.g. times a loss scale
  TensorView loss_scale;    ///< in, of the type of factor: what the gradients were multiplied by; not given: 1
  TensorView divisor;       ///< in, of the type of factor: sum of the weights of what gave the gradients; not given: 1
  TensorView factor;        ///< out, f32 or f64: ArenaUpdate::factor; 0 when the update is skipped
  TensorView skip;          ///< out, i32: ArenaUpdate::skip, a value of Skip
  TensorView step;          ///< in and out, i64: + 1 unless the update is skipped; may be missing
  TensorView skipped;       ///< in and out, i64: + 1 when the norm is not finite; may be missing
  TensorView norm;          ///< out, f64: sqrt(squared_norm) / (loss_scale * divisor), 0 for no_weight; may be missing
};

/// Decides an update on the device, so that the host need not wait for the norm of the gradients:
///   scale = loss_scale * divisor;  norm = sqrt(squared_norm) / scale
///   factor = min(1, max_norm / (norm + 1e-6)) / scale
/// as torch.nn.utils.clip_grad_norm_ does; in f64. max_norm 0: factor = 1 / scale; then squared_norm may be missing:
/// the divisor alone decides, and norm must not be given. A divisor that is 0, negative, NaN or infinite skips the
/// update, whatever the norm is, and then a norm of NaN or infinity does. UsageError: max_norm negative or not finite,
/// or without squared_norm; norm without squared_norm. ShapeError: views that are not scalars, that share memory, or
/// factor or skip not given.
void clip_factor(Context& context, double max_norm, const ClipScalars& scalars);

namespace backend {  // called after the checks of clip.cpp
void clip_factor(CpuContext&, double max_norm, const ClipScalars& scalars);
void clip_factor(CudaContext&, double max_norm, const ClipScalars& scalars);
}  // namespace backend

}  // namespace lockstep::ops
