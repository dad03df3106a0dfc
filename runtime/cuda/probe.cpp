// Tries a GPU through the driver API. The runtime API would make the GPU's context current in the thread and keep it.
#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/driver.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>

namespace lockstep {
namespace {

/// Driver functions that a probe calls.
struct Driver {
  explicit Driver(Device d) : device(d) {}
  Device device;
  LOCKSTEP_DRIVER_FUNCTION(init, cuInit);
  LOCKSTEP_DRIVER_FUNCTION(device_get, cuDeviceGet);
  LOCKSTEP_DRIVER_FUNCTION(attribute, cuDeviceGetAttribute);
  LOCKSTEP_DRIVER_FUNCTION(retain, cuDevicePrimaryCtxRetain);
  LOCKSTEP_DRIVER_FUNCTION(release, cuDevicePrimaryCtxRelease);
  LOCKSTEP_DRIVER_FUNCTION(push, cuCtxPushCurrent);
  LOCKSTEP_DRIVER_FUNCTION(pop, cuCtxPopCurrent);
  LOCKSTEP_DRIVER_FUNCTION(mem_get_info, cuMemGetInfo);
  LOCKSTEP_DRIVER_FUNCTION(mem_alloc, cuMemAlloc);
  LOCKSTEP_DRIVER_FUNCTION(mem_free, cuMemFree);

  void check(CUresult status, const char* call) const { cuda::check_driver(status, call, device); }
};

/// Retains the device's primary context and makes it current in this thread, until this object is destroyed. The driver
/// counts the retains of a context. So the context is not destroyed if the program retains it, too.
class Retained {
 public:
  Retained(const Driver& driver, CUdevice device, CUcontext context) : driver_(driver), device_(device) {
    if (const CUresult status = driver_.push(context); status != CUDA_SUCCESS) {
      static_cast<void>(driver_.release(device_));
      driver_.check(status, "cuCtxPushCurrent");
    }
  }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;
  ~Retained() {
    CUcontext popped = nullptr;
    static_cast<void>(driver_.pop(&popped));
    static_cast<void>(driver_.release(device_));
  }

 private:
  const Driver& driver_;
  CUdevice device_;
};

std::string why_no_context(const Driver& driver, CUdevice device, CUresult status) {
  int mode = CU_COMPUTEMODE_DEFAULT;
  const bool known = driver.attribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) == CUDA_SUCCESS;
  const char* text = "";
  if (known && mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS) {
    text = ", in exclusive-process mode: another process has it";
  } else if (known && mode == CU_COMPUTEMODE_PROHIBITED) {
    text = ", its compute mode forbids contexts";
  }
  return concat("no context can be made: ", cuda::driver_error(status, driver.device), text);
}

}  // namespace

std::string probe_gpu(const GpuInfo& gpu, std::size_t min_free_bytes) {
  const Driver driver(Device::cuda(gpu.index));
  driver.check(driver.init(0), "cuInit");
  CUdevice device = 0;
  driver.check(driver.device_get(&device, gpu.index), "cuDeviceGet");
  CUcontext context = nullptr;
  if (const CUresult status = driver.retain(&context, device); status != CUDA_SUCCESS) {
    return why_no_context(driver, device, status);
  }
  const Retained current(driver, device, context);
  std::size_t free = 0;
  std::size_t total = 0;
  driver.check(driver.mem_get_info(&free, &total), "cuMemGetInfo");
  std::string memory = concat(free, " of ", total, " bytes are free with our context, expected ", min_free_bytes);
  if (free < min_free_bytes) {
    return memory;
  }
  if (min_free_bytes > 0) {
    CUdeviceptr pointer = 0;
    const CUresult status = driver.mem_alloc(&pointer, min_free_bytes);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) {
      return memory + " in one piece";
    }
    driver.check(status, "cuMemAlloc");
    driver.check(driver.mem_free(pointer), "cuMemFree");
  }
  return {};
}

}  // namespace lockstep
