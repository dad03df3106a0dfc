#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::comm {

class Session;
namespace detail {
class JobEnd;
}

/// Ends a job that hangs. A rank says what it is doing with begin(). When a rank has begun nothing new for `seconds`,
/// its watchdog prints one line ("lockstep: error: rank 1: no progress for 600 s while reading the batch of step 42")
/// and, seconds / 10 later (at least 2 s, at most 30 s), ends the job with exit code 76. Most ranks of a hanging job
/// wait for one rank: look at the rank whose line differs or came first. Ranks of the same node that say nothing, as
/// their process is stopped or was never started, are named by the first one that speaks: "no word from rank 1 (host a,
/// pid 12) for 600 s: the process is stopped; it was computing step 42".
///
/// A thread checks ten times in `seconds`, and at least once a second. Only the time between checks that found no
/// change counts, so a job that was suspended for a while is not taken for one that hangs. Nothing counts before the
/// first begin(), nor between pause() and the next begin().
class Watchdog {
 public:
  /// For a rank of a program: ends the job through Session::abort(), or this process alone when that takes 10 s more.
  /// The session must outlive it. UsageError unless `seconds` is finite and at least 0.001.
  Watchdog(Session& session, double seconds);
  /// Calls `expired` once, from the watchdog's thread, instead of ending the job. `look`, if there is one, is called
  /// from that thread at each check, with what this rank is doing ("computing step 7").
  Watchdog(double seconds, std::function<void(const std::string& text)> expired,
           std::function<void(const std::string& doing)> look = {});
  ~Watchdog();  ///< stops checking; waits for `expired` when it is running
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Says what this rank is doing now: "reading the batch of step", 42. `doing` is a string literal (the pointer is
  /// kept). One thread at a time calls it; it takes a few atomic stores and no lock.
  void begin(const char* doing, std::int64_t number) noexcept;
  void begin(const char* doing) noexcept;
  /// The same for what may take as long as it does: waiting for a person who reads.
  void pause(const char* doing) noexcept;

 private:
  Watchdog(double seconds, const std::shared_ptr<detail::JobEnd>& end);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
