#include "bench/support/gpus.hpp"

#include <variant>

#include <lockstep/comm/rank_device.hpp>
#include <lockstep/runtime/device_selection.hpp>

namespace lockstep::bench {

ProcessGpus gpus_of_process(comm::Session& session, const std::string& request) {
  DeviceRequest wanted;
  ProcessGpus found;
  session.agree([&] { wanted = DeviceRequest::parse(request); });
  if (session.size() > 1) {
    const comm::RankDevice placed = comm::device_of_rank(session, wanted);
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
