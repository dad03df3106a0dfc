#pragma once

#include <cstdint>
#include <span>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep::ops {

/// A run of arena elements whose tensors share one parameter group; counts include the zero padding between tensors.
struct ArenaSegment {
  std::int64_t offset = 0;  ///< first element, from the start of the arena
  std::int64_t count = 0;   ///< elements
  double learning_rate_scale = 1;
  double weight_decay = 0;
  bool trainable = true;  ///< false: the update leaves the elements alone
};

struct SgdOptions {
  double momentum = 0;    ///< [0, 1); 0: velocity is not touched and may be missing
  bool nesterov = false;  ///< needs momentum > 0
};

/// Stochastic gradient descent with momentum as PyTorch defines it (Sutskever et al. 2013, without dampening):
///   g = grad + weight_decay * p;  v = momentum * v + g;  p -= lr * (nesterov ? g + momentum * v : v)
/// with lr = learning_rate (scalar f64 on the device) * learning_rate_scale.
///   parameters, gradients, velocity: (n) contiguous, one type, f32 or f64 on the host, f32 on a GPU: the elements
///   [begin, begin + n) of their arenas; segments: sorted, not overlapping; parts outside the range are skipped,
///   elements in no segment are left alone. velocity must be zero before the first update. Reads p, g, v once, writes
///   p, v once. Deterministic: an element's bits do not depend on how the arena is cut into ranges.
/// UsageError: momentum out of range, nesterov without momentum, momentum without velocity, a factor that is not
/// finite.
void sgd_update(Context& context, const SgdOptions& options, std::span<const ArenaSegment> segments, std::int64_t begin,
                const TensorView& learning_rate, const TensorView& parameters, const TensorView& gradients,
                const TensorView& velocity);

namespace backend {  // called after the checks of sgd.cpp; on the host the segments must stay alive until it has run
void sgd_update(CpuContext&, const SgdOptions& options, std::span<const ArenaSegment> segments, std::int64_t begin,
                const TensorView& learning_rate, const TensorView& parameters, const TensorView& gradients,
                const TensorView& velocity);
void sgd_update(CudaContext&, const SgdOptions& options, std::span<const ArenaSegment> segments, std::int64_t begin,
                const TensorView& learning_rate, const TensorView& parameters, const TensorView& gradients,
                const TensorView& velocity);
}  // namespace backend

}  // namespace lockstep::ops
