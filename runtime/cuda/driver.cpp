#include <lockstep/runtime/cuda/driver.hpp>

namespace lockstep::cuda {

std::string driver_error(CUresult status, Device device) {
  const char* text = nullptr;
  const auto name = driver_function<decltype(&cuGetErrorName)>("cuGetErrorName", device);
  return name(status, &text) == CUDA_SUCCESS && text != nullptr ? text : concat("error ", status);
}

void check_driver(CUresult status, const char* call, Device device) {
  if (status != CUDA_SUCCESS) [[unlikely]] {
    throw CudaError(concat(call, " failed on ", device, ": ", driver_error(status, device)));
  }
}

}  // namespace lockstep::cuda
