#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include <lockstep/runtime/memory/memory_resource.hpp>

struct CUmemPoolHandle_st;  // cudaMemPool_t is CUmemPoolHandle_st*

namespace lockstep {

/// Device memory by cudaMalloc / cudaFree. Both block the device: for arenas made before the first step.
/// The constructor throws DeviceError in a build without CUDA or when the device does not exist.
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
  std::size_t keep_bytes = kNoLimit;   ///< what CUDA may keep for the next allocation when a stream or event was waited
                                       ///< for (its release threshold); without a limit a step asks the system for none
};

/// Device memory in the order of streams: cudaMallocFromPoolAsync / cudaFreeAsync on a memory pool of its own, made on
/// the first allocation. Taking and giving back wait for nothing; work on other streams that uses the memory must be
/// ordered before it is given back (an event), no more than MemoryResource says. `stream` must be of this device when
/// memory is taken (DeviceError); memory given back with another stream waits for that one. Where the device has no
/// memory pools it is cudaMalloc and cudaFree. Other devices reach the memory by copies, not by peer access, which CUDA
/// grants a pool separately. OutOfMemory comes after a second try with all that is cached given back, and says what was
/// requested, in use and cached, what is free on the device, and the limit. StateError while the stream is captured
/// (graph.hpp); memory given back meanwhile spoils the capture and is in use until the stream next asks for some. Must
/// outlive what it gave out. Thread-safe.
class CudaPoolResource final : public MemoryResource {
 public:
  explicit CudaPoolResource(Device device, const CudaPoolOptions& options = {});
  ~CudaPoolResource() override;
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return device_; }
  std::optional<MemoryUsage> usage() const override;
  /// Gives memory that nobody uses back to the device until `keep_bytes` are held, used ones included. Memory given
  /// back on a stream counts as used until that stream was waited for. Waits for nothing itself.
  void trim(std::size_t keep_bytes = 0);

 private:
  /// Given back while its stream was captured.
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
  CUmemPoolHandle_st* pool_ = nullptr;         ///< of these two one, from the first allocation on
  std::unique_ptr<CudaMemoryResource> plain_;  ///< on a device without memory pools
};

/// Page-locked host memory (cudaMallocHost): the host side of copies that overlap with work. device() is the CPU.
class PinnedMemoryResource final : public MemoryResource {
 public:
  explicit PinnedMemoryResource(Device device);  ///< device: whose CUDA context makes the allocation
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return Device::cpu(); }
  std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  Device device_;
  MemoryCounter counter_;
};

}  // namespace lockstep
