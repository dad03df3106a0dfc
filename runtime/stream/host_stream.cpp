#include <lockstep/runtime/detail/stream_state.hpp>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::detail {
namespace {

using Clock = std::chrono::steady_clock;

// Number of pauses before a worker sleeps. All pauses together take a few microseconds, which is less than the time to
// sleep and wake up.
constexpr int kSpins = 200;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Progress of a worker. Position p is reached after the first p tasks of the stream have run or were skipped. Event
/// points share this object, so they work after the stream is destroyed.
class WorkerTimeline final : public Timeline {
 public:
  [[nodiscard]] bool reached(std::uint64_t position) const override {
    return done_.load(std::memory_order_acquire) >= position;
  }

  void wait(std::uint64_t position) const override {
    wait_until_reached(position);
    rethrow_if_failed(position);
  }

  void wait_until_reached(std::uint64_t position) const {
    for (int i = 0; i < kSpins; ++i) {
      if (reached(position)) {
        return;
      }
      pause_briefly();
    }
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] { return reached(position); });
  }

  /// If one of the first `position` tasks failed, rethrows its exception.
  void rethrow_if_failed(std::uint64_t position) const {
    if (failed_after_.load(std::memory_order_acquire) < position) {
      std::rethrow_exception(failure_);
    }
  }

  [[nodiscard]] bool failed() const { return failed_after_.load(std::memory_order_relaxed) != kNever; }

  /// Counts one more task as done. `failure` is the task's exception, or nullptr. The worker calls this.
  void advance(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t before = done_.load(std::memory_order_relaxed);
      if (failure != nullptr) {
        failure_ = std::move(failure);
        failed_after_.store(before, std::memory_order_release);
      }
      done_.store(before + 1, std::memory_order_release);
      if (counter_ != nullptr) {
        counter_->store(before + 1, std::memory_order_release);
      }
    }
    progress_.notify_all();
  }

  [[nodiscard]] Counter published(const std::function<Counter()>& make) const override {
    {
      const std::lock_guard lock(mutex_);
      if (counter_ != nullptr) {
        return counter_;
      }
    }
    Counter made = make();
    const std::lock_guard lock(mutex_);
    if (counter_ == nullptr) {
      counter_ = std::move(made);
      counter_->store(done_.load(std::memory_order_relaxed), std::memory_order_release);
    }
    return counter_;
  }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable progress_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> failed_after_{kNever};  ///< number of tasks before the first task that threw
  std::exception_ptr failure_;  ///< exception of the first task that threw; written once, before failed_after_
  mutable Counter counter_;     ///< counter in memory that a device reads; set by the first published()
};

class HostEventState final : public EventState {
 public:
  explicit HostEventState(bool with_timing) : EventState(Device::cpu(), with_timing) {}

  [[nodiscard]] EventPoint point() const override {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

  /// Stores `point`, the position at which record() recorded this event. Returns the number of this record().
  std::uint64_t set(EventPoint point) {
    const std::lock_guard lock(mutex_);
    latest_ = std::move(point);
    return ++recorded_;
  }

  /// Stores the present time as the completion of record() number `number`. Does nothing if a later record() exists.
  void stamp(std::uint64_t number) {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (number == recorded_) {
      time_ = now;
    }
  }

  [[nodiscard]] double seconds_since(const EventState& earlier) const override {
    const auto& from = static_cast<const HostEventState&>(earlier);
    return std::chrono::duration<double>(time() - from.time()).count();
  }

 private:
  [[nodiscard]] Clock::time_point time() const {
    point().wait();  // returns at once, because the event is complete; rethrows the failure if the stream has failed
    const std::lock_guard lock(mutex_);
    require<StateError>(recorded_ > 0,
                        "seconds_since: an event was never recorded, expected a record of both events before");
    return time_;
  }

  mutable std::mutex mutex_;
  EventPoint latest_;
  std::uint64_t recorded_ = 0;
  Clock::time_point time_;
};

class InlineStreamState final : public StreamState {
 public:
  InlineStreamState() : StreamState(Device::cpu(), true) {}

  void record(const std::shared_ptr<EventState>& event) override {
    auto& host = static_cast<HostEventState&>(*event);
    host.stamp(host.set({}));
  }
  void wait(const std::shared_ptr<EventState>& event) override {
    if (event->complete()) {
      event->synchronize();  // does not wait, because the event is complete; rethrows a failure
      return;
    }
    const SyncScope scope(sync_log, device, "wait", SyncReason::event);
    event->synchronize();
  }
  void synchronize() override {}
};

class WorkerStreamState final : public StreamState {
 public:
  explicit WorkerStreamState(std::string_view name)
      : StreamState(Device::cpu(), false),
        slots_(new Slot[Stream::kQueueSlots]),
        thread_(helper_thread([this] { run(); })) {
    pthread_setname_np(thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
  }

  ~WorkerStreamState() override {
    const SyncScope scope(sync_log, device, "~Stream", SyncReason::destruction);
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_one();
    thread_.join();
  }

  void* acquire_slot() override {
    require_other_thread("enqueue");
    timeline_->rethrow_if_failed(kAnyPosition);
    void* slot = free_slot();
    // Checks a second time, because the stream may have failed while this call waited for a free slot.
    timeline_->rethrow_if_failed(kAnyPosition);
    return slot;
  }

  void publish_slot(const TaskVTable& vtable) override {
    const std::uint64_t index = published_.load(std::memory_order_relaxed);
    slots_[index % Stream::kQueueSlots].vtable = &vtable;
    {
      const std::lock_guard lock(mutex_);
      published_.store(index + 1, std::memory_order_release);
    }
    work_.notify_one();
  }

  void record(const std::shared_ptr<EventState>& event) override {
    auto host = std::static_pointer_cast<HostEventState>(event);
    const std::uint64_t position = published_.load(std::memory_order_relaxed);
    if (!host->timing) {
      host->set({timeline_, position});
      return;
    }
    require_other_thread("record");
    void* slot = free_slot();  // takes a slot even if the stream has failed, because the event must complete
    const std::uint64_t number = host->set({timeline_, position + 1});
    push(slot, [host = std::move(host), number] { host->stamp(number); });
  }

  void wait(const std::shared_ptr<EventState>& event) override {
    EventPoint point = event->point();
    if (point.timeline == nullptr) {
      return;
    }
    require_other_thread("wait");
    push(free_slot(), [point = std::move(point)] { point.wait(); });
  }

  void synchronize() override {
    require_other_thread("synchronize");
    timeline_->wait_until_reached(published_.load(std::memory_order_relaxed));
    timeline_->rethrow_if_failed(kAnyPosition);
  }

 private:
  static constexpr std::uint64_t kAnyPosition = ~std::uint64_t{0};
  struct Slot {
    alignas(std::max_align_t) std::byte object[Stream::kTaskBytes];
    const TaskVTable* vtable;
  };

  /// Waits until the ring has room, and returns the free slot.
  void* free_slot() {
    const std::uint64_t index = published_.load(std::memory_order_relaxed);
    if (index >= Stream::kQueueSlots && !timeline_->reached(index - Stream::kQueueSlots + 1)) {
      const SyncScope scope(sync_log, device, "enqueue", SyncReason::queue_full);
      timeline_->wait_until_reached(index - Stream::kQueueSlots + 1);
    }
    return slots_[index % Stream::kQueueSlots].object;
  }

  template <class Task>
  void push(void* slot, Task&& task) {
    using T = std::decay_t<Task>;
    static_assert(sizeof(T) <= Stream::kTaskBytes);
    static constexpr TaskVTable kVTable{[](void* object) { (*static_cast<T*>(object))(); },
                                        [](void* object) { static_cast<T*>(object)->~T(); }};
    ::new (slot) T(std::forward<Task>(task));
    publish_slot(kVTable);
  }

  /// Throws StateError if the caller is a task of this stream, because a task that waits for its own stream never ends.
  void require_other_thread(const char* what) const {
    require<StateError>(std::this_thread::get_id() != thread_.get_id(), what,
                        ": called by a task that runs on this stream, expected a call of another thread");
  }

  void run() {
    for (std::uint64_t index = 0; next(index); ++index) {
      Slot& slot = slots_[index % Stream::kQueueSlots];
      std::exception_ptr failure;
      if (!timeline_->failed()) {
        try {
          slot.vtable->run(slot.object);
        } catch (...) {
          failure = std::current_exception();
        }
      }
      slot.vtable->destroy(slot.object);
      timeline_->advance(std::move(failure));
    }
  }

  /// Waits until task `index` is enqueued. Returns false if the stream ends without such a task.
  bool next(std::uint64_t index) {
    for (int i = 0; i < kSpins; ++i) {
      if (published_.load(std::memory_order_acquire) > index) {
        return true;
      }
      pause_briefly();
    }
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] { return stop_ || published_.load(std::memory_order_acquire) > index; });
    return published_.load(std::memory_order_acquire) > index;
  }

  std::shared_ptr<WorkerTimeline> timeline_ = std::make_shared<WorkerTimeline>();
  std::unique_ptr<Slot[]> slots_;
  std::mutex mutex_;
  std::condition_variable work_;
  /// Number of tasks that were enqueued; written only by the thread that uses the stream.
  std::atomic<std::uint64_t> published_{0};
  bool stop_ = false;
  std::thread thread_;  ///< last member, because the thread starts when all other members exist
};

}  // namespace

std::unique_ptr<StreamState> make_inline_stream_state() {
  return std::make_unique<InlineStreamState>();
}

std::unique_ptr<StreamState> make_worker_stream_state(std::string_view name) {
  return std::make_unique<WorkerStreamState>(name);
}

std::shared_ptr<EventState> make_host_event_state(bool timing) {
  return std::make_shared<HostEventState>(timing);
}

}  // namespace lockstep::detail
