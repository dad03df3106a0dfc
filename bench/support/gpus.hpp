#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/session.hpp>
#include <lockstep/runtime/device.hpp>

namespace lockstep::bench {

/// The GPUs that this process measures: all that were asked for (--devices, docs/devices.md) when it is alone, its own
/// among several ranks. Empty on the host. UsageError on all ranks. Collective.
[[nodiscard]] std::vector<Device> gpus_of_process(comm::Session& session, const std::string& request);

}  // namespace lockstep::bench
