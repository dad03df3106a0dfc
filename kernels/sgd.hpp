#pragma once

#include <lockstep/kernels/arena.hpp>
#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/kernels/momentum.hpp>

namespace lockstep::ops {

using SgdOptions = MomentumOptions;

/// Stochastic gradient descent with momentum as PyTorch defines it (Sutskever et al. 2013, without dampening):
///   g = factor * grad + weight_decay * p;  v = momentum * v + g;  p -= lr * (nesterov ? g + momentum * v : v)
/// with lr = learning_rate * learning_rate_scale. velocity (n): of the type of the parameters, zero before the first
/// update. Reads p, g, v once, writes p, v and the copy once. UsageError: momentum out of range, nesterov without
/// momentum, momentum without velocity; and the errors of ArenaUpdate.
void sgd_update(Context& context, const SgdOptions& options, const ArenaUpdate& update, const TensorView& velocity);

namespace backend {  // called after the checks of sgd.cpp
LOCKSTEP_BACKENDS(sgd_update);
}  // namespace backend

}  // namespace lockstep::ops
