#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/cuda/driver.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

// How a CUDA stream waits for an event of a host stream: the device waits until a counter in page-locked memory reaches
// the event's position. The worker thread of the host stream increments the counter after each task. If a device cannot
// wait for a value in memory, the stream waits in a CUDA host function. CUDA may run the host functions of all streams
// on one thread, one after the other.
//
// If a task of the host stream has failed, the work on the device still runs, because CUDA cannot remove work from a
// stream. The failure is rethrown by synchronize() of the CUDA stream, and by waits for events that the CUDA stream
// records after its wait for the host.

namespace lockstep::detail {
namespace {

/// The waits of one CUDA stream for host work, numbered from 1. The stream's recorded events share this object. A wait
/// is over when its host work has ended; only then is it known whether the host work failed. Only the thread that uses
/// the stream adds waits; any thread may read the waits.
class HostWaits {
 public:
  /// Adds a wait for work of a host stream.
  void add(EventPoint host) { add({.host = std::move(host), .upstream = nullptr, .upstream_waits = 0}); }
  /// Adds a wait for the first `waits` waits in `upstream`, the HostWaits of another CUDA stream.
  void add(std::shared_ptr<const HostWaits> upstream, std::uint64_t waits) {
    add({.host = {}, .upstream = std::move(upstream), .upstream_waits = waits});
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }  ///< call this only in the stream's thread

  /// Rethrows the failure if one of the first `waits` waits has failed. All of these waits must be over.
  void rethrow(std::uint64_t waits) const {
    if (waits == 0) {
      return;
    }
    const auto [failure, causes] = known(waits);
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
    for (const Cause& cause : causes) {
      cause.rethrow();
    }
  }
  /// Returns true if the first `waits` waits are over. Never blocks.
  [[nodiscard]] bool over(std::uint64_t waits) const {
    const auto [failure, causes] = known(waits);
    return failure != nullptr || std::all_of(causes.begin(), causes.end(), [](const Cause& c) { return c.over(); });
  }

  /// Removes the waits that are over, and keeps the first failure. Only the stream's thread may call this.
  void tidy() {
    while (!causes_.empty() && causes_.front().over()) {  // safe without the lock: only this thread changes causes_
      std::exception_ptr failure;
      try {
        causes_.front().rethrow();
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (failure != nullptr) {
        failure_ = std::move(failure);
        failed_ = causes_.front().number;
        causes_.clear();
      } else {
        causes_.erase(causes_.begin());
      }
    }
  }

 private:
  struct Cause {
    EventPoint host;
    std::shared_ptr<const HostWaits> upstream;
    std::uint64_t upstream_waits = 0;
    std::uint64_t number = 0;

    [[nodiscard]] bool over() const { return upstream != nullptr ? upstream->over(upstream_waits) : host.complete(); }
    void rethrow() const {
      if (upstream != nullptr) {
        upstream->rethrow(upstream_waits);
      } else {
        host.wait();
      }
    }
  };

  void add(Cause cause) {
    tidy();
    cause.number = ++count_;
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) {
      causes_.push_back(std::move(cause));
    }
  }

  /// If one of the first `waits` waits has failed, returns its failure. Otherwise returns the waits, among the first
  /// `waits`, that may not be over. The caller must check these waits without holding mutex_. Otherwise two streams
  /// that wait for each other could deadlock.
  [[nodiscard]] std::pair<std::exception_ptr, std::vector<Cause>> known(std::uint64_t waits) const {
    std::pair<std::exception_ptr, std::vector<Cause>> result;
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr && failed_ <= waits) {
      result.first = failure_;
      return result;
    }
    for (const Cause& cause : causes_) {
      if (cause.number <= waits) {
        result.second.push_back(cause);
      }
    }
    return result;
  }

  mutable std::mutex mutex_;
  std::vector<Cause> causes_;  ///< waits that were not over at the last tidy(), in the order of their numbers
  std::exception_ptr failure_;
  std::uint64_t failed_ = 0;  ///< number of the first wait that failed
  std::uint64_t count_ = 0;
};

/// One CUDA event. The object also stores how many waits for host work the stream had queued at the event's last
/// record.
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

  void record(CUstream_st* stream, std::shared_ptr<const HostWaits> waits, std::uint64_t host_waits) {
    const cuda::DeviceGuard guard(device_);
    const bool captured = cuda_is_capturing(device_, stream);
    require<StateError>(!captured || !timing_,
                        "record: the stream is being captured into a graph, where events with timing have no time; "
                        "expected an event without timing");
    LOCKSTEP_CUDA_CHECK(device_, cudaEventRecord(event_, stream));
    captured_ = captured;
    waits_ = std::move(waits);
    host_waits_ = captured ? 0 : host_waits;  // failures before a capture do not belong to the graph
  }

  [[nodiscard]] bool reached(std::uint64_t /*position*/) const override {
    require_time();
    // The guard is needed: a thread without a context would get a context on device 0.
    const cuda::DeviceGuard guard(device_);
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
    waits_->rethrow(host_waits_);
  }

  [[nodiscard]] cudaEvent_t event() const { return event_; }
  [[nodiscard]] const std::shared_ptr<const HostWaits>& waits() const { return waits_; }
  [[nodiscard]] std::uint64_t host_waits() const { return host_waits_; }

 private:
  void require_time() const {
    require<StateError>(!captured_,
                        "the event was last recorded in a graph, where it has no time of its own; expected a record "
                        "outside of a graph");
  }

  const Device device_;
  const bool timing_;
  cudaEvent_t event_ = nullptr;
  bool captured_ = false;
  std::shared_ptr<const HostWaits> waits_;
  std::uint64_t host_waits_ = 0;  ///< number of waits for hosts that the stream had queued before the record
};

/// CUDA only reports whether an event's latest record is complete, but a host stream may still wait for an earlier
/// record. So record() uses a CUDA event to which no queued wait refers. If there is none, record() makes a new one.
class CudaEventState final : public EventState {
 public:
  CudaEventState(Device device_of_streams, bool with_timing) : EventState(device_of_streams, with_timing) {
    points_.push_back(std::make_shared<CudaPoint>(device, timing));
  }

  void record(CUstream_st* stream, const std::shared_ptr<const HostWaits>& waits, std::uint64_t host_waits) {
    const std::lock_guard lock(mutex_);
    const auto unheld =
        std::find_if(points_.begin(), points_.end(), [](const auto& point) { return point.use_count() == 1; });
    auto next = static_cast<std::size_t>(unheld - points_.begin());
    if (unheld == points_.end()) {
      points_.push_back(std::make_shared<CudaPoint>(device, timing));
    }
    // A use count of 1 means that nobody else uses this CUDA event any more. The fence orders the record after the last
    // use of the event by another thread.
    std::atomic_thread_fence(std::memory_order_acquire);
    points_[next]->record(stream, waits, host_waits);
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
    require<StateError>(from != nullptr && to != nullptr,
                        "seconds_since: an event was never recorded, expected a record of both events before");
    from->wait(0);  // returns at once, because the event is complete; rethrows the failure if the stream's work failed
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

/// A wait for an event of a host stream, which a CUDA host function (cudaLaunchHostFunc) does. The stream owns and
/// reuses the object. The host function must not destroy the object's event, because CUDA forbids CUDA calls in host
/// functions.
struct HostFunction {
  EventPoint host;
  std::atomic<bool> finished{true};

  static void run(void* object) {
    auto& self = *static_cast<HostFunction*>(object);
    try {
      self.host.wait();
    } catch (...) {  // ignored, because HostWaits reports this failure
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

using WaitValue = decltype(&cuStreamWaitValue64);

/// Returns the driver function that makes the device's streams wait for a value in memory; nullptr if there is none.
WaitValue wait_value_of(Device device) {
  const auto get = cuda::driver_function<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute", device);
  int can = 0;
  cuda::check_driver(get(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device.index), "cuDeviceGetAttribute",
                     device);
  return can != 0 ? cuda::driver_function<WaitValue>("cuStreamWaitValue64", device) : nullptr;
}

/// Makes a counter in page-locked memory, which every device reads at the host's address.
Timeline::Counter make_counter(Device device) {
  using Value = std::atomic<std::uint64_t>;
  static_assert(Value::is_always_lock_free && sizeof(Value) == sizeof(cuuint64_t));
  const cuda::DeviceGuard guard(device);
  void* memory = nullptr;
  LOCKSTEP_CUDA_CHECK(device, cudaMallocHost(&memory, sizeof(Value)));
  return {::new (memory) Value(0), [device](Value* counter) {
            const cuda::DeviceGuard current(device, std::nothrow);
            cuda::ignore(cudaFreeHost(counter));
          }};
}

class CudaStreamState final : public StreamState {
 public:
  CudaStreamState(Device d, int priority) : StreamState(d, false), owned_(true) {
    require_cuda_device(device);
    const cuda::DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(device, cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  /// Uses cudaStreamLegacy for a null handle. In code compiled for per-thread default streams, a null handle would mean
  /// each thread's own stream.
  CudaStreamState(Device d, CUstream_st* stream)
      : StreamState(d, false), owned_(false), stream_(stream != nullptr ? stream : cudaStreamLegacy) {
    require_cuda_device(device);
  }

  ~CudaStreamState() override {
    const cuda::DeviceGuard guard(device, std::nothrow);
    const bool functions_run = std::any_of(functions_.begin(), functions_.end(), [](const auto& function) {
      return !function->finished.load(std::memory_order_acquire);
    });
    if (owned_ || functions_run || !counters_.empty()) {  // waits, because the device may still read the counters
      const SyncScope scope(sync_log, device, "~Stream", SyncReason::destruction);
      cuda::ignore(cudaStreamSynchronize(stream_));
    }
    waits_->tidy();  // breaks reference cycles: streams that wait for each other may hold each other's HostWaits
    if (owned_) {
      cuda::ignore(cudaStreamDestroy(stream_));
    }
  }

  [[nodiscard]] CUstream_st* cuda_handle() const override { return stream_; }

  void record(const std::shared_ptr<EventState>& event) override {
    static_cast<CudaEventState&>(*event).record(stream_, waits_, waits_->count());
  }

  void wait(const std::shared_ptr<EventState>& event) override {
    if (event->device.kind == DeviceKind::cuda) {
      wait_for_cuda(static_cast<const CudaEventState&>(*event));
      return;
    }
    EventPoint point = event->point();
    if (!point.complete()) {
      require<StateError>(!cuda_is_capturing(device, stream_),
                          "wait: the stream is being captured, and a graph cannot wait for a host event; expected the "
                          "wait before the capture");
      wait_for_host(point);
      waits_->add(std::move(point));
    } else if (fails([&] { point.wait(); })) {
      waits_->add(std::move(point));
    }
  }

  void launch_dependently(bool on) override {
    constexpr int kMajor = 9;
    int major = 0;
    LOCKSTEP_CUDA_CHECK(device, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
    require<UnsupportedError>(!on || major >= kMajor, "launch_dependently: ", device, " has compute capability ", major,
                              ".x, expected ", kMajor, ".0 or more");
    // Kernels compiled for older architectures do not wait for the kernel before them, whatever GPU runs them.
    require<UnsupportedError>(!on || oldest_architecture(LOCKSTEP_BUILT_FOR) >= kMajor * 10,
                              "launch_dependently: this build has code for ", LOCKSTEP_BUILT_FOR,
                              " (LOCKSTEP_CUDA_ARCHITECTURES), expected for ", kMajor * 10, " and later alone");
    dependent_launches = on;
  }

  void synchronize() override {
    {
      const cuda::DeviceGuard guard(device);
      LOCKSTEP_CUDA_CHECK(device, cudaStreamSynchronize(stream_));
    }
    counters_.clear();
    waits_->rethrow(waits_->count());
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
    // A recorded event can carry a failure only if its stream has waited for host work.
    const std::uint64_t waits = point->host_waits();
    if (waits > 0 && point->waits() != waits_ &&
        !(point->waits()->over(waits) && !fails([&] { point->waits()->rethrow(waits); }))) {
      waits_->add(point->waits(), waits);
    }
  }

  void wait_for_host(const EventPoint& point) {
    const cuda::DeviceGuard guard(device);
    if (!wait_value_) {
      wait_value_ = wait_value_of(device);
    }
    const Timeline::Counter counter =
        *wait_value_ == nullptr ? nullptr : point.timeline->published([this] { return make_counter(device); });
    if (counter == nullptr) {
      return launch(point);
    }
    if (std::find(counters_.begin(), counters_.end(), counter) == counters_.end()) {
      counters_.push_back(counter);
    }
    cuda::check_driver(
        (*wait_value_)(stream_, reinterpret_cast<CUdeviceptr>(counter.get()), point.position, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue64", device);
  }

  void launch(const EventPoint& point) {
    auto found = std::find_if(functions_.begin(), functions_.end(),
                              [](const auto& function) { return function->finished.load(std::memory_order_acquire); });
    if (found == functions_.end()) {
      found = functions_.insert(found, std::make_unique<HostFunction>());
    }
    HostFunction& function = **found;
    function.host = point;
    function.finished.store(false, std::memory_order_relaxed);
    const cudaError_t status = cudaLaunchHostFunc(stream_, HostFunction::run, &function);
    if (status != cudaSuccess) {
      function.finished.store(true, std::memory_order_relaxed);
    }
    cuda::check(status, "cudaLaunchHostFunc(stream_, HostFunction::run, &function)", device);
  }

  const bool owned_;
  CUstream_st* stream_ = nullptr;
  const std::shared_ptr<HostWaits> waits_ = std::make_shared<HostWaits>();
  std::optional<WaitValue> wait_value_;  ///< set by the first wait for a host stream
  /// Counters that the device may still read, for waits since the last synchronize().
  std::vector<Timeline::Counter> counters_;
  /// Host functions, reused after they have run. Their number is the greatest number of host functions that were queued
  /// at once.
  std::vector<std::unique_ptr<HostFunction>> functions_;
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
