#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

struct MomentumOptions {
  double momentum = 0;    ///< in [0, 1); with 0 velocity is not touched and may be missing
  bool nesterov = false;  ///< needs momentum > 0
};

/// Throws UsageError for a momentum outside [0, 1), and for nesterov without momentum; `op` names the caller.
void require_momentum(std::string_view op, const MomentumOptions& options);

namespace backend {  // the files of sgd define these functions
/// Does the common part of sgd and lars: g = ratio * (factor * grad + weight_decay * p), then v and p as in sgd.hpp.
/// For sgd `ratios` is null, and all ratios are 1. For lars `ratios` are f64 on the device: one per segment on the
/// host, one per trainable segment in the range on a GPU.
void momentum_update(CpuContext&, const ArenaUpdate& update, const MomentumOptions& options, const TensorView& velocity,
                     const double* ratios);
void momentum_update(CudaContext&, const ArenaUpdate& update, const MomentumOptions& options,
                     const TensorView& velocity, const double* ratios);
}  // namespace backend

}  // namespace lockstep::ops
