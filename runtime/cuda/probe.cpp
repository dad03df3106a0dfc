// Tries a GPU through the driver API: the runtime API would make its context the thread's current one and keep it.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>

namespace lockstep {
namespace {

/// A function of the driver, found at run time: a program linked with the driver's library would not start without a
/// driver. The version selects the form of the function; these have not changed since CUDA 12.0.
template <class Function>
Function driver_function(const char* name, Device device) {
  void* pointer = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  LOCKSTEP_CUDA_CHECK(device, cudaGetDriverEntryPointByVersion(name, &pointer, 12000, cudaEnableDefault, &found));
#else
  LOCKSTEP_CUDA_CHECK(device, cudaGetDriverEntryPoint(name, &pointer, cudaEnableDefault, &found));
#endif
  require<CudaError>(found == cudaDriverEntryPointSuccess && pointer != nullptr, "the driver has no ", name);
  return reinterpret_cast<Function>(pointer);
}

/// cuda.h maps function names to their current forms by macros (cuMemAlloc is cuMemAlloc_v2); the driver is asked for
/// the plain name.
struct Driver {
  explicit Driver(Device d) : device(d) {}
  Device device;
  using Init = decltype(&cuInit);
  Init init = driver_function<Init>("cuInit", device);
  using DeviceGet = decltype(&cuDeviceGet);
  DeviceGet device_get = driver_function<DeviceGet>("cuDeviceGet", device);
  using DeviceGetAttribute = decltype(&cuDeviceGetAttribute);
  DeviceGetAttribute attribute = driver_function<DeviceGetAttribute>("cuDeviceGetAttribute", device);
  using Retain = decltype(&cuDevicePrimaryCtxRetain);
  Retain retain = driver_function<Retain>("cuDevicePrimaryCtxRetain", device);
  using Release = decltype(&cuDevicePrimaryCtxRelease);
  Release release = driver_function<Release>("cuDevicePrimaryCtxRelease", device);
  using Push = decltype(&cuCtxPushCurrent);
  Push push = driver_function<Push>("cuCtxPushCurrent", device);
  using Pop = decltype(&cuCtxPopCurrent);
  Pop pop = driver_function<Pop>("cuCtxPopCurrent", device);
  using MemGetInfo = decltype(&cuMemGetInfo);
  MemGetInfo mem_get_info = driver_function<MemGetInfo>("cuMemGetInfo", device);
  using MemAlloc = decltype(&cuMemAlloc);
  MemAlloc mem_alloc = driver_function<MemAlloc>("cuMemAlloc", device);
  using MemFree = decltype(&cuMemFree);
  MemFree mem_free = driver_function<MemFree>("cuMemFree", device);
  using GetErrorName = decltype(&cuGetErrorName);
  GetErrorName error_name = driver_function<GetErrorName>("cuGetErrorName", device);

  [[nodiscard]] std::string name_of(CUresult status) const {
    const char* text = nullptr;
    return error_name(status, &text) == CUDA_SUCCESS && text != nullptr ? text : concat("error ", status);
  }
  void check(CUresult status, const char* call) const {
    require<CudaError>(status == CUDA_SUCCESS, call, " failed on ", device, ": ", name_of(status));
  }
};

/// Makes the device's primary context current in this thread, until this object ends. The driver counts who retains a
/// context, so a context that the program already has stays.
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
  return concat("no context can be made: ", driver.name_of(status), text);
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
  const std::string memory = concat(free, " of ", total, " bytes are free with our context, expected ", min_free_bytes);
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
