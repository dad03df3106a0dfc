#include <lockstep/runtime/cuda/device_guard.hpp>

#include <array>
#include <atomic>
#include <cstddef>

#include <lockstep/runtime/cuda/driver.hpp>

namespace lockstep::cuda {
namespace {

/// The functions of the CUDA driver that handle contexts.
struct Driver {
  explicit Driver(Device of) : device(of) {}
  Device device;
  LOCKSTEP_DRIVER_FUNCTION(get_device, cuCtxGetDevice);
  LOCKSTEP_DRIVER_FUNCTION(get_state, cuDevicePrimaryCtxGetState);
  LOCKSTEP_DRIVER_FUNCTION(retain, cuDevicePrimaryCtxRetain);
  LOCKSTEP_DRIVER_FUNCTION(release, cuDevicePrimaryCtxRelease);
  LOCKSTEP_DRIVER_FUNCTION(push, cuCtxPushCurrent);
  LOCKSTEP_DRIVER_FUNCTION(pop, cuCtxPopCurrent);
};

const Driver& driver(Device device) {
  static const Driver once(device);
  return once;
}

/// Returns the device's primary context. After the call, the context exists and the CUDA runtime keeps it.
/// cudaInitDevice() makes the context, also after the host program has called cudaDeviceReset(). The CUdevice of a
/// device is the device's index.
CUcontext primary_context(Device device) {
  static std::array<std::atomic<CUcontext>, 256> known{};
  std::atomic<CUcontext>& place = known.at(static_cast<std::size_t>(device.index));
  unsigned int flags = 0;
  int active = 0;
  if (place.load() != nullptr) {
    check_driver(driver(device).get_state(device.index, &flags, &active), "cuDevicePrimaryCtxGetState", device);
  }
  if (active == 0) {
    LOCKSTEP_CUDA_CHECK(device, cudaInitDevice(device.index, 0, 0));
    CUcontext context = nullptr;
    check_driver(driver(device).retain(&context, device.index), "cuDevicePrimaryCtxRetain", device);
    place = context;  // stays valid: the runtime has retained the context, too, and never releases it
    check_driver(driver(device).release(device.index), "cuDevicePrimaryCtxRelease", device);
  }
  return place;
}

/// Makes the device current. Returns true if it has pushed a context, which the caller must pop. If the thread has no
/// current context, but CUDA has selected this device for the thread, the device's context becomes current and stays
/// current. Then the result is false.
bool make_current(Device device) {
  CUdevice current = 0;
  const CUresult status = driver(device).get_device(&current);
  if (status == CUDA_SUCCESS && current == device.index) [[likely]] {
    return false;
  }
  if (status == CUDA_ERROR_INVALID_CONTEXT || status == CUDA_ERROR_NOT_INITIALIZED) {
    int chosen = 0;
    LOCKSTEP_CUDA_CHECK(device, cudaGetDevice(&chosen));
    if (chosen == device.index) {
      LOCKSTEP_CUDA_CHECK(device, cudaSetDevice(chosen));
      return false;
    }
  } else {
    check_driver(status, "cuCtxGetDevice", device);
  }
  check_driver(driver(device).push(primary_context(device)), "cuCtxPushCurrent", device);
  return true;
}

}  // namespace

DeviceGuard::DeviceGuard(Device device) {
  restore_ = cuda::make_current(device) ? device.index : -1;
}

DeviceGuard::DeviceGuard(Device device, std::nothrow_t) noexcept {
  try {
    restore_ = cuda::make_current(device) ? device.index : -1;
  } catch (const std::exception&) {  // ignored: the current device stays as it is
  }
}

DeviceGuard::~DeviceGuard() {
  if (restore_ >= 0) {
    CUcontext popped = nullptr;
    static_cast<void>(driver(Device::cuda(restore_)).pop(&popped));
  }
}

}  // namespace lockstep::cuda
