#pragma once

#include <vector>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>

namespace data_parallel {

/// The devices that one process drives, by what --devices asks for and the GPUs there are (list_gpus()), as everywhere:
/// auto is all GPUs, the host where there is none. On the host as many parts as cpu:N says, else two, so that there is
/// something to sum. UsageError when `gpus` cannot meet the request; StateError for usable:N (select_devices()).
[[nodiscard]] std::vector<lockstep::Device> devices_of(const lockstep::DeviceRequest& request,
                                                       const std::vector<lockstep::GpuInfo>& gpus);

struct Devices {
  std::vector<lockstep::Device> all;
  lockstep::UsableGpus usable{};  ///< with usable:N the claims to them, to be held while the program runs
};

/// Those of this machine; asks for GPUs only when the request is not for the host. CudaError when a driver is there and
/// answers with an error.
[[nodiscard]] Devices devices_here(const lockstep::DeviceRequest& request);

}  // namespace data_parallel
