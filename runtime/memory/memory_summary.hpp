#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/context.hpp>

namespace lockstep {

/// Memory of one device at one moment, in bytes. total = process or resource + others + free, as far as they are known.
struct MemorySummary {
  Device device{};
  /// Of the context's resource: in use, cached, peak. None when it does not count.
  std::optional<MemoryUsage> resource{};
  /// CPU: what this process has in memory, the resource's part included (memory that was never written to is in use,
  /// but in nobody's memory yet). None for a GPU: its driver does not say.
  std::optional<std::size_t> process{};
  /// What neither this process nor, on a GPU, the resource holds, and what is not free. On a GPU that is other
  /// programs, other resources of this one, and CUDA's own memory, some hundred MiB a context; what a resource that
  /// does not count holds is among it.
  std::size_t others = 0;
  std::size_t free = 0;  ///< what can still be allocated; on the CPU without swapping
  std::size_t total =
      0;                 ///< of the card; on the CPU of the machine, or the limit of the control group when it is lower
  bool limited = false;  ///< CPU: total is the limit of a control group (a container's, a batch job's)
};

/// Asks the operating system or, on that device alone, CUDA (cudaMemGetInfo); no other device is touched, and nothing
/// waits for the stream. UnsupportedError where /proc/meminfo cannot be read.
[[nodiscard]] MemorySummary memory_summary(Context& context);

/// "cuda:0: 1.50 GiB in use, 0 B cached, peak 2.00 GiB; others 1.00 GiB; free 77.5 GiB of 80.0 GiB"
[[nodiscard]] std::string to_string(const MemorySummary& summary);

/// What the operating system says of memory. `root` is put in front of /proc and /sys (tests have their own).
struct HostMemory {
  std::size_t total = 0;
  std::size_t available = 0;  ///< without swapping; page cache that can be dropped counts
  std::size_t resident = 0;   ///< this process
  /// The control group of this process, or one above it, that leaves the least: its limit, and what is left of that.
  struct Limit {
    std::size_t bytes = 0;
    std::size_t available = 0;
  };
  std::optional<Limit> limit{};
};
[[nodiscard]] HostMemory read_host_memory(const std::string& root = {});

}  // namespace lockstep
