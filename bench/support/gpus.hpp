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
  std::shared_ptr<const UsableGpus> claims{};  ///< claims of usable:N; keep them until measuring ends
};

/// Returns the GPUs that this process measures. A single rank gets all GPUs of --devices (docs/devices.md); one of
/// several ranks gets its own GPU. Empty on the host. Throws UsageError on all ranks, also for cpu:N with another
/// number of ranks; DeviceError for usable:N. Collective.
[[nodiscard]] ProcessGpus gpus_of_process(comm::Session& session, const DeviceRequest& request);

}  // namespace lockstep::bench
