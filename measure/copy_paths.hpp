#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/machine/processors.hpp>

#include "measure/measure.hpp"

namespace lockstep::measure {

enum class Memory : unsigned char { pageable, pinned, device };

/// The code that copies the bytes. On the host, the calling thread runs the code. On a path with both_ways or with NUMA
/// nodes, a worker thread for each direction runs the code, with its own OpenMP threads (CopyBench).
enum class Mover : unsigned char {
  memcpy,       ///< host: one memcpy by one thread, the calling thread or the worker
  streaming,    ///< host: up to all threads, with non-temporal stores that bypass the caches (as in STREAM)
  copy,         ///< host: lockstep::copy() by up to all threads, on an inline stream or the stream of the worker
  copy_worker,  ///< host: as `copy`, but on the stream of a worker thread on every path
  copy_engine,  ///< GPU: lockstep::copy(), which is a cudaMemcpyAsync
  kernel        ///< GPU: ops::strided_copy; for pinned host memory the kernel reads and writes over the link
};

struct CopyEnd {
  Memory memory = Memory::pageable;
  Device device;  ///< device to which the memory belongs; the CPU for pageable and pinned memory
  /// NUMA node whose memory holds the bytes; only for host memory. Either both ends of a path have a node, or neither.
  std::optional<NumaNode> node{};
};

/// A source, a destination and a way to copy. If both_ways is true, a second copy runs from `to` to `from` at the same
/// time, between two other buffers.
struct CopyPath {
  std::string name;  ///< name such as "host_to_host/pageable/one_way/memcpy" or "peer/0_to_1/both_ways/copy_engine"
  CopyEnd from;
  CopyEnd to;
  bool both_ways = false;
  Mover mover = Mover::memcpy;

  /// Returns true if the ends of the path are different memories, so that every byte crosses a link.
  [[nodiscard]] bool over_link() const {
    return !(from.device == to.device) || (from.node && from.node->number != to.node->number);
  }
  [[nodiscard]] int directions() const { return both_ways ? 2 : 1; }
  /// Returns true if a call only enqueues the copy, so that many copies may be under way before the host waits.
  [[nodiscard]] bool enqueues() const;
  /// Returns true if one call of ops::grouped_copy() can do all pieces of a copy, between buffers of one device.
  [[nodiscard]] bool can_group() const;
  [[nodiscard]] double payload_bytes(std::int64_t bytes) const { return static_cast<double>(bytes) * directions(); }
  /// Returns the payload if the bytes cross a link. For a copy inside one memory, returns twice the payload, since the
  /// memory reads and writes every byte.
  [[nodiscard]] double traffic_bytes(std::int64_t bytes) const { return payload_bytes(bytes) * (over_link() ? 1 : 2); }
};

/// Returns all paths of a machine with these GPUs: inside the host, then to, from and inside each GPU, then between
/// every two GPUs. Pure. A path between pageable memory and a GPU is one way only: such a copy blocks its caller, so a
/// second copy cannot run at the same time.
[[nodiscard]] std::vector<CopyPath> copy_paths(std::span<const Device> gpus);

/// Returns the paths from each NUMA node to each node, including itself, such as "numa/0_to_1/one_way/memcpy". The
/// bytes are in the first node's memory. Threads of the second node copy the bytes into the second node's memory: one
/// thread for Mover::memcpy, up to one per processor for Mover::copy. Returns no paths for fewer than two nodes. Pure.
[[nodiscard]] std::vector<CopyPath> numa_paths(std::span<const NumaNode> nodes);
/// Returns the nodes of `nodes` that have processors in `allowed`, each with only these processors. Pure.
[[nodiscard]] std::vector<NumaNode> usable_nodes(std::span<const NumaNode> nodes, const ProcessorSet& allowed);

/// The size of one measurement.
struct CopySize {
  std::int64_t bytes = 0;   ///< bytes of all pieces together, in one direction
  std::int64_t pieces = 1;  ///< the bytes are split into this many copies
  bool wait_each = false;   ///< true: the host waits after every piece; false: only after the last piece
  bool grouped = false;     ///< true: one call copies all pieces; needs CopyPath::can_group()
};

/// Returns PATH/BYTES. For several pieces, appends their number and "grouped", "wait:each" or "wait:once".
[[nodiscard]] std::string copy_name(const CopyPath& path, const CopySize& size);

/// Measures and checks copies on one path, with memory and contexts of its own. Not thread-safe. Source and destination
/// are parts of pools that are larger than a cache. Each timed call uses the next part of each pool. So even a small
/// copy does not find its bytes in a cache, except bytes that the hardware has prefetched.
class CopyBench {
 public:
  /// `threads` is the number of threads that copy on the host, in both directions together; 0 means OpenMP's default.
  /// On a path of NUMA nodes, the number of threads is at most the number of processors of the second node, and 0 means
  /// this number. Allocates and touches about 2 * directions * max(max_bytes, pool_bytes) bytes, at least 128 MiB on a
  /// path of NUMA nodes. Throws DeviceError if a GPU is missing, StateError for a node that this process may not run
  /// on, and OutOfMemory.
  CopyBench(const CopyPath& path, std::int64_t max_bytes, int threads = 0, std::int64_t pool_bytes = kPoolBytes);
  ~CopyBench();
  CopyBench(const CopyBench&) = delete;
  CopyBench& operator=(const CopyBench&) = delete;

  /// Times copies of all ranks at once, each rank in its own memory. The result's name is copy_name(). Throws
  /// UsageError unless 1 <= pieces <= bytes <= max_bytes, and for grouped pieces on a path that cannot group them.
  [[nodiscard]] Measurement measure(comm::Communicator& ranks, const CopySize& size, const MeasureOptions& options);
  /// Returns one copy for callers with their own loop: start() enqueues the copy, wait() returns when it is complete.
  [[nodiscard]] Work work(const CopySize& size);
  /// Copies a pattern once and compares the result. Throws StateError, which names the first byte that differs.
  void check(const CopySize& size);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::measure
