#pragma once

#include <cstddef>

#include <lockstep/runtime/memory_resource.hpp>

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
