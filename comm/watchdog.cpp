#include <lockstep/comm/watchdog.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::int64_t kNoNumber = -1;
constexpr double kShortest = 0.001;
constexpr Seconds kLongestLook(1);
constexpr int kLooks = 10;

}  // namespace

struct Watchdog::Impl {
  Impl(double s, std::function<void(const std::string&)> e, std::function<void(const std::string&)> l)
      : seconds(s), expired(std::move(e)), look(std::move(l)) {
    require<UsageError>(std::isfinite(s) && s >= kShortest, "watchdog: ", s, " seconds, expected at least ", kShortest);
    thread = std::thread([this] { watch(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    wake.notify_all();
    thread.join();
  }

  void begin(const char* what, std::int64_t of, bool counts) noexcept {
    paused.store(!counts, std::memory_order_relaxed);
    doing.store(what, std::memory_order_relaxed);
    number.store(of, std::memory_order_relaxed);
    changes.fetch_add(1, std::memory_order_release);
  }

  void watch() {
    const Seconds pause = std::min(Seconds(seconds / kLooks), kLongestLook);
    std::uint64_t seen = changes.load(std::memory_order_acquire);
    Seconds still(0);
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, pause, [this] { return over; })) {
      if (look) {
        look(now_doing());
      }
      const std::uint64_t now = changes.load(std::memory_order_acquire);
      // 0 changes: nothing has begun.
      still = now == seen && now > 0 && !paused.load(std::memory_order_relaxed) ? still + pause : Seconds(0);
      seen = now;
      if (still.count() >= seconds * (1 - 1e-9)) {
        lock.unlock();
        expired(text());
        return;
      }
    }
  }

  [[nodiscard]] std::string now_doing() const {
    const std::int64_t of = number.load(std::memory_order_relaxed);
    const std::string what = doing.load(std::memory_order_relaxed);
    return concat(what, of == kNoNumber ? "" : concat(' ', of));
  }

  [[nodiscard]] std::string text() const { return concat("no progress for ", seconds, " s while ", now_doing()); }

  double seconds;
  std::function<void(const std::string&)> expired;
  std::function<void(const std::string&)> look;
  std::atomic<bool> paused = false;
  std::atomic<const char*> doing = "";
  std::atomic<std::int64_t> number = kNoNumber;
  std::atomic<std::uint64_t> changes = 0;
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  std::thread thread;
};

Watchdog::Watchdog(double seconds, std::function<void(const std::string& text)> expired,
                   std::function<void(const std::string& doing)> look)
    : impl_(std::make_unique<Impl>(seconds, std::move(expired), std::move(look))) {}

Watchdog::~Watchdog() = default;

void Watchdog::begin(const char* doing, std::int64_t number) noexcept {
  impl_->begin(doing, number, true);
}
void Watchdog::begin(const char* doing) noexcept {
  impl_->begin(doing, kNoNumber, true);
}
void Watchdog::pause(const char* doing) noexcept {
  impl_->begin(doing, kNoNumber, false);
}

}  // namespace lockstep::comm
