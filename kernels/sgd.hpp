#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops {

using SgdOptions = MomentumOptions;

/// Updates by stochastic gradient descent with momentum as PyTorch defines it (Sutskever et al. 2013, without
/// dampening):
///   g = factor * grad + weight_decay * p;  v = momentum * v + g;  p -= lr * (nesterov ? g + momentum * v : v)
/// with lr = learning_rate * learning_rate_scale. velocity (n) has the type of the parameters, and is zero before the
/// first update. Reads p, g and v once; writes p, v and update.copy once. Throws UsageError for a momentum out of
/// range, nesterov without momentum, and momentum without velocity; and the errors of require_arena_update().
void sgd_update(Context& context, const SgdOptions& options, const ArenaUpdate& update, const TensorView& velocity);

namespace backend {  // the functions that sgd.cpp calls after its checks
LOCKSTEP_BACKENDS(sgd_update);
}  // namespace backend

}  // namespace lockstep::ops
