#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep {

/// Memory of one device at one moment, in bytes. `total` is the sum of `process` (CPU) or `resource` (GPU), `others`
/// and `free`, as far as these are known.
struct MemorySummary {
  Device device{};
  /// Memory of the context's resource: in use, cached, peak. nullopt if MemoryResource::usage() returns nullopt.
  std::optional<MemoryUsage> resource{};
  /// CPU: resident memory of this process, including the resource's memory. Memory that was allocated but never written
  /// is in use, but not resident. nullopt for a GPU, because the driver does not report it.
  std::optional<std::size_t> process{};
  /// Memory that is neither free nor held by this process or, on a GPU, by the resource. On a GPU, other programs,
  /// other resources of this program and CUDA itself hold this memory. CUDA needs some hundred MiB per context. If
  /// `resource` is nullopt on a GPU, this number includes the resource's memory.
  std::size_t others = 0;
  std::size_t free = 0;  ///< bytes that can still be allocated; on the CPU, without swapping
  /// Memory of the card. On the CPU: memory of the machine, or the limit of the control group if that is lower.
  std::size_t total = 0;
  bool limited = false;  ///< CPU: true if `total` is the limit of a control group (of a container or a batch job)
};

/// Reads the summary from the operating system, or from CUDA (cudaMemGetInfo) for this device alone. Does not wait for
/// the stream. Throws UnsupportedError if /proc/meminfo cannot be read.
[[nodiscard]] MemorySummary memory_summary(Context& context);

/// Formats a summary: "cuda:0: 1.50 GiB in use, 0 B cached, peak 2.00 GiB; others 1.00 GiB; free 77.5 GiB of 80.0 GiB"
[[nodiscard]] std::string to_string(const MemorySummary& summary);

/// Host memory in bytes, as the operating system reports it. read_host_memory() puts `root` before /proc and /sys (for
/// tests).
struct HostMemory {
  std::size_t total = 0;
  std::size_t available = 0;  ///< memory available without swapping; includes page cache that can be dropped
  std::size_t resident = 0;   ///< resident memory of this process
  /// The tightest memory limit of this process's control group and of its parent groups: the limit that leaves the
  /// fewest bytes.
  struct Limit {
    std::size_t bytes = 0;
    std::size_t available = 0;
  };
  std::optional<Limit> limit{};
};
[[nodiscard]] HostMemory read_host_memory(const std::string& root = {});

}  // namespace lockstep
