#include <lockstep/runtime/cuda/check.hpp>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::cuda {

void check(cudaError_t status, const char* expression, Device device) {
  if (status != cudaSuccess) [[unlikely]] {
    ignore(status);
    throw CudaError(concat(expression, " failed on ", device, ": ", cudaGetErrorName(status), " (",
                           cudaGetErrorString(status), ")"));
  }
}

void ignore(cudaError_t status) noexcept {
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

}  // namespace lockstep::cuda
