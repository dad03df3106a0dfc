#include "bench/support/gpus.hpp"

#include <string>
#include <variant>

#include <lockstep/comm/launch/rank_device.hpp>

namespace lockstep::bench {

ProcessGpus gpus_of_process(comm::Session& session, const DeviceRequest& request) {
  DeviceRequest wanted = request;
  ProcessGpus found;
  if (session.size() > 1 || std::holds_alternative<DeviceRequest::Host>(wanted.form())) {
    const comm::RankDevice placed = comm::place_rank(session, wanted);
    found = {.devices = {placed.device}, .claims = placed.claims};
  } else {
    session.agree([&] {
      const std::vector<GpuInfo> gpus = list_gpus();
      if (const auto* usable = std::get_if<DeviceRequest::Usable>(&wanted.form())) {
        found.claims = std::make_shared<const UsableGpus>(find_usable_gpus(usable->count));
        std::vector<std::string> uuids;
        for (const GpuInfo& gpu : found.claims->gpus) {
          uuids.push_back(gpu.uuid);
        }
        wanted = wanted.with_gpus(uuids);
      }
      found.devices = select_devices(wanted, gpus).devices;
    });
  }
  std::erase_if(found.devices, [](const Device& device) { return device.kind == DeviceKind::cpu; });
  return found;
}

}  // namespace lockstep::bench
