#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Finds a driver function at run time, because a program linked with the driver's library does not start without a
/// driver. `name` is the plain name, such as cuMemAlloc. The macros of cuda.h rename such functions (to cuMemAlloc_v2).
/// This function returns the variant of CUDA 12.0. Throws CudaError if the driver lacks the function. `device` is used
/// in error texts.
template <class Function>
Function driver_function(const char* name, Device device) {
  void* pointer = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  LOCKSTEP_CUDA_CHECK(device, cudaGetDriverEntryPointByVersion(name, &pointer, 12000, cudaEnableDefault, &found));
#else
  LOCKSTEP_CUDA_CHECK(device, cudaGetDriverEntryPoint(name, &pointer, cudaEnableDefault, &found));
#endif
  require<CudaError>(found == cudaDriverEntryPointSuccess && pointer != nullptr, "the driver has no function ", name,
                     ", expected a newer driver");
  return reinterpret_cast<Function>(pointer);
}

/// Declares a member or variable `name` that points to a driver function. Needs a variable `device` in scope.
// NOLINTBEGIN(bugprone-macro-parentheses): names
#define LOCKSTEP_DRIVER_FUNCTION(name, function) \
  decltype(&function) name = ::lockstep::cuda::driver_function<decltype(&function)>(#function, device)
// NOLINTEND(bugprone-macro-parentheses)

/// Returns the name of an error of the driver, for example "CUDA_ERROR_OUT_OF_MEMORY".
[[nodiscard]] std::string driver_error(CUresult status, Device device);

/// Throws CudaError unless `status` is CUDA_SUCCESS: "cuCtxPushCurrent failed on cuda:1: CUDA_ERROR_INVALID_CONTEXT".
void check_driver(CUresult status, const char* call, Device device);

}  // namespace lockstep::cuda
