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
/// Does the work that the sgd and lars updates share: computes g = ratio * (factor * grad + weight_decay * p), then v
/// and p as in sgd.hpp. If `ratios` is null (sgd), each ratio is 1. Otherwise (lars) `ratios` is f64 in the device's
/// memory: one ratio per segment on the host, one per trainable segment in the range on a GPU.
void momentum_update(CpuContext&, const ArenaUpdate& update, const MomentumOptions& options, const TensorView& velocity,
                     const double* ratios);
void momentum_update(CudaContext&, const ArenaUpdate& update, const MomentumOptions& options,
                     const TensorView& velocity, const double* ratios);
}  // namespace backend

}  // namespace lockstep::ops
