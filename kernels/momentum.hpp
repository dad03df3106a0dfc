#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

struct MomentumOptions {
  double momentum = 0;    ///< [0, 1); 0: velocity is not touched and may be missing
  bool nesterov = false;  ///< needs momentum > 0
};

/// UsageError, in the name of `op`, for a momentum outside [0, 1) and nesterov without momentum.
void require_momentum(std::string_view op, const MomentumOptions& options);

namespace backend {  // in the files of sgd

/// What sgd and lars have in common: g = ratio * (factor * grad + weight_decay * p), then as sgd.hpp says. ratios: null
/// for sgd, where all are 1; for lars numbers in f64 on the device, of the segments on the host, on a GPU of the
/// trainable segments that lie in the range.
void momentum_update(CpuContext&, const ArenaUpdate& update, const MomentumOptions& options, const TensorView& velocity,
                     const double* ratios);
void momentum_update(CudaContext&, const ArenaUpdate& update, const MomentumOptions& options,
                     const TensorView& velocity, const double* ratios);

}  // namespace backend

}  // namespace lockstep::ops
