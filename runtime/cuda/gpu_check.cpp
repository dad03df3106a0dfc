#include <lockstep/runtime/machine/gpu_check.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

namespace lockstep {
namespace {

/// Returns a GpuState whose members that need no call to the device are set: device, toolkit, driver, stub, devices and
/// built_for.
GpuState driver_state(Device device) {
  GpuState state{.device = device, .toolkit = CUDART_VERSION, .built_for = LOCKSTEP_BUILT_FOR};
  state.devices = num_gpus();
  cuda::ignore(cudaDriverGetVersion(&state.driver));  // without a driver, this call sets 0 and may return an error
  if (state.devices == 0) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    cuda::ignore(status);
    state.stub = status == cudaErrorStubLibrary;
  }
  return state;
}

int attribute(cudaDeviceAttr which, Device device) {
  int value = 0;
  LOCKSTEP_CUDA_CHECK(device, cudaDeviceGetAttribute(&value, which, device.index));
  return value;
}

GpuState::Mode mode_of(int mode) {
  switch (mode) {
    case cudaComputeModeExclusive:
    case cudaComputeModeExclusiveProcess:
      return GpuState::Mode::exclusive;
    case cudaComputeModeProhibited:
      return GpuState::Mode::prohibited;
    default:
      return GpuState::Mode::shared;
  }
}

/// Makes the device's context and reads the device's free and total memory into `state`.
cudaError_t open(Device device, GpuState& state) {
  cudaError_t status = cudaInitDevice(device.index, 0, 0);
  if (status == cudaSuccess) {
    const cuda::DeviceGuard guard(device);
    status = cudaMemGetInfo(&state.free, &state.total);
  }
  cuda::ignore(status);
  return status;
}

}  // namespace

GpuState gpu_state(Device device) {
  GpuState state = driver_state(device);
  if (device.kind != DeviceKind::cuda || device.index < 0 || device.index >= state.devices) {
    return state;
  }
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(device, cudaGetDeviceProperties(&properties, device.index));
  state.name = properties.name;
  state.major = properties.major;
  state.minor = properties.minor;
  state.mode = mode_of(attribute(cudaDevAttrComputeMode, device));
  if (state.mode == GpuState::Mode::prohibited || !runs_on(state.built_for, state.major, state.minor)) {
    return state;
  }
  const cudaError_t status = open(device, state);
  if (status == cudaErrorDevicesUnavailable || status == cudaErrorMemoryAllocation) {
    state.no_context = cudaGetErrorName(status);
    return state;
  }
  cuda::check(status, "making the context", device);
  return state;
}

void make_current(Device device) {
  if (device.kind == DeviceKind::cuda) {
    LOCKSTEP_CUDA_CHECK(device, cudaSetDevice(device.index));
  }
}

std::string why_no_gpus() {
  return detail::why_no_gpus(driver_state(Device::cuda(0)));
}

}  // namespace lockstep
