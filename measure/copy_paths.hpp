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

/// The way in which the bytes are moved.
enum class Mover : unsigned char {
  memcpy,       ///< host: one memcpy by the calling thread
  streaming,    ///< host: all threads, with non-temporal stores that bypass the caches (as in STREAM)
  copy,         ///< host: lockstep::copy() on an inline stream, all threads
  copy_worker,  ///< host: lockstep::copy() on the stream of a worker thread, all threads copy
  copy_engine,  ///< GPU: lockstep::copy(), which is a cudaMemcpyAsync
  kernel        ///< GPU: ops::strided_copy; for pinned host memory the kernel reads and writes over the link
};

struct CopyEnd {
  Memory memory = Memory::pageable;
  Device device;  ///< owner of the memory; the CPU for pageable and pinned
  /// For host memory: the NUMA node whose memory holds the bytes. Either both ends have a node or none.
  std::optional<NumaNode> node{};
};

/// A source, a destination and a way to copy. With both_ways a second copy runs from `to` to `from` at the same time,
/// between other buffers.
struct CopyPath {
  std::string name;  ///< "host_to_host/pageable/one_way/memcpy", "peer/0_to_1/both_ways/copy_engine"
  CopyEnd from;
  CopyEnd to;
  bool both_ways = false;
  Mover mover = Mover::memcpy;

  /// True when the bytes cross a link once; a copy inside one memory reads and writes every byte there.
  [[nodiscard]] bool over_link() const {
    return !(from.device == to.device) || (from.node && from.node->number != to.node->number);
  }
  [[nodiscard]] int directions() const { return both_ways ? 2 : 1; }
  /// True when calls only enqueue: many copies may be under way before a wait.
  [[nodiscard]] bool enqueues() const;
  /// True when one call can do all pieces of a copy: ops::grouped_copy(), inside one device's memory.
  [[nodiscard]] bool can_group() const;
  [[nodiscard]] double payload_bytes(std::int64_t bytes) const { return static_cast<double>(bytes) * directions(); }
  /// Returns the payload if the bytes cross a link; inside one memory twice the payload, since bytes are read and
  /// written.
  [[nodiscard]] double traffic_bytes(std::int64_t bytes) const { return payload_bytes(bytes) * (over_link() ? 1 : 2); }
};

/// Returns all paths of a machine with these GPUs: paths of the host, then from, to and inside each GPU, then between
/// every two GPUs. Pure. Paths between pageable memory and a GPU are one way only, as such a copy blocks its caller.
[[nodiscard]] std::vector<CopyPath> copy_paths(std::span<const Device> gpus);

/// Returns the paths from each NUMA node to each, including itself: "numa/0_to_1/one_way/memcpy". The bytes are in the
/// first node's memory. Threads on processors of the second node copy them into the second node's memory: one thread
/// (memcpy) or one per processor (copy). Empty for fewer than two nodes. Pure.
[[nodiscard]] std::vector<CopyPath> numa_paths(std::span<const NumaNode> nodes);
/// Returns the nodes that have processors of `allowed`, restricted to these processors. Pure.
[[nodiscard]] std::vector<NumaNode> usable_nodes(std::span<const NumaNode> nodes, const ProcessorSet& allowed);

/// The size of one measurement.
struct CopySize {
  std::int64_t bytes = 0;   ///< bytes of all pieces together, in one direction
  std::int64_t pieces = 1;  ///< the bytes are split into this many copies
  bool wait_each = false;   ///< true: waits after every piece; false: once, after the last
  bool grouped = false;     ///< one call for all pieces (CopyPath::can_group)
};

/// Returns PATH/BYTES; for several pieces also their number and the way in which the host waits for them.
[[nodiscard]] std::string copy_name(const CopyPath& path, const CopySize& size);

/// Measures and checks copies on one path, with memory and contexts of its own. Not thread-safe. Timed calls go through
/// a pool of buffers larger than a cache, one after the other. A cache therefore holds only the bytes of a small copy
/// that the hardware prefetched.
class CopyBench {
 public:
  /// threads: number of threads that copy on the host; 0: OpenMP's default. On a NUMA node at most one thread per
  /// processor runs. Allocates and touches about 2 * directions * max(max_bytes, pool_bytes) bytes, at least 128 MiB
  /// between nodes. Throws DeviceError when a GPU is missing, OutOfMemory, StateError for a node that this process may
  /// not run on.
  CopyBench(const CopyPath& path, std::int64_t max_bytes, int threads = 0, std::int64_t pool_bytes = kPoolBytes);
  ~CopyBench();
  CopyBench(const CopyBench&) = delete;
  CopyBench& operator=(const CopyBench&) = delete;

  /// Times copies of all ranks at once, each in its own memory. The result's name is copy_name(). Throws UsageError
  /// unless 1 <= pieces <= bytes <= max_bytes, and for grouped pieces on a path that cannot group them.
  [[nodiscard]] Measurement measure(comm::Communicator& ranks, const CopySize& size, const MeasureOptions& options);
  /// Returns one copy for callers with their own loop: start() enqueues the copy, wait() returns when it is complete.
  [[nodiscard]] Work work(const CopySize& size);
  /// Copies a pattern once and compares. StateError naming the first byte that differs.
  void check(const CopySize& size);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::measure
