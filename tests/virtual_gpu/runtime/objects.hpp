#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control.hpp"

/// The objects behind CUDA's handles. Machine owns them all.
namespace lockstep::standin {

/// One recording of an event. Waits hold the ticket that was current when they were queued.
struct Ticket {
  bool done = false;
  struct Queue* queue = nullptr;  ///< queue that recorded the ticket
  std::uint64_t time = 0;         ///< time of completion, in executed pieces of work
};

struct EventObject {
  int device = 0;
  bool timing = false;
  std::shared_ptr<Ticket> ticket;  ///< latest recording; empty before the first
  /// The capture with the latest recording, which comes after the nodes `after`.
  std::shared_ptr<struct Capture> capture = {};
  std::set<std::size_t> after = {};
};

struct Range {
  const std::byte* begin;
  std::size_t bytes;
};

/// The bytes that a copy moves: `depth` slices of `height` rows of `width` bytes, at distances in bytes.
struct Rows {
  std::size_t width;
  std::size_t height = 1;
  std::size_t depth = 1;
  std::size_t dst_pitch = 0;
  std::size_t src_pitch = 0;
  std::size_t dst_slice = 0;
  std::size_t src_slice = 0;
  /// Number of bytes from the first to the last byte that the copy touches, gaps included.
  [[nodiscard]] std::size_t dst_bytes() const { return (depth - 1) * dst_slice + (height - 1) * dst_pitch + width; }
  [[nodiscard]] std::size_t src_bytes() const { return (depth - 1) * src_slice + (height - 1) * src_pitch + width; }
};

/// Work that several streams do together, as the kernels of a collective operation do. It runs once, for all of them,
/// when every stream has reached it. Each stream may be filled by its own thread.
struct Meeting {
  std::size_t size = 0;                    ///< streams that take part
  std::vector<struct Queue*> queues = {};  ///< queues that have the meeting in their work
  std::function<void()> run = {};          ///< runs under the lock
  /// Is called, under the lock, once the streams have reached the meeting. Tells other processes that take part, and
  /// returns whether they have reached it, too. Empty: no other process takes part.
  std::function<bool()> elsewhere = {};
  bool done = false;
};

/// One piece of work on a stream.
struct Work {
  const char* name = "";
  std::function<void()> run = {};          ///< runs copies and memsets, under the lock
  std::vector<Range> uses = {};            ///< memory that the work touches
  std::shared_ptr<Ticket> awaits = {};     ///< ticket that cudaStreamWaitEvent waits for
  std::function<bool()> ready = {};        ///< cuStreamWaitValue64: the memory has the value
  std::shared_ptr<Ticket> completes = {};  ///< ticket that cudaEventRecord completes
  cudaHostFn_t function = nullptr;         ///< function of cudaLaunchHostFunc
  void* data = nullptr;
  std::vector<std::shared_ptr<Meeting>> meetings = {};  ///< all meetings of this work, in any order
  std::shared_ptr<const bool> given_up = {};            ///< true: the work does nothing any more and waits for nobody
  std::function<Work()> again = {};  ///< for work captured in a graph: makes the work that a launch runs instead
};

/// One piece of work of a graph, and the pieces that it comes after.
struct Node {
  Work work;
  int device = 0;
  std::set<std::size_t> after;
  int priority = 0;  ///< priority of the stream that the node was captured from
};

/// A graph that is being captured.
struct Capture {
  struct Queue* origin = nullptr;
  std::thread::id thread;
  bool active = true;
  bool spoilt = false;
  std::vector<Node> nodes = {};
};

struct GraphObject {
  std::vector<Node> nodes;
};

struct ExecutableObject {
  std::vector<Node> nodes;
  bool node_priorities = false;       ///< false: every node has the priority of the stream that launches
  std::shared_ptr<Ticket> last = {};  ///< end of the latest launch
};

struct Queue {
  int device = 0;
  int number = 0;
  std::shared_ptr<Capture> capture = {};  ///< capture that the stream belongs to
  std::set<std::size_t> tail = {};        ///< nodes that the next captured work comes after
  bool of_graphs = false;                 ///< the queue holds a node of a launched graph and is no stream
  bool legacy = false;                    ///< the default stream of its device: always there, never destroyed
  bool alive = true;                      ///< false after cudaStreamDestroy; queued work is still executed
  bool busy = false;                      ///< true while a host function of the queue runs or is about to
  int priority = 0;                       ///< priority given at creation
  int turn = 0;                           ///< turn of the schedule: the largest goes first
  std::deque<Work> work;
};

/// A memory pool: the bytes that it holds of the device, and the bytes of them that it has given out.
struct Pool {
  int device = 0;
  std::size_t reserved = 0;
  std::size_t used = 0;
  std::size_t threshold = 0;  ///< bytes that the pool keeps when a caller waits for a stream or an event
  bool destroyed = false;     ///< true after its owner destroyed it; memory that is still given out comes back later
  std::set<int> readers{};    ///< other devices with access
};

/// Memory that a caller owns. Freed blocks keep their addresses, so that a late use is recognised.
struct Block {
  std::byte* map = nullptr;  ///< first guard page
  std::size_t map_bytes = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  bool pinned = false;
  bool freed = false;
  Pool* pool = nullptr;             ///< pool that the block came from
  std::shared_ptr<Ticket> given{};  ///< cudaMallocFromPoolAsync: done when its stream has reached the allocation
  bool free_queued = false;         ///< true after cudaFreeAsync
};

}  // namespace lockstep::standin
