#pragma once

#include <vector>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>

namespace data_parallel {

/// Returns the devices that this process drives for `request` (option --devices). `gpus` are the machine's GPUs
/// (list_gpus()). "auto" means all GPUs, or the host if there are none. The host counts as N devices for cpu:N,
/// otherwise as two, so that there are gradients to sum. Throws UsageError if `gpus` cannot meet the request, and
/// StateError for usable:N (select_devices()).
[[nodiscard]] std::vector<lockstep::Device> devices_of(const lockstep::DeviceRequest& request,
                                                       const std::vector<lockstep::GpuInfo>& gpus);

struct Devices {
  std::vector<lockstep::Device> all;
  lockstep::UsableGpus usable{};  ///< claims on GPUs for usable:N; keep them while the program runs
};

/// Returns the requested devices of this machine. Looks for GPUs only when the request is not for the host. Throws
/// CudaError when the driver answers with an error.
[[nodiscard]] Devices devices_here(const lockstep::DeviceRequest& request);

}  // namespace data_parallel
