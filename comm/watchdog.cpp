#include <lockstep/comm/watchdog.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::comm {

namespace {

using Seconds = std::chrono::duration<double>;

using detail::Progress;

constexpr double kShortest = 0.001;
constexpr Seconds kLongestLook(1);
constexpr int kLooks = 10;
constexpr double kReport = 4;  ///< divisor: the default of report_after() is the watchdog's seconds / kReport

}  // namespace

struct Watchdog::Impl {
  Impl(double s, std::function<void(const std::string&)> e, std::function<void(const Look&)> l, Progress* p)
      : seconds(s),
        expired(std::move(e)),
        look(std::move(l)),
        progress(p != nullptr ? *p : own),
        report_after(s / kReport) {
    require<UsageError>(std::isfinite(s) && s >= kShortest, "watchdog: the limit is ", s,
                        " seconds, expected at least ", kShortest);
    thread = helper_thread([this] { watch(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    wake.notify_all();
    thread.join();
  }

  void watch() {
    const Seconds pause = std::min(Seconds(seconds / kLooks), kLongestLook);
    std::uint64_t seen = progress.changes.load(std::memory_order_acquire);
    std::string device_seen;
    Seconds still(0);
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, pause, [this] { return over; })) {
      const std::uint64_t now = progress.changes.load(std::memory_order_acquire);
      std::string device_now = on_device();
      // `now` is 0 until the first begin(); before that, no time counts.
      const bool stands = now == seen && device_now == device_seen && now > 0;
      still = stands && !progress.paused.load(std::memory_order_relaxed) ? still + pause : Seconds(0);
      seen = now;
      device_seen = std::move(device_now);
      if (look) {
        const double after = report_after.load(std::memory_order_relaxed);
        look({.doing = progress.text(), .still_s = still.count(), .stalls = after > 0 && still.count() >= after});
      }
      if (still.count() >= seconds * (1 - 1e-9)) {
        lock.unlock();
        expired(text());
        return;
      }
    }
  }

  /// Calls the device function and stores its text in `progress`, where the other ranks of the node can read it.
  [[nodiscard]] std::string on_device() {
    const std::lock_guard lock(device_mutex);
    std::string text = device ? device() : std::string();
    progress.device_at(text);
    return text;
  }

  [[nodiscard]] std::string text() const { return concat("no progress for ", seconds, " s while ", progress.text()); }

  double seconds;
  std::function<void(const std::string&)> expired;
  std::function<void(const Look&)> look;
  Progress own{};
  Progress& progress;
  std::atomic<double> report_after;
  std::mutex device_mutex;
  std::function<std::string()> device;  ///< guarded by device_mutex, like device_owner
  const void* device_owner = nullptr;
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  std::thread thread;
};

Watchdog::Watchdog(double seconds, std::function<void(const std::string& text)> expired,
                   std::function<void(const Look& found)> look, Progress* progress)
    : impl_(std::make_unique<Impl>(seconds, std::move(expired), std::move(look), progress)) {}

Watchdog::~Watchdog() = default;

void Watchdog::begin(const char* doing, std::int64_t number) noexcept {
  impl_->progress.begin(doing, number, true);
}
void Watchdog::begin(const char* doing) noexcept {
  impl_->progress.begin(doing, Progress::kNoNumber, true);
}
void Watchdog::where(std::string_view how_far) noexcept {
  impl_->progress.come_to(how_far);
}
void Watchdog::watch_device(const void* owner, std::function<std::string()> device) {
  const std::lock_guard lock(impl_->device_mutex);
  impl_->device = std::move(device);
  impl_->device_owner = owner;
}
void Watchdog::forget_device(const void* owner) noexcept {
  const std::lock_guard lock(impl_->device_mutex);
  if (impl_->device_owner == owner) {
    impl_->device = nullptr;
    impl_->device_owner = nullptr;
  }
}
void Watchdog::report_after(double seconds) {
  require<UsageError>(std::isfinite(seconds) && seconds >= 0, "watchdog: report_after is ", seconds,
                      " seconds, expected at least 0");
  impl_->report_after.store(seconds, std::memory_order_relaxed);
}
void Watchdog::pause(const char* doing) noexcept {
  impl_->progress.begin(doing, Progress::kNoNumber, false);
}

}  // namespace lockstep::comm
