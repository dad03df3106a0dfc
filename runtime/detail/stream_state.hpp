#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/stream.hpp>

/// Interfaces that Stream and Event use, with one implementation for hosts and one for CUDA. Private to the runtime.
namespace lockstep::detail {

/// A sequence of work that completes in order. A position is a number of completed tasks. Thread-safe.
struct Timeline {
  virtual ~Timeline() = default;
  /// Returns true if the work up to this position is complete; never blocks.
  [[nodiscard]] virtual bool reached(std::uint64_t position) const = 0;
  /// Blocks the caller until the work up to this position is complete. Rethrows the exception if this work failed.
  virtual void wait(std::uint64_t position) const = 0;

  /// A counter in memory that a device can read. Its last owner frees it.
  using Counter = std::shared_ptr<std::atomic<std::uint64_t>>;
  /// Returns a counter that always holds this timeline's current position. The counter advances after each task, also
  /// if the task failed. The first call makes the counter with make(), without holding a lock. Returns nullptr if the
  /// device itself orders the work, as for CUDA streams.
  [[nodiscard]] virtual Counter published(const std::function<Counter()>& /*make*/) const { return nullptr; }
};

/// The result of one record() call of an event. The event's next record() makes a new point and does not change this
/// one. Copying a point allocates nothing. A point stays valid after the event and the stream are gone.
struct EventPoint {
  std::shared_ptr<const Timeline> timeline;  ///< work before the record; nullptr: that work is complete
  std::uint64_t position = 0;
  [[nodiscard]] bool complete() const { return timeline == nullptr || timeline->reached(position); }
  void wait() const {
    if (timeline != nullptr) {
      timeline->wait(position);
    }
  }
};

/// State of an Event. The thread that makes the event makes its state; any thread may call the const members.
struct EventState {
  EventState(Device d, bool with_timing) : device(d), timing(with_timing) {}
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;
  virtual ~EventState() = default;

  /// Returns the latest record() so far, or a complete point if there was no record(). Allocates nothing.
  [[nodiscard]] virtual EventPoint point() const = 0;
  [[nodiscard]] virtual bool complete() const { return point().complete(); }
  virtual void synchronize() const { point().wait(); }
  /// Returns the seconds from the completion of `earlier` to the completion of this event. The caller has checked that
  /// the two events are on one device, have timing and are complete. Throws StateError if one of the events was never
  /// recorded.
  [[nodiscard]] virtual double seconds_since(const EventState& earlier) const = 0;

  const Device device;
  const bool timing;
};

/// State of a Stream. The destructor does not throw. It waits for queued work, unless the stream is a borrowed CUDA
/// stream (borrow_cuda_stream_state()).
struct StreamState {
  StreamState(Device d, bool runs_inline) : device(d), is_inline(runs_inline) {}
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;
  virtual ~StreamState() = default;

  virtual void* acquire_slot();  ///< StateError unless overridden, because only host workers take tasks
  /// Publishes the task written into the slot of the last acquire_slot().
  virtual void publish_slot(const TaskVTable& vtable);
  [[nodiscard]] virtual CUstream_st* cuda_handle() const;  ///< StateError unless overridden
  /// Records the event. Stream::record() has checked that the event is of this stream's device.
  virtual void record(const std::shared_ptr<EventState>& event) = 0;
  /// Makes work that is enqueued from now on wait for the latest record() of `event` so far. A record() after this call
  /// has no effect on the wait. `event` may be of any device.
  virtual void wait(const std::shared_ptr<EventState>& event) = 0;
  virtual void synchronize() = 0;
  virtual void launch_dependently(bool on);  ///< StateError unless overridden

  const Device device;
  const bool is_inline;
  bool dependent_launches = false;
  SyncLog sync_log;
};

// Makes the host implementations (host_stream.cpp). cuda_backend.hpp declares the functions for CUDA.
[[nodiscard]] std::unique_ptr<StreamState> make_inline_stream_state();
[[nodiscard]] std::unique_ptr<StreamState> make_worker_stream_state(std::string_view name);
[[nodiscard]] std::shared_ptr<EventState> make_host_event_state(bool timing);

}  // namespace lockstep::detail
