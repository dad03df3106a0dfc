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
  std::shared_ptr<const UsableGpus> claims{};  ///< claims to the GPUs of --devices usable:N, until this object ends
};

/// Returns the GPUs that this process measures; none on the host. A single rank gets all GPUs of --devices
/// (docs/devices.md). If there are several ranks, each rank gets its own GPU. Throws UsageError on all ranks if the
/// devices do not fit the number of ranks, for example cpu:N with another number of ranks. Throws DeviceError if
/// usable:N finds too few GPUs. Collective.
[[nodiscard]] ProcessGpus gpus_of_process(comm::Session& session, const DeviceRequest& request);

}  // namespace lockstep::bench
