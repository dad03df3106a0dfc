#include "tools/lockstep_devices/nvml.hpp"

#include <algorithm>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

#include "tools/lockstep_devices/nvml_abi.hpp"

namespace lockstep::tools {

using nvml::Device;
using nvml::Result;

/// NVML's functions. An older driver may lack optional functions; find() leaves these null, and the facts that they
/// report are not known.
struct Nvml::Functions {
  explicit Functions(const SharedLibrary& library) {
    library.get(init, "nvmlInit_v2");
    library.get(shutdown, "nvmlShutdown");
    library.find(error_string, "nvmlErrorString");
    library.get(by_uuid, "nvmlDeviceGetHandleByUUID");
    library.find(memory, "nvmlDeviceGetMemoryInfo");
    library.find(max_clock, "nvmlDeviceGetMaxClockInfo");
    library.find(bus_width, "nvmlDeviceGetMemoryBusWidth");
    library.find(compute_mode, "nvmlDeviceGetComputeMode");
    library.find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    library.find(ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    library.find(peer_status, "nvmlDeviceGetP2PStatus");
    library.find(link_state, "nvmlDeviceGetNvLinkState");
    library.find(link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
    library.find(link_remote_pci, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    library.find(pci, "nvmlDeviceGetPciInfo_v3");
  }

  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*by_uuid)(const char*, Device*) = nullptr;
  Result (*memory)(Device, nvml::Memory*) = nullptr;
  Result (*max_clock)(Device, int, unsigned int*) = nullptr;
  Result (*bus_width)(Device, unsigned int*) = nullptr;
  Result (*compute_mode)(Device, int*) = nullptr;
  Result (*processes)(Device, unsigned int*, nvml::ProcessInfo*) = nullptr;
  Result (*ancestor)(Device, Device, int*) = nullptr;
  Result (*peer_status)(Device, Device, int, int*) = nullptr;
  Result (*link_state)(Device, unsigned int, int*) = nullptr;
  Result (*link_remote_type)(Device, unsigned int, int*) = nullptr;
  Result (*link_remote_pci)(Device, unsigned int, nvml::PciInfo*) = nullptr;
  Result (*pci)(Device, nvml::PciInfo*) = nullptr;
};

namespace {

/// Calls `function` if it is not null. Returns true if the call succeeds.
template <class... Parameters, class... Args>
bool works(Result (*function)(Parameters...), Args... args) {
  return function != nullptr && function(args...) == nvml::kSuccess;
}

std::string mode_name(int mode) {
  static constexpr const char* kNames[] = {"default", "exclusive thread", "prohibited", "exclusive process"};
  return mode >= 0 && mode <= nvml::kExclusiveProcess ? kNames[mode] : concat("mode ", mode);
}

std::optional<std::string> level_name(int level) {
  // The index is TopologyLevel / 10.
  static constexpr const char* kNames[] = {"INT", "PIX", "PXB", "PHB", "NODE", "SYS"};
  return level >= 0 && level <= nvml::kSystem && level % 10 == 0 ? std::optional<std::string>(kNames[level / 10])
                                                                 : std::nullopt;
}

bool same_place(const nvml::PciInfo& a, const nvml::PciInfo& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

}  // namespace

std::unique_ptr<Nvml> Nvml::open(std::string& why, const std::string& library) {
  try {
    SharedLibrary opened({library});
    auto functions = std::make_unique<Functions>(opened);
    if (const Result result = functions->init(); result != nvml::kSuccess) {
      why = concat(library, " cannot start: ",
                   functions->error_string != nullptr ? functions->error_string(result) : std::to_string(result));
      return nullptr;
    }
    return std::unique_ptr<Nvml>(new Nvml(std::move(opened), std::move(functions)));
  } catch (const UnsupportedError& error) {
    why = concat(error.what(), " (NVML comes with the driver)");
    return nullptr;
  }
}

Nvml::Nvml(SharedLibrary library, std::unique_ptr<Functions> functions)
    : library_(std::move(library)), functions_(std::move(functions)) {}

Nvml::~Nvml() {
  static_cast<void>(functions_->shutdown());
}

NvmlGpu Nvml::gpu(const std::string& uuid) const {
  NvmlGpu result;
  const Functions& f = *functions_;
  Device device = nullptr;
  if (!works(f.by_uuid, uuid.c_str(), &device)) {
    return result;
  }
  if (nvml::Memory memory{}; works(f.memory, device, &memory)) {
    result.memory_used = memory.used;
    result.memory_free = memory.free;
  }
  if (unsigned int mhz = 0; works(f.max_clock, device, nvml::kMemoryClock, &mhz)) {
    result.memory_clock_mhz = static_cast<int>(mhz);
  }
  if (unsigned int bits = 0; works(f.bus_width, device, &bits)) {
    result.memory_bus_bits = static_cast<int>(bits);
  }
  if (int mode = 0; works(f.compute_mode, device, &mode)) {
    result.compute_mode = mode_name(mode);
  }
  // Leaves room for more processes than are running: processes may start between two calls.
  std::vector<nvml::ProcessInfo> processes(64);
  for (int attempt = 0; f.processes != nullptr && attempt < 4; ++attempt) {
    auto count = static_cast<unsigned int>(processes.size());
    const Result status = f.processes(device, &count, processes.data());
    if (status == nvml::kInsufficientSize) {
      processes.resize(std::size_t{2} * std::max<std::size_t>(count, processes.size()));
      continue;
    }
    if (status == nvml::kSuccess) {
      result.processes.emplace();
      for (unsigned int i = 0; i < count; ++i) {
        const unsigned long long bytes = processes[i].used_gpu_memory;
        result.processes->push_back(
            {.pid = static_cast<int>(processes[i].pid),
             .memory_bytes = bytes == ~0ULL ? std::nullopt : std::optional<std::uint64_t>(bytes)});
      }
    }
    break;
  }
  return result;
}

GpuLink Nvml::link(const std::string& from_uuid, const std::string& to_uuid) const {
  GpuLink result;
  const Functions& f = *functions_;
  Device from = nullptr;
  Device to = nullptr;
  if (!works(f.by_uuid, from_uuid.c_str(), &from) || !works(f.by_uuid, to_uuid.c_str(), &to)) {
    return result;
  }
  if (int level = 0; works(f.ancestor, from, to, &level)) {
    result.nearest = level_name(level);
  }
  if (int status = 0; works(f.peer_status, from, to, nvml::kPeerRead, &status)) {
    result.peer_read = status == nvml::kPeerOk;
  }
  nvml::PciInfo place{};
  if (!works(f.pci, to, &place) || f.link_state == nullptr || f.link_remote_type == nullptr) {
    return result;
  }
  int direct = 0;
  const auto count = [&](Device device, bool directly) {
    int switched = 0;
    for (unsigned int i = 0; i < nvml::kMaxLinks; ++i) {
      int active = 0;
      int type = 0;
      if (!works(f.link_state, device, i, &active) || active == 0 || !works(f.link_remote_type, device, i, &type)) {
        continue;
      }
      nvml::PciInfo remote{};
      switched += type == nvml::kSwitch ? 1 : 0;
      direct +=
          directly && type == nvml::kGpu && works(f.link_remote_pci, device, i, &remote) && same_place(remote, place)
              ? 1
              : 0;
    }
    return switched;
  };
  // All switches of a machine are connected: a link into a switch reaches every GPU that has a link into any switch.
  const int switched_from = count(from, true);
  result.nvlinks = direct + std::min(switched_from, count(to, false));
  return result;
}

}  // namespace lockstep::tools
