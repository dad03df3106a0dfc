#include "devices.hpp"

#include <string>
#include <utility>
#include <variant>

namespace data_parallel {

using lockstep::Device;
using lockstep::DeviceRequest;

std::vector<Device> devices_of(const DeviceRequest& request, const std::vector<lockstep::GpuInfo>& gpus) {
  const lockstep::DeviceSelection selected = select_devices(request, gpus);
  if (!selected.on_host()) {
    return selected.devices;
  }
  const int parts = selected.host_ranks > 0 ? selected.host_ranks : 2;
  return std::vector<Device>(static_cast<std::size_t>(parts), Device::cpu());
}

Devices devices_here(const DeviceRequest& request) {
  if (std::holds_alternative<DeviceRequest::Host>(request.form())) {
    return {.all = devices_of(request, {})};
  }
  if (const auto* usable = std::get_if<DeviceRequest::Usable>(&request.form())) {
    lockstep::UsableGpus found = lockstep::find_usable_gpus(usable->count);
    std::vector<std::string> uuids;
    for (const lockstep::GpuInfo& gpu : found.gpus) {
      uuids.push_back(gpu.uuid);
    }
    return {.all = devices_of(request.with_gpus(uuids), lockstep::list_gpus()), .usable = std::move(found)};
  }
  return {.all = devices_of(request, lockstep::list_gpus())};
}

}  // namespace data_parallel
