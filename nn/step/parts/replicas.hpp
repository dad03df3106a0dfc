#pragma once

#include <cstdint>
#include <string>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace lockstep::nn {

// Comparisons of what all ranks have alike, over `control`, which takes host tensors. Collective. The caller has waited
// for the device, as a copy to pageable memory waits without checking the communicator.

/// TrainStep::require_same_state(): UsageError on every rank when states, or lines of `more`, differ.
void require_same_state(Context& context, const ParameterSet& parameters, comm::Communicator& control,
                        const std::string& more);
/// TrainStep::check_replicas(): comm::ReplicaError on every rank when parameters differ after that step.
void check_replicas(Context& context, const ParameterSet& parameters, comm::Communicator& control, std::int64_t step);

}  // namespace lockstep::nn
