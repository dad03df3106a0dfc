#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/stream.hpp>

/// The implementations of Stream and Event: one for hosts, one for CUDA. Private to the runtime.
namespace lockstep::detail {

/// Work that completes in order, numbered by position. Thread-safe.
struct Timeline {
  virtual ~Timeline() = default;
  [[nodiscard]] virtual bool reached(std::uint64_t position) const = 0;  ///< never blocks
  /// Blocks the caller until the position is reached; rethrows when the work up to it failed.
  virtual void wait(std::uint64_t position) const = 0;

  /// A counter in memory that a device reads; the last owner frees it.
  using Counter = std::shared_ptr<std::atomic<std::uint64_t>>;
  /// Returns the one counter that holds the position from now on: it is set after the work up to that position, also
  /// when the work failed. make() makes the counter if there is none yet, and is called without a lock. nullptr for
  /// work that a device orders itself.
  [[nodiscard]] virtual Counter published(const std::function<Counter()>& /*make*/) const { return nullptr; }
};

/// One record() of an event; later records of the event do not change it. Copying it allocates nothing. It stays valid
/// after the event and the stream are gone.
struct EventPoint {
  std::shared_ptr<const Timeline> timeline;  ///< nullptr: complete
  std::uint64_t position = 0;
  [[nodiscard]] bool complete() const { return timeline == nullptr || timeline->reached(position); }
  void wait() const {
    if (timeline != nullptr) {
      timeline->wait(position);
    }
  }
};

/// The state of an Event. The thread that makes the event makes it; any thread may call the const members.
struct EventState {
  EventState(Device d, bool with_timing) : device(d), timing(with_timing) {}
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;
  virtual ~EventState() = default;

  /// Returns the latest record() so far; a complete point when there was none. Allocates nothing.
  [[nodiscard]] virtual EventPoint point() const = 0;
  [[nodiscard]] virtual bool complete() const { return point().complete(); }
  virtual void synchronize() const { point().wait(); }
  /// Both states belong to one kind of device, have timing and are complete. StateError when one was never recorded.
  [[nodiscard]] virtual double seconds_since(const EventState& earlier) const = 0;

  const Device device;
  const bool timing;
};

/// The state of a Stream. The destructor waits for queued work and does not throw.
struct StreamState {
  StreamState(Device d, bool runs_inline) : device(d), is_inline(runs_inline) {}
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;
  virtual ~StreamState() = default;

  virtual void* acquire_slot();                            ///< StateError unless overridden: no host tasks here
  virtual void publish_slot(const TaskVTable& vtable);     ///< follows acquire_slot()
  [[nodiscard]] virtual CUstream_st* cuda_handle() const;  ///< StateError unless overridden
  /// event.device equals device (Stream::record checks).
  virtual void record(const std::shared_ptr<EventState>& event) = 0;
  /// `event` may be of any device. The wait is for event->point() at the time of the call, not for later records.
  virtual void wait(const std::shared_ptr<EventState>& event) = 0;
  virtual void synchronize() = 0;
  virtual void launch_dependently(bool on);  ///< StateError unless overridden

  const Device device;
  const bool is_inline;
  bool dependent_launches = false;
  SyncLog sync_log;
};

// Host implementations (host_stream.cpp); the CUDA ones are declared in cuda_backend.hpp.
[[nodiscard]] std::unique_ptr<StreamState> make_inline_stream_state();
[[nodiscard]] std::unique_ptr<StreamState> make_worker_stream_state(std::string_view name);
[[nodiscard]] std::shared_ptr<EventState> make_host_event_state(bool timing);

}  // namespace lockstep::detail
