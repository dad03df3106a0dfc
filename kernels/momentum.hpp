#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

struct MomentumOptions {
  double momentum = 0;    ///< in [0, 1); if it is 0, velocity is not used and may be missing
  bool nesterov = false;  ///< may be true only with momentum > 0
};

/// Throws UsageError for a momentum outside [0, 1), and for nesterov without momentum; `op` names the caller.
void require_momentum(std::string_view op, const MomentumOptions& options);

namespace backend {  // functions of cpu/sgd.cpp and cuda/sgd.cu
/// Does the part that sgd and lars share: computes g = ratio * (factor * grad + weight_decay * p), then v and p as in
/// sgd.hpp. sgd passes null as `ratios`, and all ratios are 1. lars passes f64 ratios in the device's memory: on the
/// host one per segment, on a GPU one per trainable segment in the range.
void momentum_update(CpuContext&, const ArenaUpdate& update, const MomentumOptions& options, const TensorView& velocity,
                     const double* ratios);
void momentum_update(CudaContext&, const ArenaUpdate& update, const MomentumOptions& options,
                     const TensorView& velocity, const double* ratios);
}  // namespace backend

}  // namespace lockstep::ops
