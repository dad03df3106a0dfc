#include "tools/lockstep_devices/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include <lockstep/runtime/error.hpp>

#include "tools/lockstep_devices/nvml_abi.hpp"

namespace lockstep::tools {

using nvml::Device;
using nvml::Result;

/// A function that a driver does not have is null, and what it tells is not known.
struct Nvml::Functions {
  explicit Functions(void* library) {
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlShutdown", shutdown);
    load(library, "nvmlErrorString", error_string);
    load(library, "nvmlDeviceGetHandleByUUID", by_uuid);
    load(library, "nvmlDeviceGetMemoryInfo", memory);
    load(library, "nvmlDeviceGetComputeMode", compute_mode);
    load(library, "nvmlDeviceGetComputeRunningProcesses_v3", processes);
    load(library, "nvmlDeviceGetTopologyCommonAncestor", ancestor);
    load(library, "nvmlDeviceGetP2PStatus", peer_status);
    load(library, "nvmlDeviceGetNvLinkState", link_state);
    load(library, "nvmlDeviceGetNvLinkRemoteDeviceType", link_remote_type);
    load(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", link_remote_pci);
    load(library, "nvmlDeviceGetPciInfo_v3", pci);
  }

  template <class Function>
  static void load(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
  }

  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*by_uuid)(const char*, Device*) = nullptr;
  Result (*memory)(Device, nvml::Memory*) = nullptr;
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

/// The function exists and succeeds.
template <class... Parameters, class... Args>
bool works(Result (*function)(Parameters...), Args... args) {
  return function != nullptr && function(args...) == nvml::kSuccess;
}

std::string mode_name(int mode) {
  switch (mode) {
    case nvml::kDefault:
      return "default";
    case nvml::kExclusiveThread:
      return "exclusive thread";
    case nvml::kProhibited:
      return "prohibited";
    case nvml::kExclusiveProcess:
      return "exclusive process";
    default:
      return concat("mode ", mode);
  }
}

std::optional<std::string> level_name(int level) {
  switch (level) {
    case nvml::kInternal:
      return "INT";
    case nvml::kSingle:
      return "PIX";
    case nvml::kMultiple:
      return "PXB";
    case nvml::kHostBridge:
      return "PHB";
    case nvml::kNode:
      return "NODE";
    case nvml::kSystem:
      return "SYS";
    default:
      return std::nullopt;
  }
}

bool same_place(const nvml::PciInfo& a, const nvml::PciInfo& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

}  // namespace

std::unique_ptr<Nvml> Nvml::open(std::string& why, const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    why = concat(library, " is not there (it comes with the driver)");
    return nullptr;
  }
  auto functions = std::make_unique<Functions>(handle);
  if (functions->init == nullptr || functions->shutdown == nullptr || functions->by_uuid == nullptr) {
    why = concat(library, " lacks functions of NVML");
    ::dlclose(handle);
    return nullptr;
  }
  if (const Result result = functions->init(); result != nvml::kSuccess) {
    why = concat(library, " cannot start: ",
                 functions->error_string != nullptr ? functions->error_string(result) : std::to_string(result));
    ::dlclose(handle);
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(handle, std::move(functions)));
}

Nvml::Nvml(void* library, std::unique_ptr<Functions> functions) : library_(library), functions_(std::move(functions)) {}

Nvml::~Nvml() {
  static_cast<void>(functions_->shutdown());
  ::dlclose(library_);
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
  if (int mode = 0; works(f.compute_mode, device, &mode)) {
    result.compute_mode = mode_name(mode);
  }
  // Processes come and go between asking how many there are and asking for them: room for more.
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
  // All switches of a machine are connected with each other: a link into one reaches every GPU that has one.
  const int switched_from = count(from, true);
  result.nvlinks = direct + std::min(switched_from, count(to, false));
  return result;
}

}  // namespace lockstep::tools
