#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include <lockstep/runtime/memory/memory_resource.hpp>

struct CUmemPoolHandle_st;  // CUDA defines cudaMemPool_t as CUmemPoolHandle_st*

namespace lockstep {

/// Device memory from cudaMalloc and cudaFree. Both calls block the device, so use this resource for memory that is
/// allocated before the first step. The constructor throws DeviceError in a build without CUDA or for a missing device.
class CudaMemoryResource final : public MemoryResource {
 public:
  explicit CudaMemoryResource(Device device);
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return device_; }
  std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  Device device_;
  MemoryCounter counter_;
};

struct CudaPoolOptions {
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  std::size_t limit_bytes = kNoLimit;  ///< greatest number of bytes in use at a time
  /// Bytes that the pool may keep when the host has waited for a stream or event (CUDA's release threshold). With
  /// kNoLimit, the pool never returns memory to the driver, so a later step finds all its memory in the pool.
  std::size_t keep_bytes = kNoLimit;
};

/// Stream-ordered device memory: cudaMallocFromPoolAsync and cudaFreeAsync on the resource's own memory pool, which the
/// first allocation makes. A device without memory pools uses cudaMalloc and cudaFree. The resource must outlive its
/// memory. Thread-safe.
///
/// allocate() requires a stream of this device (otherwise DeviceError), and usually does not wait. If an allocation
/// fails, allocate() waits for the stream, frees all cached memory and tries once more. If this fails, too, it throws
/// OutOfMemory, whose text has the bytes requested, in use, cached and free on the device, and the limit.
///
/// deallocate() does not wait if its stream is of this device. If work on another stream uses the memory, an event must
/// order that work before deallocate(), as MemoryResource says. If the stream is of another device, deallocate() waits
/// for the stream.
///
/// While the stream is captured (graph.hpp), allocate() throws StateError. Memory freed during a capture invalidates
/// the capture, and counts as in use until the stream's next allocation. Another device with peer access gets access to
/// the pool with its first copy() from or to this memory.
class CudaPoolResource final : public MemoryResource {
 public:
  explicit CudaPoolResource(Device device, const CudaPoolOptions& options = {});
  ~CudaPoolResource() override;
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return device_; }
  std::optional<MemoryUsage> usage() const override;
  /// Returns unused memory to the device until used and unused memory of the pool is at most `keep_bytes`. Memory freed
  /// on a stream counts as used until that stream has been waited for. trim() itself does not wait.
  void trim(std::size_t keep_bytes = 0);

 private:
  /// Memory that was freed while its stream was captured.
  struct Late {
    void* pointer = nullptr;
    std::size_t bytes = 0;
    CUstream_st* stream = nullptr;
  };
  void open();
  void release_late(Stream& stream) noexcept;
  [[nodiscard]] std::size_t cached() const noexcept;
  [[noreturn]] void refuse(std::size_t bytes) const;

  Device device_;
  CudaPoolOptions options_;
  MemoryCounter counter_;
  mutable std::mutex mutex_;
  std::vector<Late> late_;
  CUmemPoolHandle_st* pool_ = nullptr;  ///< memory pool; after the first allocation, either pool_ or plain_ is set
  std::unique_ptr<CudaMemoryResource> plain_;  ///< resource for a device without memory pools
};

/// Page-locked host memory (cudaMallocHost), for copies that overlap with other work. device() is the CPU.
class PinnedMemoryResource final : public MemoryResource {
 public:
  explicit PinnedMemoryResource(Device device);  ///< allocations use the CUDA context of `device`
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return Device::cpu(); }
  std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  Device device_;
  MemoryCounter counter_;
};

}  // namespace lockstep
