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

/// Who moves the bytes.
enum class Mover : unsigned char {
  memcpy,       ///< host: one memcpy by the calling thread
  streaming,    ///< host: all threads, with stores that pass the caches (STREAM's copy)
  copy,         ///< host: lockstep::copy() on an inline stream, all threads
  copy_worker,  ///< host: the same, enqueued on a worker thread
  copy_engine,  ///< GPU: lockstep::copy(), which is a cudaMemcpyAsync
  kernel        ///< GPU: ops::strided_copy; pinned host memory is read and written over the link by the kernel
};

struct CopyEnd {
  Memory memory = Memory::pageable;
  Device device;  ///< that holds the bytes: the CPU for pageable and pinned
  /// Host: the bytes are in this node's memory. Those of the other end, too, when it has a node; both or none.
  std::optional<NumaNode> node{};
};

/// A way that bytes go. Both ways: a second copy runs from `to` to `from` at the same time, between other buffers.
struct CopyPath {
  std::string name;  ///< "host_to_host/pageable/one_way/memcpy", "peer/0_to_1/both_ways/copy_engine"
  CopyEnd from;
  CopyEnd to;
  bool both_ways = false;
  Mover mover = Mover::memcpy;

  /// A link is passed once, while a copy inside one memory reads every byte and writes it there.
  [[nodiscard]] bool over_link() const;
  [[nodiscard]] int directions() const { return both_ways ? 2 : 1; }
  /// Calls only enqueue: many copies may be under way before somebody waits.
  [[nodiscard]] bool enqueues() const;
  /// The pieces of a copy may be one call: inside one device's memory of ops::grouped_copy(), between host and GPU of
  /// ops::PackedCopy, beside the copy engine's other rows.
  [[nodiscard]] bool can_group() const;
  [[nodiscard]] double payload_bytes(std::int64_t bytes) const;  ///< bytes * directions
  [[nodiscard]] double traffic_bytes(std::int64_t bytes) const;  ///< payload over a link; twice that in one memory
};

/// All paths of a machine with these GPUs: the host's own, then of each GPU from, to and inside it, then from each GPU
/// to each other. Pure. Pageable memory and a GPU go one way only: such a copy blocks its caller.
[[nodiscard]] std::vector<CopyPath> copy_paths(std::span<const Device> gpus);

/// From each NUMA node of a machine to each, its own too: "numa/0_to_1/one_way/memcpy". Bytes are in the memory of the
/// first; a thread on a processor of the second (memcpy), or one on each (copy), brings them into the memory of the
/// second. Empty for fewer than two nodes. Pure.
[[nodiscard]] std::vector<CopyPath> numa_paths(std::span<const NumaNode> nodes);
/// The nodes that have processors of `allowed`, with those. Pure.
[[nodiscard]] std::vector<NumaNode> usable_nodes(std::span<const NumaNode> nodes, const ProcessorSet& allowed);

/// The size of one measurement.
struct CopySize {
  std::int64_t bytes = 0;   ///< of all pieces together, in one direction
  std::int64_t pieces = 1;  ///< the bytes go as so many copies
  bool wait_each = false;   ///< waits for every piece; false: once behind the last
  bool grouped = false;     ///< all pieces by one call (CopyPath::can_group)
};

/// path/bytes, then pieces and how they are waited for when there are several.
[[nodiscard]] std::string copy_name(const CopyPath& path, const CopySize& size);

/// Memory and contexts for one path. Not thread-safe. Rows that are timed go through a pool of buffers larger than a
/// cache, one after the other, so that small copies find nothing in a cache but what the hardware fetched ahead.
class CopyBench {
 public:
  /// threads: of the host's own copies, 0 for as many as OpenMP uses; on a NUMA node not more than it has processors.
  /// Memory is allocated and touched here, about 2 * directions * max(max_bytes, pool_bytes), at least 128 MiB between
  /// nodes. DeviceError where a GPU is missing, OutOfMemory, StateError for a node that this process may not run on.
  CopyBench(const CopyPath& path, std::int64_t max_bytes, int threads = 0, std::int64_t pool_bytes = kPoolBytes);
  ~CopyBench();
  CopyBench(const CopyBench&) = delete;
  CopyBench& operator=(const CopyBench&) = delete;

  /// All ranks copy at once, each in its own memory; named copy_name(). UsageError unless 1 <= pieces <= bytes <=
  /// max_bytes, and for grouped pieces of a path that cannot group them.
  [[nodiscard]] Measurement measure(comm::Communicator& ranks, const CopySize& size, const MeasureOptions& options);
  /// One more copy, for callers with a loop of their own: enqueued by start(), done after wait().
  [[nodiscard]] Work work(const CopySize& size);
  /// Copies a pattern once and compares. StateError naming the first byte that differs.
  void check(const CopySize& size);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::measure
