#pragma once

#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Checks the arguments of run_training() before the first step. Throws UsageError for options out of range. Also
/// throws UsageError on every rank if the ranks differ in options or in the position of the run. Collective.
void require_run(const RunArguments& run, const RunProgress& progress);

}  // namespace lockstep::nn::detail
