#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

inline constexpr std::size_t kAlignment = 256;  ///< default alignment of every allocation, in bytes

/// Numbers about a resource's memory, in bytes.
struct MemoryUsage {
  std::size_t in_use = 0;  ///< bytes that are allocated and not freed
  std::size_t cached = 0;  ///< bytes taken from the system but not allocated now
  std::size_t peak = 0;    ///< greatest number of bytes that were in use at a time
};

/// A stream-ordered source of memory. Work on stream s may use memory of allocate(.., s) at once. Work on another
/// stream may use the memory only if this stream waits for an event of s that was recorded after allocate(). At
/// deallocate(.., s), the last use must already be enqueued on s. Host resources ignore the stream. Thread-safe. The
/// host program may bring its own resource.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  MemoryResource() = default;
  MemoryResource(const MemoryResource&) = delete;
  MemoryResource& operator=(const MemoryResource&) = delete;

  /// Returns at least `bytes` bytes, aligned to `alignment` (a power of two). Returns nullptr for 0 bytes. Throws
  /// OutOfMemory on failure.
  [[nodiscard]] virtual void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) = 0;
  virtual void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept = 0;
  [[nodiscard]] virtual Device device() const = 0;
  /// Returns the resource's numbers, or nullopt if the resource keeps no counts.
  [[nodiscard]] virtual std::optional<MemoryUsage> usage() const { return std::nullopt; }
};

/// Counts allocated and freed bytes. Thread-safe.
class MemoryCounter {
 public:
  void add(std::size_t bytes) noexcept {
    const std::size_t now = in_use_.fetch_add(bytes) + bytes;
    std::size_t peak = peak_.load();
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  void subtract(std::size_t bytes) noexcept { in_use_ -= bytes; }
  [[nodiscard]] MemoryUsage usage() const { return {.in_use = in_use_.load(), .cached = 0, .peak = peak_.load()}; }

 private:
  std::atomic<std::size_t> in_use_{0};
  std::atomic<std::size_t> peak_{0};
};

/// Pageable host memory from the system, uninitialised. Asks for huge pages for blocks of at least 2 MiB.
class HostMemoryResource final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return Device::cpu(); }
  std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  MemoryCounter counter_;
};

/// Counts the memory of another resource, `upstream`, and refuses allocations beyond a limit. `upstream` must outlive
/// this resource.
class TrackingMemoryResource final : public MemoryResource {
 public:
  struct Counts {
    std::int64_t allocations = 0;  ///< number of successful allocate() calls since construction
    std::int64_t deallocations = 0;
    std::size_t bytes_in_use = 0;
    std::size_t peak_bytes = 0;
  };
  explicit TrackingMemoryResource(MemoryResource& upstream,
                                  std::size_t limit_bytes = std::numeric_limits<std::size_t>::max());

  /// Allocates from upstream. Throws OutOfMemory("requested .., in use .., limit .., on ..") if the request would
  /// exceed the limit; in this case nothing is allocated.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::optional<MemoryUsage> usage() const override;  ///< includes upstream's cached memory if upstream reports it
  [[nodiscard]] Counts counts() const;

 private:
  MemoryResource& upstream_;
  std::size_t limit_bytes_;
  std::atomic<std::int64_t> allocations_{0};
  std::atomic<std::int64_t> deallocations_{0};
  std::atomic<std::size_t> bytes_in_use_{0};
  std::atomic<std::size_t> peak_bytes_{0};
};

}  // namespace lockstep
