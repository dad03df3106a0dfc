#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include <lockstep/runtime/memory/memory_resource.hpp>

struct CUmemPoolHandle_st;  // cudaMemPool_t is CUmemPoolHandle_st*

namespace lockstep {

/// Device memory by cudaMalloc and cudaFree. Both block the device: use it for arenas made before the first step. The
/// constructor throws DeviceError in a build without CUDA or when the device does not exist.
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
  std::size_t limit_bytes = kNoLimit;  ///< most that may be in use at once
  /// Memory that CUDA may keep cached when a stream or event is waited for (the pool's release threshold). kNoLimit: a
  /// step then asks the system for no memory.
  std::size_t keep_bytes = kNoLimit;
};

/// Stream-ordered device memory: cudaMallocFromPoolAsync and cudaFreeAsync on the resource's own memory pool, made on
/// the first allocation. Neither call waits. As MemoryResource says, an event must order work on other streams that
/// uses the memory before deallocate(). `stream` must be of this device in allocate() (DeviceError); memory freed on
/// another stream waits for that stream. A device without memory pools uses cudaMalloc and cudaFree. Another device
/// gets access to the pool with its first copy() from or to this memory, if it has peer access. OutOfMemory comes after
/// a second try that first frees all cached memory; the text has the bytes requested, in use and cached, free on the
/// device, and the limit. StateError while the stream is captured (graph.hpp); memory freed during a capture
/// invalidates the capture and counts as in use until the stream's next allocation. Must outlive the memory that it
/// allocated. Thread-safe.
class CudaPoolResource final : public MemoryResource {
 public:
  explicit CudaPoolResource(Device device, const CudaPoolOptions& options = {});
  ~CudaPoolResource() override;
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return device_; }
  std::optional<MemoryUsage> usage() const override;
  /// Returns unused memory to the device until the pool holds `keep_bytes`, used memory included. Memory freed on a
  /// stream counts as used until that stream has been waited for. Does not wait itself.
  void trim(std::size_t keep_bytes = 0);

 private:
  /// Memory freed while its stream was captured.
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
  CUmemPoolHandle_st* pool_ = nullptr;         ///< pool_ or plain_ is set from the first allocation on
  std::unique_ptr<CudaMemoryResource> plain_;  ///< on a device without memory pools
};

/// Page-locked host memory (cudaMallocHost): the host side of copies that overlap with work. device() is the CPU.
class PinnedMemoryResource final : public MemoryResource {
 public:
  explicit PinnedMemoryResource(Device device);  ///< device: the allocation uses its CUDA context
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return Device::cpu(); }
  std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  Device device_;
  MemoryCounter counter_;
};

}  // namespace lockstep
