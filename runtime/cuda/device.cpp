#include <lockstep/runtime/device.hpp>

#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda_backend.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep {

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // No driver, one that is too old for this build, the toolkit's link-time stand-in for it, or no device.
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

namespace detail {

void require_cuda_device(Device device) {
  require<DeviceError>(device.kind == DeviceKind::cuda, "device is ", device, ", expected a CUDA device");
  const int count = cuda_device_count();
  require<DeviceError>(device.index >= 0 && device.index < count, device, " does not exist: this process can use ",
                       count, " CUDA device(s)");
}

}  // namespace detail
}  // namespace lockstep
