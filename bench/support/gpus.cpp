#include "bench/support/gpus.hpp"

#include <lockstep/comm/rank_device.hpp>
#include <lockstep/runtime/device_selection.hpp>

namespace lockstep::bench {

std::vector<Device> gpus_of_process(comm::Session& session, const std::string& request) {
  DeviceRequest wanted;
  std::vector<Device> devices;
  session.agree([&] { wanted = DeviceRequest::parse(request); });
  if (session.size() > 1) {
    devices = {comm::device_of_rank(session, wanted).device};
  } else {
    session.agree([&] { devices = select_devices(wanted, list_gpus()).devices; });
  }
  std::erase_if(devices, [](const Device& device) { return device.kind == DeviceKind::cpu; });
  return devices;
}

}  // namespace lockstep::bench
