#pragma once

#include <new>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Makes a device the calling thread's current device; the destructor restores the former device. If the device is
/// already current, the guard costs one cheap call; otherwise the guard pushes and pops the device's context. So
/// programs should call make_current() once at their start. The destructor does not use cudaSetDevice(), because
/// cudaSetDevice() would make a context on the former device if none exists there.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);  ///< throws CudaError if the device cannot be made current
  /// For destructors: if the device cannot be made current, the former device stays current.
  DeviceGuard(Device device, std::nothrow_t) noexcept;
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int restore_ = -1;  ///< index of the device whose context the destructor pops; -1: nothing to restore
};

}  // namespace lockstep::cuda
