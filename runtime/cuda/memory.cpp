#include <bit>
#include <cstdint>

#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/cuda_backend.hpp>
#include <lockstep/runtime/cuda_memory.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep {
namespace {

void check_alignment(std::size_t alignment) {
  require<ShapeError>(std::has_single_bit(alignment), "allocate: alignment is ", alignment,
                      ", expected a power of two");
}

bool aligned(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

[[noreturn]] void throw_unaligned(std::size_t alignment, const char* call, Device device) {
  throw UnsupportedError(concat("allocate: ", call, " on ", device, " does not align to ", alignment, " bytes"));
}

/// Waits for the work that may still use memory: CUDA orders a release with queued work for device memory only, and
/// only as a side effect. Memory that only hosts used comes with a host stream.
void wait_for_users(Stream& stream) noexcept {
  if (stream.device().kind == DeviceKind::cuda) {
    const cuda::DeviceGuard guard(stream.device(), std::nothrow);
    cuda::ignore(cudaStreamSynchronize(stream.cuda_handle()));
  }
}

}  // namespace

CudaMemoryResource::CudaMemoryResource(Device device) : device_(device) {
  detail::require_cuda_device(device);
}

void* CudaMemoryResource::allocate(std::size_t bytes, std::size_t alignment, Stream& stream) {
  check_alignment(alignment);
  if (bytes == 0) {
    return nullptr;
  }
  const SyncScope scope(stream, "CudaMemoryResource::allocate", SyncReason::allocation, bytes);
  const cuda::DeviceGuard guard(device_);
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cuda::ignore(status);
    std::size_t free = 0;
    std::size_t total = 0;
    LOCKSTEP_CUDA_CHECK(device_, cudaMemGetInfo(&free, &total));
    throw OutOfMemory(concat("requested ", bytes, " bytes, free ", free, " of ", total, ", on ", device_));
  }
  cuda::check(status, "cudaMalloc(&pointer, bytes)", device_);
  if (!aligned(pointer, alignment)) {
    cuda::ignore(cudaFree(pointer));
    throw_unaligned(alignment, "cudaMalloc", device_);
  }
  counter_.add(bytes);
  return pointer;
}

void CudaMemoryResource::deallocate(void* pointer, std::size_t bytes, std::size_t /*alignment*/,
                                    Stream& stream) noexcept {
  if (pointer == nullptr) {
    return;
  }
  const SyncScope scope(stream, "CudaMemoryResource::deallocate", SyncReason::release, bytes);
  counter_.subtract(bytes);
  const cuda::DeviceGuard guard(device_, std::nothrow);
  wait_for_users(stream);
  cuda::ignore(cudaFree(pointer));
}

PinnedMemoryResource::PinnedMemoryResource(Device device) : device_(device) {
  detail::require_cuda_device(device);
}

void* PinnedMemoryResource::allocate(std::size_t bytes, std::size_t alignment, Stream& stream) {
  check_alignment(alignment);
  if (bytes == 0) {
    return nullptr;
  }
  const SyncScope scope(stream, "PinnedMemoryResource::allocate", SyncReason::allocation, bytes);
  const cuda::DeviceGuard guard(device_);
  void* pointer = nullptr;
  const cudaError_t status = cudaMallocHost(&pointer, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cuda::ignore(status);
    throw OutOfMemory(
        concat("requested ", bytes, " bytes of page-locked host memory through ", device_, ": the system refused"));
  }
  cuda::check(status, "cudaMallocHost(&pointer, bytes)", device_);
  if (!aligned(pointer, alignment)) {
    cuda::ignore(cudaFreeHost(pointer));
    throw_unaligned(alignment, "cudaMallocHost", device_);
  }
  counter_.add(bytes);
  return pointer;
}

void PinnedMemoryResource::deallocate(void* pointer, std::size_t bytes, std::size_t /*alignment*/,
                                      Stream& stream) noexcept {
  if (pointer == nullptr) {
    return;
  }
  const SyncScope scope(stream, "PinnedMemoryResource::deallocate", SyncReason::release, bytes);
  counter_.subtract(bytes);
  const cuda::DeviceGuard guard(device_, std::nothrow);
  wait_for_users(stream);
  cuda::ignore(cudaFreeHost(pointer));
}

namespace detail {

DeviceMemory cuda_memory(Device device) {
  require_cuda_device(device);
  const cuda::DeviceGuard guard(device);
  DeviceMemory memory;
  LOCKSTEP_CUDA_CHECK(device, cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

}  // namespace detail
}  // namespace lockstep
