#pragma once

#include <cuda_runtime_api.h>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Throws CudaError unless status is cudaSuccess; the text names the expression, the error and the device. Clears the
/// thread's last CUDA error first, so that the host program does not see it.
void check(cudaError_t status, const char* expression, Device device);

/// For destructors and noexcept functions: drops an error and clears the thread's last CUDA error.
void ignore(cudaError_t status) noexcept;

}  // namespace lockstep::cuda

/// Calls a CUDA runtime function. The expression's own text goes into the error.
#define LOCKSTEP_CUDA_CHECK(device, expression) ::lockstep::cuda::check((expression), #expression, (device))
