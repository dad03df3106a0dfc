// A made-up libnvidia-ml with three GPUs, "GPU-0" to "GPU-2":
//   0  exclusive process, two processes; 4 NVLinks to GPU 1, 2 to switches
//   1  100 processes; 4 NVLinks to GPU 0, 1 to a switch, 1 that is down
//   2  reports only its mode; no NVLink, on the other socket, no peer access
// The environment variable FAKE_NVML_INIT sets the result of nvmlInit_v2().
#include <cstdlib>
#include <cstring>

#include "tools/lockstep_devices/nvml_abi.hpp"

namespace nvml = lockstep::tools::nvml;
using nvml::Device;
using nvml::Result;

namespace {

constexpr Result kNotSupported = 3;
constexpr Result kNotFound = 6;
constexpr unsigned long long kGiB = 1ULL << 30;
int started = 0;

Device device_of(int index) {
  return reinterpret_cast<Device>(static_cast<std::size_t>(index) + 1);
}
int index_of(Device device) {
  return static_cast<int>(reinterpret_cast<std::size_t>(device)) - 1;
}
nvml::PciInfo place_of(int index) {
  nvml::PciInfo place{};
  place.bus = 0x10U + static_cast<unsigned int>(index);
  return place;
}

/// Returns the peer of a link: -1 for no peer, -2 for a switch, otherwise the number of a GPU.
int remote(int gpu, unsigned int link) {
  if (gpu == 2 || link > 5 || (gpu == 1 && link == 5)) {
    return -1;
  }
  return link < 4 ? 1 - gpu : -2;
}

}  // namespace

extern "C" {

Result nvmlInit_v2() {
  const char* answer = std::getenv("FAKE_NVML_INIT");
  started += answer == nullptr ? 1 : 0;
  return answer == nullptr ? nvml::kSuccess : std::atoi(answer);
}
Result nvmlShutdown() {
  --started;
  return nvml::kSuccess;
}
const char* nvmlErrorString(Result) {
  return "Driver Not Loaded";
}

Result nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  if (started != 1 || std::strlen(uuid) != 5 || uuid[4] < '0' || uuid[4] > '2') {
    return kNotFound;
  }
  *device = device_of(uuid[4] - '0');
  return nvml::kSuccess;
}

Result nvmlDeviceGetMemoryInfo(Device device, nvml::Memory* memory) {
  if (index_of(device) == 2) {
    return kNotSupported;
  }
  *memory = {80 * kGiB, 50 * kGiB, 30 * kGiB};
  return nvml::kSuccess;
}

Result nvmlDeviceGetMaxClockInfo(Device device, int clock, unsigned int* mhz) {
  if (index_of(device) == 2 || clock != nvml::kMemoryClock) {
    return kNotSupported;
  }
  *mhz = 2619;
  return nvml::kSuccess;
}

Result nvmlDeviceGetMemoryBusWidth(Device device, unsigned int* bits) {
  if (index_of(device) == 2) {
    return kNotSupported;
  }
  *bits = 5120;
  return nvml::kSuccess;
}

Result nvmlDeviceGetComputeMode(Device device, int* mode) {
  constexpr int kModes[] = {nvml::kExclusiveProcess, nvml::kDefault, nvml::kProhibited};
  *mode = kModes[index_of(device)];
  return nvml::kSuccess;
}

Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int* count, nvml::ProcessInfo* processes) {
  if (index_of(device) == 2) {
    return kNotSupported;
  }
  const unsigned int there = index_of(device) == 0 ? 2 : 100;
  const unsigned int room = *count;
  *count = there;
  if (room < there) {
    return nvml::kInsufficientSize;
  }
  for (unsigned int i = 0; i < there; ++i) {
    processes[i] = {1000 + i, i == 1 ? ~0ULL : 29 * kGiB, ~0U, ~0U};
  }
  return nvml::kSuccess;
}

Result nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int* level) {
  *level = index_of(a) == 2 || index_of(b) == 2 ? nvml::kSystem : nvml::kHostBridge;
  return nvml::kSuccess;
}

Result nvmlDeviceGetP2PStatus(Device a, Device b, int what, int* status) {
  if (what != nvml::kPeerRead) {
    return kNotSupported;
  }
  *status = index_of(a) == 2 || index_of(b) == 2 ? 5 : nvml::kPeerOk;
  return nvml::kSuccess;
}

Result nvmlDeviceGetNvLinkState(Device device, unsigned int link, int* active) {
  if (index_of(device) == 2 || link > 5) {
    return kNotSupported;
  }
  *active = remote(index_of(device), link) == -1 ? 0 : 1;
  return nvml::kSuccess;
}

Result nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned int link, int* type) {
  *type = remote(index_of(device), link) == -2 ? nvml::kSwitch : nvml::kGpu;
  return nvml::kSuccess;
}

Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned int link, nvml::PciInfo* place) {
  *place = place_of(remote(index_of(device), link));
  return nvml::kSuccess;
}

Result nvmlDeviceGetPciInfo_v3(Device device, nvml::PciInfo* place) {
  *place = place_of(index_of(device));
  return nvml::kSuccess;
}

}  // extern "C"
