#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

struct AdamOptions {
  double beta1 = 0.9;    ///< weight of the old first moment in the new one, in [0, 1)
  double beta2 = 0.999;  ///< weight of the old second moment in the new one, in [0, 1)
  /// Must be above 0 when rounded to the parameters' type. Otherwise a parameter whose gradients were all 0 would
  /// become NaN (0 / 0).
  double epsilon = 1e-8;
  bool decoupled = false;  ///< true: AdamW, whose weight decay shrinks the parameters and does not enter the moments
};

/// Throws UsageError when an option is out of range for parameters of type `dtype`; `op` names the caller.
void require_adam_options(std::string_view op, const AdamOptions& options, DType dtype);

/// Updates by Adam (Kingma and Ba 2015, algorithm 1) or AdamW (Loshchilov and Hutter 2019, algorithm 2) as in PyTorch:
///   g = factor * grad                         adam: + weight_decay * p;   AdamW: p *= 1 - lr * weight_decay
///   m = beta1 * m + (1 - beta1) * g;          v = beta2 * v + (1 - beta2) * g^2
///   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
/// with lr = learning_rate * learning_rate_scale and t = step (i64 scalar). step is the number of this update, counted
/// from 1; values below 1 count as 1. Powers are computed in f64. first_moment and second_moment have shape (n) and the
/// type of the parameters; both are zero before the first update. Each of p, g, m and v is read once; p, m, v and
/// update.copy are written once. Throws UsageError for options out of range and for missing moments, and the errors of
/// require_arena_update().
void adam_update(Context& context, const AdamOptions& options, const ArenaUpdate& update, const TensorView& step,
                 const TensorView& first_moment, const TensorView& second_moment);

namespace backend {  // the functions that adam.cpp calls after its checks
LOCKSTEP_BACKENDS(adam_update);
}  // namespace backend

}  // namespace lockstep::ops
