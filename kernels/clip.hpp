#pragma once

#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

/// Scalars of clip_factor(), on the device.
struct ClipScalars {
  TensorView squared_norm;  ///< in, f64: sum of the squares of all gradients as they are, e.g. times a loss scale
  TensorView loss_scale;    ///< in, of the type of factor: what the gradients were multiplied by; not given: 1
  TensorView factor;        ///< out, f32 or f64: ArenaUpdate::factor; 0 when the update is skipped
  TensorView skip;          ///< out, i32: ArenaUpdate::skip: 1 when the norm is not finite, else 0
  TensorView step;          ///< in and out, i64: + 1 unless the update is skipped; may be missing
  TensorView skipped;       ///< in and out, i64: + 1 when the update is skipped; may be missing
  TensorView norm;          ///< out, f64: sqrt(squared_norm) / loss_scale; may be missing
};

/// Decides an update on the device, so that the host need not wait for the norm of the gradients:
///   norm = sqrt(squared_norm) / loss_scale;  factor = min(1, max_norm / (norm + 1e-6)) / loss_scale
/// as torch.nn.utils.clip_grad_norm_ does; in f64. max_norm 0: factor = 1 / loss_scale; then squared_norm may be
/// missing: no update is skipped, and norm must not be given. A norm of NaN or infinity skips the update. UsageError:
/// max_norm negative or not finite, or without squared_norm; norm without squared_norm. ShapeError: views that are not
/// scalars, that share memory, or factor or skip not given.
void clip_factor(Context& context, double max_norm, const ClipScalars& scalars);

namespace backend {  // called after the checks of clip.cpp
void clip_factor(CpuContext&, double max_norm, const ClipScalars& scalars);
void clip_factor(CudaContext&, double max_norm, const ClipScalars& scalars);
}  // namespace backend

}  // namespace lockstep::ops
