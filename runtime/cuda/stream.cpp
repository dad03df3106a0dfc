#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

// A CUDA stream waits for a host event in a host function. When the host event has failed, work on the device can no
// longer be skipped: the stream remembers the failure, and synchronize() and points recorded after the wait rethrow it.

namespace lockstep::detail {
namespace {

/// The first failed host wait of a stream. Shared with its points and host functions.
class Failure {
 public:
  /// Host wait number `wait` failed (counted from 1). Host functions of a stream run in order: the first one stays.
  void set(std::uint64_t wait, std::exception_ptr cause) {
    const std::lock_guard lock(mutex_);
    if (cause_ == nullptr) {
      cause_ = std::move(cause);
      wait_.store(wait, std::memory_order_release);
    }
  }
  /// Rethrows when one of the first `waits` host waits failed.
  void rethrow(std::uint64_t waits) const {
    if (wait_.load(std::memory_order_acquire) <= waits) {
      std::rethrow_exception(cause_);
    }
  }

 private:
  std::mutex mutex_;
  std::atomic<std::uint64_t> wait_{~std::uint64_t{0}};
  std::exception_ptr cause_;  ///< written once, before wait_
};

/// One CUDA event and what it was last recorded for.
class CudaPoint final : public Timeline {
 public:
  CudaPoint(Device device, bool timing) : device_(device), timing_(timing) {
    const cuda::DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(device, cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming));
  }
  CudaPoint(const CudaPoint&) = delete;
  CudaPoint& operator=(const CudaPoint&) = delete;
  ~CudaPoint() override {
    const cuda::DeviceGuard guard(device_, std::nothrow);
    cuda::ignore(cudaEventDestroy(event_));
  }

  void record(CUstream_st* stream, std::shared_ptr<const Failure> failure, std::uint64_t host_waits) {
    const cuda::DeviceGuard guard(device_);
    const bool captured = cuda_is_capturing(device_, stream);
    require<StateError>(!captured || !timing_,
                        "record: the stream is being captured into a graph, where events with timing have no time");
    LOCKSTEP_CUDA_CHECK(device_, cudaEventRecord(event_, stream));
    captured_ = captured;
    failure_ = std::move(failure);
    host_waits_ = captured ? 0 : host_waits;  // failures before a capture are not part of the graph
  }

  [[nodiscard]] bool reached(std::uint64_t /*position*/) const override {
    require_time();
    const cuda::DeviceGuard guard(device_);  // a thread without a context would get one on device 0
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cuda::ignore(status);
      return false;
    }
    cuda::check(status, "cudaEventQuery(event_)", device_);
    return true;
  }

  void wait(std::uint64_t /*position*/) const override {
    require_time();
    {
      const cuda::DeviceGuard guard(device_);
      LOCKSTEP_CUDA_CHECK(device_, cudaEventSynchronize(event_));
    }
    failure_->rethrow(host_waits_);
  }

  [[nodiscard]] cudaEvent_t event() const { return event_; }
  [[nodiscard]] const std::shared_ptr<const Failure>& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t host_waits() const { return host_waits_; }

 private:
  void require_time() const {
    require<StateError>(!captured_,
                        "the event was last recorded in a graph, where it is complete at no time of its own");
  }

  const Device device_;
  const bool timing_;
  cudaEvent_t event_ = nullptr;
  bool captured_ = false;
  std::shared_ptr<const Failure> failure_;
  std::uint64_t host_waits_ = 0;  ///< queued on the stream before the record
};

/// CUDA can only say whether the latest recording of an event is complete, but a host stream may still wait for an
/// earlier one. So record() takes a CUDA event that nobody holds; there is nearly always one.
class CudaEventState final : public EventState {
 public:
  CudaEventState(Device device_of_streams, bool with_timing) : EventState(device_of_streams, with_timing) {
    points_.push_back(std::make_shared<CudaPoint>(device, timing));
  }

  void record(CUstream_st* stream, const std::shared_ptr<const Failure>& failure, std::uint64_t host_waits) {
    const std::lock_guard lock(mutex_);
    const auto unheld =
        std::find_if(points_.begin(), points_.end(), [](const auto& point) { return point.use_count() == 1; });
    auto next = static_cast<std::size_t>(unheld - points_.begin());
    if (unheld == points_.end()) {
      points_.push_back(std::make_shared<CudaPoint>(device, timing));
    }
    std::atomic_thread_fence(std::memory_order_acquire);  // its former holder has finished with it
    points_[next]->record(stream, failure, host_waits);
    latest_ = static_cast<std::ptrdiff_t>(next);
  }

  [[nodiscard]] EventPoint point() const override { return {latest(), 0}; }
  [[nodiscard]] std::shared_ptr<const CudaPoint> latest() const {
    const std::lock_guard lock(mutex_);
    return latest_ < 0 ? nullptr : points_[static_cast<std::size_t>(latest_)];
  }

  [[nodiscard]] double seconds_since(const EventState& earlier) const override {
    const auto from = static_cast<const CudaEventState&>(earlier).latest();
    const auto to = latest();
    require<StateError>(from != nullptr && to != nullptr, "seconds_since: an event was never recorded");
    from->wait(0);  // complete: only rethrows the failure of a poisoned stream
    to->wait(0);
    const cuda::DeviceGuard guard(device);
    float milliseconds = 0;
    LOCKSTEP_CUDA_CHECK(device, cudaEventElapsedTime(&milliseconds, from->event(), to->event()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<CudaPoint>> points_;
  std::ptrdiff_t latest_ = -1;  ///< index into points_; -1: never recorded
};

/// What a host function waits for. Kept until the stream uses it again: a host function must not call CUDA, so it
/// cannot destroy what it waited for.
struct HostWait {
  EventPoint host;                          ///< either this: a host event
  std::shared_ptr<const Failure> upstream;  ///< or this: what an event of another CUDA stream depends on,
  std::uint64_t upstream_waits = 0;         ///< complete when the function runs
  std::shared_ptr<Failure> failure;
  std::uint64_t number = 0;
  std::atomic<bool> finished{true};

  static void run(void* object) {
    auto& self = *static_cast<HostWait*>(object);
    try {
      self.host.wait();
      if (self.upstream != nullptr) {
        self.upstream->rethrow(self.upstream_waits);
      }
    } catch (...) {
      self.failure->set(self.number, std::current_exception());
    }
    self.finished.store(true, std::memory_order_release);
  }
};

template <class F>
bool fails(F&& f) {
  try {
    f();
    return false;
  } catch (...) {
    return true;
  }
}

class CudaStreamState final : public StreamState {
 public:
  CudaStreamState(Device d, int priority) : StreamState(d, false), owned_(true) {
    require_cuda_device(device);
    const cuda::DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(device, cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  /// Uses cudaStreamLegacy for a null handle: compiled per-thread, a null handle would mean each thread's own stream.
  CudaStreamState(Device d, CUstream_st* stream)
      : StreamState(d, false), owned_(false), stream_(stream != nullptr ? stream : cudaStreamLegacy) {
    require_cuda_device(device);
  }

  ~CudaStreamState() override {
    const cuda::DeviceGuard guard(device, std::nothrow);
    const bool host_waits_run = std::any_of(
        waits_.begin(), waits_.end(), [](const auto& wait) { return !wait->finished.load(std::memory_order_acquire); });
    if (owned_ || host_waits_run) {  // host functions use waits_
      const SyncScope scope(sync_log, device, "~Stream", SyncReason::destruction);
      cuda::ignore(cudaStreamSynchronize(stream_));
    }
    if (owned_) {
      cuda::ignore(cudaStreamDestroy(stream_));
    }
  }

  [[nodiscard]] CUstream_st* cuda_handle() const override { return stream_; }

  void record(const std::shared_ptr<EventState>& event) override {
    static_cast<CudaEventState&>(*event).record(stream_, failure_, host_waits_);
  }

  void wait(const std::shared_ptr<EventState>& event) override {
    if (event->device.kind == DeviceKind::cuda) {
      wait_for_cuda(static_cast<const CudaEventState&>(*event));
      return;
    }
    EventPoint point = event->point();
    if (point.complete() && !fails([&] { point.wait(); })) {
      return;
    }
    require<StateError>(!cuda_is_capturing(device, stream_),
                        "wait: the stream is being captured, and a graph cannot wait for a host event");
    HostWait& wait = unused_wait();
    wait.host = std::move(point);
    launch(wait);
  }

  void synchronize() override {
    {
      const cuda::DeviceGuard guard(device);
      LOCKSTEP_CUDA_CHECK(device, cudaStreamSynchronize(stream_));
    }
    failure_->rethrow(host_waits_);
  }

 private:
  void wait_for_cuda(const CudaEventState& event) {
    const std::shared_ptr<const CudaPoint> point = event.latest();
    if (point == nullptr) {
      return;
    }
    {
      const cuda::DeviceGuard guard(device);
      LOCKSTEP_CUDA_CHECK(device, cudaStreamWaitEvent(stream_, point->event(), 0));
    }
    // The other stream can only be poisoned when it waited for hosts.
    if (point->host_waits() > 0 && point->failure() != failure_ &&
        !(point->reached(0) && !fails([&] { point->failure()->rethrow(point->host_waits()); }))) {
      HostWait& wait = unused_wait();
      wait.upstream = point->failure();
      wait.upstream_waits = point->host_waits();
      launch(wait);
    }
  }

  HostWait& unused_wait() {
    for (const auto& wait : waits_) {
      if (wait->finished.load(std::memory_order_acquire)) {
        wait->host = {};
        wait->upstream = nullptr;
        return *wait;
      }
    }
    waits_.push_back(std::make_unique<HostWait>());
    waits_.back()->failure = failure_;
    return *waits_.back();
  }

  void launch(HostWait& wait) {
    wait.number = host_waits_ + 1;
    const cuda::DeviceGuard guard(device);
    wait.finished.store(false, std::memory_order_relaxed);
    const cudaError_t status = cudaLaunchHostFunc(stream_, HostWait::run, &wait);
    if (status != cudaSuccess) {
      wait.finished.store(true, std::memory_order_relaxed);
    }
    cuda::check(status, "cudaLaunchHostFunc(stream_, HostWait::run, &wait)", device);
    ++host_waits_;
  }

  const bool owned_;
  CUstream_st* stream_ = nullptr;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::uint64_t host_waits_ = 0;
  std::vector<std::unique_ptr<HostWait>> waits_;  ///< grows to the most that were ever queued at once
};

}  // namespace

std::unique_ptr<StreamState> make_cuda_stream_state(Device device, int priority) {
  return std::make_unique<CudaStreamState>(device, priority);
}

std::unique_ptr<StreamState> borrow_cuda_stream_state(Device device, CUstream_st* stream) {
  return std::make_unique<CudaStreamState>(device, stream);
}

std::shared_ptr<EventState> make_cuda_event_state(Device device, bool timing) {
  require_cuda_device(device);
  return std::make_shared<CudaEventState>(device, timing);
}

}  // namespace lockstep::detail
