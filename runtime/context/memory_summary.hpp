#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep {

/// Memory of one device at one moment, in bytes. total = process or resource + others + free, as far as these are
/// known.
struct MemorySummary {
  Device device{};
  /// Of the context's resource: in use, cached, peak. nullopt when the resource does not count.
  std::optional<MemoryUsage> resource{};
  /// CPU: the resident memory of this process, including the resource's memory. Allocated memory that was never written
  /// is in use but not resident. nullopt for a GPU: the driver does not report it.
  std::optional<std::size_t> process{};
  /// Memory that is neither free nor held by this process or, on a GPU, by the resource. On a GPU these are other
  /// programs, other resources of this program, and CUDA's own memory, some hundred MiB per context; also the memory of
  /// a resource that does not count.
  std::size_t others = 0;
  std::size_t free = 0;  ///< bytes that can still be allocated; on the CPU without swapping
  /// Memory of the card. On the CPU: of the machine, or the limit of its control group if that is lower.
  std::size_t total = 0;
  bool limited = false;  ///< CPU: total is the limit of a control group (a container's, a batch job's)
};

/// Reads the figures from the operating system, or from CUDA (cudaMemGetInfo) for this device only. Does not wait for
/// the stream. UnsupportedError when /proc/meminfo cannot be read.
[[nodiscard]] MemorySummary memory_summary(Context& context);

/// "cuda:0: 1.50 GiB in use, 0 B cached, peak 2.00 GiB; others 1.00 GiB; free 77.5 GiB of 80.0 GiB"
[[nodiscard]] std::string to_string(const MemorySummary& summary);

/// Figures of the operating system. `root` is put in front of /proc and /sys (for tests).
struct HostMemory {
  std::size_t total = 0;
  std::size_t available = 0;  ///< without swapping; includes page cache that can be dropped
  std::size_t resident = 0;   ///< resident memory of this process
  /// The tightest limit of this process's control group and the groups above it, and the memory that remains of it.
  struct Limit {
    std::size_t bytes = 0;
    std::size_t available = 0;
  };
  std::optional<Limit> limit{};
};
[[nodiscard]] HostMemory read_host_memory(const std::string& root = {});

}  // namespace lockstep
