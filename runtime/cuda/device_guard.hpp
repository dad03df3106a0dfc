#pragma once

#include <new>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Makes a device the calling thread's current one; the destructor restores the former one. It costs one cheap call
/// when the device is already current, and programs should arrange for that (make_current()). Else a context is pushed
/// and popped through the driver: cudaSetDevice(), to switch back, would make one on a device that nobody uses.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);                  ///< CudaError when the device cannot be made current
  DeviceGuard(Device device, std::nothrow_t) noexcept;  ///< for destructors: on failure the device stays as it is
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int restore_ = -1;  ///< -1: nothing to put back
};

}  // namespace lockstep::cuda
