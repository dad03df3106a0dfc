#include <lockstep/runtime/cuda/device_guard.hpp>

#include <lockstep/runtime/cuda/check.hpp>

namespace lockstep::cuda {

DeviceGuard::DeviceGuard(Device device) {
  int current = 0;
  LOCKSTEP_CUDA_CHECK(device, cudaGetDevice(&current));
  if (current != device.index) {
    LOCKSTEP_CUDA_CHECK(device, cudaSetDevice(device.index));
    restore_ = current;
  }
}

DeviceGuard::DeviceGuard(Device device, std::nothrow_t) noexcept {
  int current = 0;
  const cudaError_t status = cudaGetDevice(&current);
  cuda::ignore(status);
  if (status == cudaSuccess && current != device.index) {
    const cudaError_t changed = cudaSetDevice(device.index);
    cuda::ignore(changed);
    restore_ = changed == cudaSuccess ? current : -1;
  }
}

DeviceGuard::~DeviceGuard() {
  if (restore_ >= 0) {
    ignore(cudaSetDevice(restore_));
  }
}

}  // namespace lockstep::cuda
