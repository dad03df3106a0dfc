#pragma once

#include <new>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Makes a device the calling thread's current one and puts the former one back. Costs one cheap call when the device
/// is current already, which is what programs arrange for: since CUDA 12 making a device current creates its primary
/// context, so switching back to a device that the program does not use would take memory there.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);                  ///< CudaError when the device cannot be made current
  DeviceGuard(Device device, std::nothrow_t) noexcept;  ///< for destructors: goes on without then
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int restore_ = -1;  ///< -1: nothing to put back
};

}  // namespace lockstep::cuda
