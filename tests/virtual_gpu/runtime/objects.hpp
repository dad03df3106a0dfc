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

/// The objects behind CUDA's handles. Machine owns all of them.
namespace lockstep::standin {

/// The completion of one recording of an event. A wait refers to the ticket that was the event's latest when the wait
/// was queued.
struct Ticket {
  bool done = false;
  struct Queue* queue = nullptr;  ///< queue that recorded the ticket
  std::uint64_t time = 0;         ///< completion time, counted in executed pieces of work
};

struct EventObject {
  int device = 0;
  bool timing = false;
  std::shared_ptr<Ticket> ticket;  ///< latest recording; empty: not recorded yet
  /// The capture in which the event was recorded last. The recording comes after the nodes `after`.
  std::shared_ptr<struct Capture> capture = {};
  std::set<std::size_t> after = {};
};

struct Range {
  const std::byte* begin;
  std::size_t bytes;
};

/// The bytes that a copy moves: `depth` slices of `height` rows of `width` bytes. Pitches and slices are distances in
/// bytes.
struct Rows {
  std::size_t width;
  std::size_t height = 1;
  std::size_t depth = 1;
  std::size_t dst_pitch = 0;
  std::size_t src_pitch = 0;
  std::size_t dst_slice = 0;
  std::size_t src_slice = 0;
  /// Number of bytes from the first to the last byte of the copy, gaps included.
  [[nodiscard]] std::size_t dst_bytes() const { return (depth - 1) * dst_slice + (height - 1) * dst_pitch + width; }
  [[nodiscard]] std::size_t src_bytes() const { return (depth - 1) * src_slice + (height - 1) * src_pitch + width; }
};

/// Work that several streams do together, like the kernels of a collective operation. It runs once, when every stream
/// has reached it. Each stream may be filled by a different thread.
struct Meeting {
  std::size_t size = 0;                    ///< number of streams that take part
  std::vector<struct Queue*> queues = {};  ///< queues that contain the meeting
  std::function<void()> run = {};          ///< called with the lock held
  /// Called with the lock held once this process's streams have reached the meeting. Notifies the other processes that
  /// take part, and returns true if they have reached it, too. Empty if no other process takes part.
  std::function<bool()> elsewhere = {};
  bool done = false;
};

/// One piece of work on a stream.
struct Work {
  const char* name = "";
  std::function<void()> run = {};          ///< does a copy or memset; called with the lock held
  std::vector<Range> uses = {};            ///< memory that the work accesses
  std::shared_ptr<Ticket> awaits = {};     ///< ticket that cudaStreamWaitEvent waits for
  std::function<bool()> ready = {};        ///< cuStreamWaitValue64: true once the memory has the value
  std::shared_ptr<Ticket> completes = {};  ///< ticket that cudaEventRecord completes
  cudaHostFn_t function = nullptr;         ///< function of cudaLaunchHostFunc
  void* data = nullptr;
  std::vector<std::shared_ptr<Meeting>> meetings = {};  ///< meetings that the work must wait for and take part in
  std::shared_ptr<const bool> given_up = {};            ///< true: the work does nothing and waits for nothing
  std::function<Work()> again = {};  ///< makes the work of one launch of a graph; empty: a launch copies this work
};

/// One piece of work of a graph, and the nodes on which it depends.
struct Node {
  Work work;
  int device = 0;
  std::set<std::size_t> after;
  int priority = 0;  ///< priority of the stream from which the node was captured
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
  bool node_priorities = false;       ///< false: every node has the priority of the stream of the launch
  std::shared_ptr<Ticket> last = {};  ///< end of the latest launch
};

struct Queue {
  int device = 0;
  int number = 0;
  std::shared_ptr<Capture> capture = {};  ///< capture of which the stream is a part
  std::set<std::size_t> tail = {};        ///< nodes on which the next captured work depends
  bool of_graphs = false;                 ///< true: runs nodes of launched graphs and is no stream
  bool legacy = false;                    ///< true: default stream of its device, which always exists
  bool alive = true;                      ///< false after cudaStreamDestroy; queued work is still executed
  bool busy = false;                      ///< true while a host function of the queue runs or is ready to run
  int priority = 0;                       ///< priority given at creation
  int turn = 0;                           ///< used in Style::priority: the stream with the largest turn runs first
  std::deque<Work> work;
};

/// A memory pool. reserved: bytes that the pool holds on its device; used: bytes of `reserved` that callers have
/// allocated.
struct Pool {
  int device = 0;
  std::size_t reserved = 0;
  std::size_t used = 0;
  std::size_t threshold = 0;  ///< bytes that the pool keeps when a caller waits for a stream or an event
  bool destroyed = false;     ///< true after cudaMemPoolDestroy; blocks still allocated are freed later
  std::set<int> readers{};    ///< other devices with access
};

/// A block of memory that a caller allocated. The addresses of freed blocks are not reused, so that a later use is
/// recognised.
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
