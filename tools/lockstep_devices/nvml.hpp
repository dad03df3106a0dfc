#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/shared_library.hpp>

namespace lockstep::tools {

struct GpuProcess {
  int pid = 0;
  std::optional<std::uint64_t> memory_bytes{};
};

/// Facts about one GPU. A member is empty if NVML does not report the fact.
struct NvmlGpu {
  std::optional<std::uint64_t> memory_used{};  ///< used memory in bytes, with the driver's own memory
  std::optional<std::uint64_t> memory_free{};
  std::optional<int> memory_clock_mhz{};  ///< highest clock of the memory
  std::optional<int> memory_bus_bits{};
  std::optional<std::string> compute_mode{};  ///< "default", "exclusive process", "prohibited"
  std::optional<std::vector<GpuProcess>> processes{};
};

/// The connection between two GPUs.
struct GpuLink {
  /// Number of NVLinks between the GPUs. If they run through switches, the smaller of the two GPUs' numbers of NVLinks.
  std::optional<int> nvlinks{};
  /// The nearest common point on PCIe, as nvidia-smi writes it: PIX, PXB, PHB, NODE, SYS.
  std::optional<std::string> nearest{};
  std::optional<bool> peer_read{};  ///< true: the first GPU can read the second GPU's memory
};

/// NVIDIA's management library (NVML). It is loaded at run time, because it comes with the driver and may be missing.
/// Queries make no context on a GPU. Only one thread may use an object.
class Nvml {
 public:
  /// Returns null when the library is missing or cannot start; `why` then has the reason.
  static std::unique_ptr<Nvml> open(std::string& why, const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] NvmlGpu gpu(const std::string& uuid) const;
  [[nodiscard]] GpuLink link(const std::string& from_uuid, const std::string& to_uuid) const;

 private:
  struct Functions;
  Nvml(SharedLibrary library, std::unique_ptr<Functions> functions);
  SharedLibrary library_;
  std::unique_ptr<Functions> functions_;
};

}  // namespace lockstep::tools
