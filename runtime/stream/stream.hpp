#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>

struct CUstream_st;  // cudaStream_t is CUstream_st*, so this header needs no CUDA header

namespace lockstep {

class Event;

namespace detail {
struct StreamState;
struct EventState;
/// Functions that run and destroy a host stream's task. The task's callable is in a ring slot of fixed size, so
/// enqueue() allocates nothing.
struct TaskVTable {
  void (*run)(void* object);
  void (*destroy)(void* object);
};
}  // namespace detail

/// An ordered queue of work on one device. Can only be moved, so it has one owner. There are three kinds:
///   inline host   work runs at once in the calling thread; synchronize() has nothing to wait for
///   host worker   work runs in order on one thread that the stream owns
///   CUDA          a non-blocking CUDA stream that the Stream owns, or a borrowed stream of the host program
/// If work on a worker throws, the exception poisons the stream: later work is skipped, and its events complete as
/// failed. A stream that waits for such an event is poisoned, too. enqueue() and synchronize() rethrow the exception.
/// One thread at a time may use a stream; any thread may wait for an Event.
class Stream {
 public:
  static constexpr std::size_t kTaskBytes = 2048;  ///< size in bytes of the largest callable that enqueue() takes
  static constexpr std::size_t kQueueSlots = 256;  ///< enqueue() blocks while this many tasks wait

  [[nodiscard]] static Stream host_inline();
  /// Starts the stream's worker thread. Debuggers show its `name` (the first 15 characters).
  [[nodiscard]] static Stream host_worker(std::string_view name);
  /// Makes a non-blocking CUDA stream. Priority 0 is normal, -1 is high. Throws DeviceError in a build without CUDA.
  [[nodiscard]] static Stream cuda(Device device, int priority = 0);
  /// Borrows a stream that the host program owns and keeps alive. nullptr (CUDA's stream 0) is the legacy default
  /// stream of `device`, which programs use when they name no stream. By CUDA's rules, work of the default stream waits
  /// for all earlier work of the device's blocking streams, and work of these streams waits for earlier work of the
  /// default stream. Streams that lockstep makes are non-blocking, so only events order them with the default stream.
  /// The default stream cannot be captured (Graph::capture). For the default stream, cuda_handle() returns
  /// cudaStreamLegacy, which means the same stream in every program, however the program was compiled.
  [[nodiscard]] static Stream borrow_cuda(Device device, CUstream_st* stream);

  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  /// Waits for queued work. Drops an exception that synchronize() or enqueue() has not rethrown.
  ~Stream();

  [[nodiscard]] Device device() const;
  [[nodiscard]] bool is_inline() const;            ///< true for a host stream whose work runs in the calling thread
  [[nodiscard]] CUstream_st* cuda_handle() const;  ///< throws StateError for a host stream

  /// Runs `f` in the stream's order. `f` is copied or moved into the queue and has at most kTaskBytes bytes. Throws
  /// StateError unless this is a host stream.
  template <class F>
  void enqueue(F&& f) {
    using Task = std::decay_t<F>;
    if (is_inline()) {
      std::forward<F>(f)();
      return;
    }
    static_assert(sizeof(Task) <= kTaskBytes && alignof(Task) <= alignof(std::max_align_t));
    static constexpr detail::TaskVTable kVTable{[](void* object) { (*static_cast<Task*>(object))(); },
                                                [](void* object) { static_cast<Task*>(object)->~Task(); }};
    void* slot = acquire_slot();
    ::new (slot) Task(std::forward<F>(f));
    publish_slot(kVTable);
  }

  /// After launch_dependently(true), kernels that lockstep launches on this CUDA stream may begin when the blocks of
  /// the previous kernel have ended. Such a kernel itself waits until the previous kernel's writes are visible
  /// ("Programmatic Dependent Launch and Synchronization" in the CUDA C++ Programming Guide). This shortens the time
  /// from kernel to kernel. The default is off. On a borrowed stream, the host program's own kernels must wait for the
  /// previous kernel in the same way. Throws StateError on a host stream; UnsupportedError on a GPU below compute
  /// capability 9.0, and in a build that also has code for older GPUs.
  void launch_dependently(bool on);
  [[nodiscard]] bool launches_dependently() const;

  void record(Event& event);      ///< the event completes after all work that is enqueued so far
  void wait(const Event& event);  ///< work enqueued from now on starts after the event's latest record() so far
  void synchronize();             ///< blocks the caller until all work is complete; rethrows a worker's exception

  /// Sets a function that is called after each wait of a caller for this stream, whether the caller requested the wait
  /// or not. Examples of calls that wait are synchronize(), some copies and factories on the stream, and some
  /// allocations and deallocations with the stream (SyncReason has all reasons). Event::synchronize() is not reported,
  /// because an event belongs to no stream. An empty function ends the reports. A report must not call
  /// on_synchronisation().
  void on_synchronisation(SyncReport report);
  [[nodiscard]] detail::SyncLog* sync_log() const noexcept;  ///< nullptr if no report is set

 private:
  explicit Stream(std::unique_ptr<detail::StreamState> state);
  void* acquire_slot();
  void publish_slot(const detail::TaskVTable& vtable);
  std::unique_ptr<detail::StreamState> state_;
};

/// A point in a stream. An event can be recorded again; a wait refers to the latest record() before the wait. An event
/// that was never recorded is complete. A stream can wait for an event of any other stream. A host worker waits for a
/// CUDA event by blocking its own thread; a CUDA stream waits for a host event on the device. record() and wait()
/// allocate nothing.
class Event {
 public:
  enum class Timing : bool { off, on };
  /// `device` is the device of the streams on which the event will be recorded.
  explicit Event(Device device, Timing timing = Timing::off);
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  [[nodiscard]] bool complete() const;  ///< returns true if the event is complete; never blocks
  void synchronize() const;             ///< blocks until completion; rethrows the exception if the event's work failed
  /// Returns the seconds from the completion of `earlier` to the completion of this event. Throws StateError unless
  /// both events have Timing::on and are complete.
  [[nodiscard]] double seconds_since(const Event& earlier) const;

 private:
  friend class Stream;
  std::shared_ptr<detail::EventState> state_;  ///< shared with queued records and waits
};

}  // namespace lockstep
