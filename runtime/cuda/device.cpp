#include <lockstep/runtime/machine/device.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

namespace lockstep {

namespace {

/// Formats a UUID as nvidia-smi does for a whole GPU: "GPU-" and groups of 8, 4, 4, 4 and 12 hexadecimal digits.
std::string uuid_text(const cudaUUID_t& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      text += '-';
    }
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

}  // namespace

int num_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // These errors mean: no driver, a driver too old for this build, the toolkit's stub of the driver, or no device.
  if (status == cudaErrorInsufficientDriver || status == cudaErrorStubLibrary || status == cudaErrorNoDevice) {
    cuda::ignore(status);
    return 0;
  }
  if (status != cudaSuccess) {
    cuda::ignore(status);
    throw CudaError(
        concat("cudaGetDeviceCount failed: ", cudaGetErrorName(status), " (", cudaGetErrorString(status), ")"));
  }
  return count;
}

std::vector<GpuInfo> list_gpus() {
  std::vector<GpuInfo> gpus;
  const int count = num_gpus();
  for (int index = 0; index < count; ++index) {
    const Device device = Device::cuda(index);
    cudaDeviceProp properties{};
    LOCKSTEP_CUDA_CHECK(device, cudaGetDeviceProperties(&properties, index));
    std::array<char, 32> pci{};
    LOCKSTEP_CUDA_CHECK(device, cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), index));
    std::transform(pci.begin(), pci.end(), pci.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));  // names in /sys/bus/pci/devices are in lower case
    });
    gpus.push_back({.index = index,
                    .uuid = uuid_text(properties.uuid),
                    .pci = pci.data(),
                    .name = properties.name,
                    .memory_bytes = properties.totalGlobalMem,
                    .major = properties.major,
                    .minor = properties.minor});
  }
  return gpus;
}

namespace detail {

void require_cuda_device(Device device) {
  require<DeviceError>(device.kind == DeviceKind::cuda, "device is ", device, ", expected a CUDA device");
  const int count = num_gpus();
  if (count == 0) {
    throw DeviceError(concat(device, " cannot be used: ", lockstep::why_no_gpus()));
  }
  require<DeviceError>(device.index >= 0 && device.index < count, device, " does not exist: this process can use ",
                       count, " CUDA device(s), expected one of them");
}

}  // namespace detail
}  // namespace lockstep
