#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace lockstep {

enum class DeviceKind : unsigned char { cpu, cuda };

/// Device on which memory lives and work runs. A plain value: lockstep has no current device.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  ///< CUDA index within CUDA_VISIBLE_DEVICES; always 0 for the CPU

  [[nodiscard]] static constexpr Device cpu() { return {DeviceKind::cpu, 0}; }
  [[nodiscard]] static constexpr Device cuda(int index) { return {DeviceKind::cuda, index}; }
  [[nodiscard]] static constexpr Device gpu(int index) { return cuda(index); }
  /// Parses "cpu", "cuda:1", "gpu:1" (= cuda:1), "gpu" and "cuda" (= cuda:0). Throws UsageError for any other text.
  [[nodiscard]] static Device parse(std::string_view text);

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

[[nodiscard]] std::string to_string(const Device& device);
std::ostream& operator<<(std::ostream& out, const Device& device);

/// Returns the number of GPUs that this process can use. Returns 0 on a machine without a driver or a device, and in a
/// build without CUDA. Throws CudaError if the driver returns another error.
[[nodiscard]] int num_gpus();

}  // namespace lockstep
