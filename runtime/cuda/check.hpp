#pragma once

#include <cuda_runtime_api.h>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Throws CudaError with expression, name and text of the error and the device unless status is cudaSuccess. Clears
/// the thread's last CUDA error first, so that the host program does not find ours.
void check(cudaError_t status, const char* expression, Device device);

/// For destructors and noexcept functions: forgets an error, the thread's last CUDA error too.
void ignore(cudaError_t status) noexcept;

}  // namespace lockstep::cuda

/// Calls a CUDA runtime function. The expression's own text goes into the error.
#define LOCKSTEP_CUDA_CHECK(device, expression) ::lockstep::cuda::check((expression), #expression, (device))
