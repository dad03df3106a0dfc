#pragma once

#include <lockstep/nn/run/training_run.hpp>

namespace lockstep::nn::detail {

/// What run_training() expects of its arguments, before the first step. best: resolved(). UsageError for options out of
/// range, and on every rank when the ranks differ in them or in where the run stands. Collective.
void require_run(const Trainer& trainer, comm::Communicator& control, const RunOptions& options, const BestBy& best,
                 const RunProgress& progress);

}  // namespace lockstep::nn::detail
