#pragma once

#include <memory>
#include <vector>

#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>

namespace lockstep::bench {

struct ProcessGpus {
  std::vector<Device> devices{};
  std::shared_ptr<const UsableGpus> claims{};  ///< with usable:N; to be kept for as long as is measured
};

/// The GPUs that this process measures: all that were asked for (--devices, docs/devices.md) when it is alone, its own
/// among several ranks. Empty on the host. UsageError on all ranks, also for cpu:N and another number of ranks;
/// DeviceError for usable:N. Collective.
[[nodiscard]] ProcessGpus gpus_of_process(comm::Session& session, const DeviceRequest& request);

}  // namespace lockstep::bench
