#pragma once

#include <new>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Makes a device the calling thread's current device; the destructor restores the former device. Costs one cheap call
/// when the device is already current, which programs should ensure (make_current()). Otherwise the driver pushes and
/// pops a context: to switch back with cudaSetDevice() would make a context on a device that nobody uses.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);                  ///< CudaError when the device cannot be made current
  DeviceGuard(Device device, std::nothrow_t) noexcept;  ///< for destructors: on failure the device stays as it is
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int restore_ = -1;  ///< -1: nothing to restore
};

}  // namespace lockstep::cuda
