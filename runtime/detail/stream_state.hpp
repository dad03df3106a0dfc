#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/stream.hpp>

/// Inside the runtime: what Stream and Event forward to. One implementation for hosts, one for CUDA.
namespace lockstep::detail {

/// Something that completes position by position, in order. Thread-safe.
struct Timeline {
  virtual ~Timeline() = default;
  [[nodiscard]] virtual bool reached(std::uint64_t position) const = 0;  ///< never blocks
  /// Blocks the caller until the position is reached; rethrows when what led to it failed.
  virtual void wait(std::uint64_t position) const = 0;
};

/// What one record() of an event stands for, whatever is recorded on the event afterwards. A value: copying it
/// allocates nothing, and it keeps what it needs alive after the event and the stream are gone.
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

/// Behind an Event. Made by the thread that makes the event; the const members may be called by any thread.
struct EventState {
  EventState(Device d, bool with_timing) : device(d), timing(with_timing) {}
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;
  virtual ~EventState() = default;

  /// The latest record() so far; complete when there was none. Allocates nothing.
  [[nodiscard]] virtual EventPoint point() const = 0;
  [[nodiscard]] virtual bool complete() const { return point().complete(); }
  virtual void synchronize() const { point().wait(); }
  /// Both states are of the same device kind, made with timing, and complete. StateError when one was never recorded.
  [[nodiscard]] virtual double seconds_since(const EventState& earlier) const = 0;

  const Device device;
  const bool timing;
};

/// Behind a Stream. The destructor waits for queued work and does not throw.
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
  /// event may be of any device. Refers to event->point() at the time of the call, not to later records.
  virtual void wait(const std::shared_ptr<EventState>& event) = 0;
  virtual void synchronize() = 0;

  const Device device;
  const bool is_inline;
  SyncLog sync_log;
};

// Host implementations (host_stream.cpp); those of CUDA are in cuda_backend.hpp.
[[nodiscard]] std::unique_ptr<StreamState> make_inline_stream_state();
[[nodiscard]] std::unique_ptr<StreamState> make_worker_stream_state(std::string_view name);
[[nodiscard]] std::shared_ptr<EventState> make_host_event_state(bool timing);

}  // namespace lockstep::detail
