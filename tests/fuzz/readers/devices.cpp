#include <lockstep/runtime/machine/device_selection.hpp>

#include <algorithm>
#include <optional>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

const std::vector<GpuInfo>& four() {
  static const std::vector<GpuInfo> kGpus{{.index = 0, .uuid = "GPU-5f3e2a10-0", .name = "A"},
                                          {.index = 1, .uuid = "GPU-5f3e2a10-1", .name = "A"},
                                          {.index = 2, .uuid = "GPU-77", .name = "B"},
                                          {.index = 3, .uuid = "GPU-78", .name = "B"}};
  return kGpus;
}

void check_selection(const DeviceRequest& request, const std::vector<GpuInfo>& gpus) {
  std::optional<DeviceSelection> selection;
  if (!accepts<UsageError>([&] { selection = select_devices(request, gpus); })) {
    return;
  }
  const std::vector<Device>& devices = selection->devices;
  check(!devices.empty() && selection->host_ranks >= 0, "nothing selected");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Device device = devices[i];
    check(device == Device::cpu() ? devices.size() == 1
                                  : device.index >= 0 && device.index < static_cast<int>(gpus.size()),
          "a device that is not there");
    check(std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i), device) ==
              devices.begin() + static_cast<std::ptrdiff_t>(i),
          "a device twice");
  }
}

}  // namespace

void devices(Input input) {
  const std::string text = text_of(input);
  std::optional<DeviceRequest> request;
  if (!accepts<UsageError>([&] { request = DeviceRequest::parse(text); })) {
    check(!accepts<UsageError>([&] { (void)parse_devices(text, four); }), "a program takes what parse() refuses");
    return;
  }
  check(request->text() == text, "another text");
  if (const auto* usable = std::get_if<DeviceRequest::Usable>(&request->form())) {
    check(usable->count == -1 || usable->count > 0, "usable: ", usable->count);
    check(request->with_gpus({"GPU-78"}).text() == text, "another text");
    check_selection(request->with_gpus({"GPU-78"}), four());
    return;
  }
  check_selection(*request, four());
  check_selection(*request, {});
}

}  // namespace lockstep::fuzz
