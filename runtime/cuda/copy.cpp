#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/cuda_backend.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep::detail {

void cuda_copy(Context& context, const TensorView& src, const TensorView& dst) {
  require<UnsupportedError>(
      src.dtype == dst.dtype && src.is_contiguous() && dst.is_contiguous(), "copy from ", src, " with strides ",
      src.strides, " to ", dst, " with strides ", dst.strides, " on ", context.device(),
      ": both must be contiguous and of one type (on one device ops::strided_copy does the rest)");
  const Device here = context.device();
  const cuda::DeviceGuard guard(here);
  CUstream_st* stream = context.stream().cuda_handle();
  const std::size_t bytes = src.bytes();
  if (src.device.kind == DeviceKind::cpu) {
    LOCKSTEP_CUDA_CHECK(here, cudaMemcpyAsync(dst.data, src.data, bytes, cudaMemcpyHostToDevice, stream));
  } else if (dst.device.kind == DeviceKind::cpu) {
    LOCKSTEP_CUDA_CHECK(here, cudaMemcpyAsync(dst.data, src.data, bytes, cudaMemcpyDeviceToHost, stream));
  } else if (src.device == dst.device) {
    LOCKSTEP_CUDA_CHECK(here, cudaMemcpyAsync(dst.data, src.data, bytes, cudaMemcpyDeviceToDevice, stream));
  } else {
    LOCKSTEP_CUDA_CHECK(here,
                        cudaMemcpyPeerAsync(dst.data, dst.device.index, src.data, src.device.index, bytes, stream));
  }
}

void cuda_zero(Context& context, void* data, std::size_t bytes) {
  const cuda::DeviceGuard guard(context.device());
  LOCKSTEP_CUDA_CHECK(context.device(), cudaMemsetAsync(data, 0, bytes, context.stream().cuda_handle()));
}

}  // namespace lockstep::detail
