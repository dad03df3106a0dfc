#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::comm {

class Session;

/// Ends a job that hangs. A rank tells it what it is doing with begin(); when a rank has not begun anything for
/// `seconds`, its watchdog prints one line ("lockstep: error: rank 1: no progress for 600 s while reading the batch of
/// step 42") and, seconds / 10 later (2 s at least, 30 s at most), ends the job with exit code 76. Most ranks of a
/// hanging job wait for one: look at the rank whose line differs or came first, and, where the others say that they
/// wait for ranks, at one that says nothing.
///
/// Looks from a thread of its own, ten times in `seconds` and at least once a second; only looks at which nothing had
/// changed count, so that a process that is stopped for a while, with its whole job, is not taken for one that hangs.
/// Before the first begin() nothing counts.
class Watchdog {
 public:
  /// Of a rank of a program. Ends the job through Session::abort(), or this process alone when that takes 10 s more.
  /// The session outlives it. UsageError unless `seconds` is finite and at least 0.001.
  Watchdog(Session& session, double seconds);
  /// Calls `expired` instead, once, from the watchdog's thread.
  Watchdog(double seconds, std::function<void(const std::string& text)> expired);
  ~Watchdog();  ///< looks no more; waits for `expired` when that runs
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on this rank is doing that: "reading the batch of step", 42. The text is kept as it is given, a string
  /// literal. From one thread at a time; a few atomic stores, no lock.
  void begin(const char* doing, std::int64_t number) noexcept;
  void begin(const char* doing) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
