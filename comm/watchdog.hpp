#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/comm/session.hpp>

namespace lockstep::comm {

/// Ends a job that hangs. A rank tells it what it is doing with begin(); when a rank has not told anything for
/// `seconds`, its watchdog prints one line ("lockstep: error: rank 1: no progress for 600 s while reading the batch of
/// step 42") and a little later ends the job with exit code 76. All ranks of a hanging job come to that at about the
/// same time, most of them because they wait for one: the rank whose line differs, or is missing, is the one to look
/// at.
///
/// Looks from a thread of its own, ten times in `seconds` and at least once a second; only looks at which nothing had
/// changed count, so that a process that is stopped for a while, with its whole job, is not taken for one that hangs.
class Watchdog {
 public:
  /// Of a rank of a program. Ends the job through Session::abort(), or this process alone when that takes 10 s. The
  /// session outlives it. UsageError unless `seconds` is positive and finite.
  Watchdog(Session& session, double seconds);
  /// Calls `expired` instead, once, from the watchdog's thread.
  Watchdog(double seconds, std::function<void(const std::string& text)> expired);
  ~Watchdog();  ///< looks no more; waits for `expired` when that runs
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on this rank is doing that: "reading the batch of step", 42. The text is kept as it is given, a string
  /// literal. From any thread; a few atomic stores, no lock.
  void begin(const char* doing, std::int64_t number) noexcept;
  void begin(const char* doing) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
