#include <bit>
#include <cstdint>
#include <new>
#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>

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
  throw UnsupportedError(concat("allocate: ", call, " on ", device, " does not align to ", alignment,
                                " bytes, expected a smaller alignment"));
}

[[noreturn]] void throw_out_of_memory(std::size_t bytes, const MemoryUsage& usage, std::size_t limit, Device device) {
  std::size_t free = 0;
  std::size_t total = 0;
  LOCKSTEP_CUDA_CHECK(device, cudaMemGetInfo(&free, &total));
  throw OutOfMemory(concat("requested ", bytes, " bytes, in use ", usage.in_use, ", cached ", usage.cached,
                           ", free on the device ", free, " of ", total, ", limit ",
                           limit == CudaPoolOptions::kNoLimit ? "none" : std::to_string(limit), ", on ", device,
                           ", expected room within the limit and the free memory"));
}

/// Waits for queued work that may still use the memory, because CUDA does not guarantee that freeing memory waits for
/// this work. If only the host uses the memory, `stream` is a host stream and the function does nothing.
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
    throw_out_of_memory(bytes, counter_.usage(), CudaPoolOptions::kNoLimit, device_);
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

CudaPoolResource::CudaPoolResource(Device device, const CudaPoolOptions& options) : device_(device), options_(options) {
  detail::require_cuda_device(device);
}

CudaPoolResource::~CudaPoolResource() {
  if (pool_ == nullptr && late_.empty()) {
    return;
  }
  const cuda::DeviceGuard guard(device_, std::nothrow);
  for (const Late& late : late_) {
    cuda::ignore(cudaFree(late.pointer));
  }
  if (pool_ != nullptr) {
    cuda::ignore(cudaMemPoolDestroy(pool_));  // returns at once; CUDA destroys the pool after all queued releases
  }
}

/// Makes the pool, or the resource for devices without pools. The caller holds mutex_; the device is current.
void CudaPoolResource::open() {
  if (pool_ != nullptr || plain_ != nullptr) {
    return;
  }
  int has_pools = 0;
  LOCKSTEP_CUDA_CHECK(device_, cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device_.index));
  if (has_pools == 0) {
    plain_ = std::make_unique<CudaMemoryResource>(device_);
    return;
  }
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_.index;
  cudaMemPool_t pool = nullptr;
  LOCKSTEP_CUDA_CHECK(device_, cudaMemPoolCreate(&pool, &properties));
  std::uint64_t keep = options_.keep_bytes;
  const cudaError_t status = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  if (status != cudaSuccess) {
    cuda::ignore(cudaMemPoolDestroy(pool));
  }
  cuda::check(status, "cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep)", device_);
  pool_ = pool;
}

void* CudaPoolResource::allocate(std::size_t bytes, std::size_t alignment, Stream& stream) {
  check_alignment(alignment);
  if (bytes == 0) {
    return nullptr;
  }
  require<DeviceError>(stream.device() == device_, "allocate: the stream is on ", stream.device(), ", expected one on ",
                       device_);
  const cuda::DeviceGuard guard(device_);
  // Refuses an allocation during a capture, because it would become a node of the graph.
  require<StateError>(!detail::cuda_is_capturing(device_, stream.cuda_handle()),
                      "allocate: the stream is being captured, expected memory that was taken before");
  const std::lock_guard lock(mutex_);
  open();
  release_late(stream);
  const std::size_t in_use = counter_.usage().in_use;
  if (bytes > options_.limit_bytes || in_use > options_.limit_bytes - bytes) {
    refuse(bytes);
  }
  if (plain_ != nullptr) {
    void* pointer = plain_->allocate(bytes, alignment, stream);
    counter_.add(bytes);
    return pointer;
  }
  void* pointer = nullptr;
  cudaError_t status = cudaMallocFromPoolAsync(&pointer, bytes, pool_, stream.cuda_handle());
  if (status == cudaErrorMemoryAllocation) {
    cuda::ignore(status);
    const SyncScope scope(stream, "CudaPoolResource::allocate", SyncReason::allocation, bytes);
    // The wait frees memory whose release was queued on this stream.
    LOCKSTEP_CUDA_CHECK(device_, cudaStreamSynchronize(stream.cuda_handle()));
    LOCKSTEP_CUDA_CHECK(device_, cudaMemPoolTrimTo(pool_, 0));
    status = cudaMallocFromPoolAsync(&pointer, bytes, pool_, stream.cuda_handle());
    if (status == cudaErrorMemoryAllocation) {
      cuda::ignore(status);
      refuse(bytes);
    }
  }
  cuda::check(status, "cudaMallocFromPoolAsync(&pointer, bytes, pool_, stream)", device_);
  if (!aligned(pointer, alignment)) {
    cuda::ignore(cudaFreeAsync(pointer, stream.cuda_handle()));
    throw_unaligned(alignment, "cudaMallocFromPoolAsync", device_);
  }
  counter_.add(bytes);
  return pointer;
}

void CudaPoolResource::deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept {
  if (pointer == nullptr) {
    return;
  }
  const cuda::DeviceGuard guard(device_, std::nothrow);
  if (stream.device() == device_) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda::ignore(cudaStreamIsCapturing(stream.cuda_handle(), &status));
    if (status != cudaStreamCaptureStatusNone) {
      // A free during a capture would become a node of the graph, so each launch would free the memory again. This wait
      // makes the capture fail instead: CUDA refuses to wait during a capture and invalidates the capture. The call
      // that ends the capture then reports an error.
      cuda::ignore(cudaStreamSynchronize(stream.cuda_handle()));
      try {
        const std::lock_guard lock(mutex_);
        late_.push_back({.pointer = pointer, .bytes = bytes, .stream = stream.cuda_handle()});
      } catch (const std::bad_alloc&) {  // ignored: without memory for the list entry, the block is never freed
      }
      return;
    }
  }
  counter_.subtract(bytes);
  if (plain_ != nullptr) {
    plain_->deallocate(pointer, bytes, alignment, stream);
    return;
  }
  if (stream.device() == device_) {
    cuda::ignore(cudaFreeAsync(pointer, stream.cuda_handle()));
    return;
  }
  const SyncScope scope(stream, "CudaPoolResource::deallocate", SyncReason::release, bytes);
  wait_for_users(stream);
  cuda::ignore(cudaFree(pointer));
}

/// Frees, in the order of the stream's work, those blocks of late_ that were passed to deallocate() with `stream`
/// during a capture. The caller holds mutex_; the device is current and the stream is not captured.
void CudaPoolResource::release_late(Stream& stream) noexcept {
  std::erase_if(late_, [&](const Late& late) {
    if (late.stream != stream.cuda_handle()) {
      return false;
    }
    counter_.subtract(late.bytes);
    if (plain_ != nullptr) {
      plain_->deallocate(late.pointer, late.bytes, kAlignment, stream);
    } else {
      cuda::ignore(cudaFreeAsync(late.pointer, late.stream));
    }
    return true;
  });
}

/// Returns the number of bytes that the pool holds but that are not allocated. The caller holds mutex_; the device is
/// current.
std::size_t CudaPoolResource::cached() const noexcept {
  std::uint64_t reserved = 0;
  if (pool_ != nullptr) {
    cuda::ignore(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  }
  const std::size_t in_use = counter_.usage().in_use;
  return reserved > in_use ? static_cast<std::size_t>(reserved) - in_use : 0;
}

/// Throws OutOfMemory for a request of `bytes` bytes. The caller holds mutex_; the device is current.
void CudaPoolResource::refuse(std::size_t bytes) const {
  MemoryUsage usage = counter_.usage();
  usage.cached = cached();
  throw_out_of_memory(bytes, usage, options_.limit_bytes, device_);
}

std::optional<MemoryUsage> CudaPoolResource::usage() const {
  const std::lock_guard lock(mutex_);
  const cuda::DeviceGuard guard(device_, std::nothrow);
  MemoryUsage usage = counter_.usage();
  usage.cached = cached();
  return usage;
}

void CudaPoolResource::trim(std::size_t keep_bytes) {
  const std::lock_guard lock(mutex_);
  if (pool_ != nullptr) {
    const cuda::DeviceGuard guard(device_);
    LOCKSTEP_CUDA_CHECK(device_, cudaMemPoolTrimTo(pool_, keep_bytes));
  }
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
    throw OutOfMemory(concat("requested ", bytes, " bytes of page-locked host memory through ", device_,
                             ": the system refused, expected that much memory to lock"));
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
