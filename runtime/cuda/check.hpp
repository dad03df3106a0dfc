#pragma once

#include <cuda_runtime_api.h>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::cuda {

/// Throws CudaError unless `status` is cudaSuccess; the text has the expression, the error and the device. First clears
/// the thread's last CUDA error, so that the host program does not see the error.
void check(cudaError_t status, const char* expression, Device device);

/// Ignores an error in `status` and clears the thread's last CUDA error, for destructors and noexcept functions.
void ignore(cudaError_t status) noexcept;

}  // namespace lockstep::cuda

/// Evaluates a call of the CUDA runtime and checks its status. The error text contains the expression.
#define LOCKSTEP_CUDA_CHECK(device, expression) ::lockstep::cuda::check((expression), #expression, (device))
