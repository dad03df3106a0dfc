#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm::detail {

/// Description of a rank's current activity. The rank's watchdog reads the description, and so do other processes that
/// share this memory. An object whose bytes are all zero is valid and means that no activity has begun. Only one thread
/// at a time may write, without a lock. Only the watchdog's thread may write `device`. A reader may see a half-written
/// text.
struct Progress {
  static constexpr std::int64_t kNoNumber = -1;
  template <std::size_t N>
  using Text = std::array<std::atomic<char>, N>;  ///< text that ends with a zero byte
  Text<96> doing;
  Text<96> where;
  Text<192> device;  ///< how far the device has come with the enqueued work; only the watchdog's thread writes it
  std::atomic<std::int64_t> number;
  std::atomic<std::int64_t> begun_ns;  ///< now_ns() of the last begin(); 0 before the first begin()
  std::atomic<std::uint64_t> changes;
  std::atomic<bool> paused;

  /// Returns the time of std::chrono::steady_clock in nanoseconds.
  static std::int64_t now_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
  }

  void begin(std::string_view what, std::int64_t of, bool counts) noexcept {
    store(where, {});
    paused.store(!counts, std::memory_order_relaxed);
    store(doing, what);
    number.store(of, std::memory_order_relaxed);
    begun_ns.store(now_ns(), std::memory_order_relaxed);
    changes.fetch_add(1, std::memory_order_release);
  }
  void come_to(std::string_view how_far) noexcept { store(where, how_far); }
  void device_at(std::string_view how_far) noexcept { store(device, how_far); }

  /// Formats the activity: "computing step 7, 1 of 3 buckets enqueued; on the device step 6: summing bucket 2 of 3".
  /// Returns "" before the first begin().
  [[nodiscard]] std::string text() const {
    std::string what = load(doing);
    if (what.empty()) {
      return what;
    }
    const std::int64_t of = number.load(std::memory_order_relaxed);
    const std::string how_far = load(where);
    const std::string on_device = load(device);
    return concat(what, of == kNoNumber ? "" : concat(' ', of), how_far.empty() ? "" : ", ", how_far,
                  on_device.empty() ? "" : "; ", on_device);
  }

 private:
  template <std::size_t N>
  static void store(Text<N>& to, std::string_view text) noexcept {
    const std::size_t length = std::min(text.size(), to.size() - 1);
    for (std::size_t i = 0; i < length; ++i) {
      to[i].store(text[i], std::memory_order_relaxed);
    }
    to[length].store('\0', std::memory_order_relaxed);
  }
  template <std::size_t N>
  static std::string load(const Text<N>& from) {
    std::string text;
    for (const std::atomic<char>& letter : from) {
      const char c = letter.load(std::memory_order_relaxed);
      if (c == '\0') {
        break;
      }
      text += c;
    }
    return text;
  }
};

}  // namespace lockstep::comm::detail
