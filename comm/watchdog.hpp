#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::comm {

class Session;
namespace detail {
class WatchdogHandler;
struct Progress;
}  // namespace detail

/// Ends a job that hangs. A rank says what it is doing with begin(). When a rank has begun nothing new for `seconds`,
/// its watchdog prints one line ("lockstep: error: rank 1: no progress for 600 s while reading the batch of step 42")
/// and, seconds / 10 later (at least 2 s, at most 30 s), ends the job with exit code 76. Most ranks of a hanging job
/// wait for one rank: look at the rank whose line differs or came first. Ranks of the same node that say nothing, as
/// their process is stopped or was never started, are named by the first one that speaks: "no word from rank 1 (host a,
/// pid 12) for 600 s: the process is stopped; it was computing step 42". A node all of whose ranks say nothing is named
/// by the node after it: "no word from host b (ranks 4 to 7) for 600 s: the host, its network or all its ranks hang".
///
/// Before that, after report_after() without progress, the first rank of each node that sees it prints once what all
/// ranks of the node are doing. A job that goes on after it is left alone.
///
/// A thread checks ten times in `seconds`, and at least once a second. Only the time between checks that found no
/// change counts, so a job that was suspended for a while is not taken for one that hangs. Nothing counts before the
/// first begin(), nor between pause() and the next begin().
class Watchdog {
 public:
  /// For a rank of a program: ends the job through Session::abort(), or this process alone when that takes 10 s more.
  /// It hears nothing of other nodes, as only Session::watchdog() does. The session must outlive it. UsageError unless
  /// `seconds` is finite and at least 0.001.
  Watchdog(Session& session, double seconds);
  /// What a check has found.
  struct Look {
    std::string doing;    ///< "computing step 7, 1 of 3 buckets enqueued"
    double still_s = 0;   ///< time without progress
    bool stalls = false;  ///< that is report_after() or longer
  };
  /// Calls `expired` once, from the watchdog's thread, instead of ending the job. `look`, if there is one, is called
  /// from that thread at each check. `progress`, if there is one, is where begin() and where() write; it is zero, and
  /// outlives the watchdog.
  Watchdog(double seconds, std::function<void(const std::string& text)> expired,
           std::function<void(const Look& found)> look = {}, detail::Progress* progress = nullptr);
  ~Watchdog();  ///< stops checking; waits for `expired` when it is running
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Says what this rank is doing now: "reading the batch of step", 42; what is longer than 95 letters is cut. One
  /// thread at a time calls it; it copies the text and takes no lock.
  void begin(const char* doing, std::int64_t number) noexcept;
  void begin(const char* doing) noexcept;
  /// The same for what may take as long as it does: waiting for a person who reads.
  void pause(const char* doing) noexcept;
  /// Says how far that has come: "1 of 3 buckets enqueued". Until the next begin(); as begin().
  void where(std::string_view how_far) noexcept;
  /// What the host has enqueued, a device may not have done: from now on `device` says, at each check and from the
  /// watchdog's thread, how far that has come ("on the device step 16: summing bucket 2 of 3", of which 191 letters
  /// are kept). It stands behind what this rank is doing, and a change of it is progress. It must return at once, as a
  /// check waits for it, and not throw. It takes the place of an earlier one.
  void watch_device(const void* owner, std::function<std::string()> device);
  /// Afterwards the owner's function is not called any more. Nothing when another has taken its place.
  void forget_device(const void* owner) noexcept;
  /// After so many seconds without progress the ranks say what they are doing; a quarter of the watchdog's at first. 0:
  /// never. UsageError for less than 0, NaN or infinity.
  void report_after(double seconds);

 private:
  Watchdog(double seconds, const std::shared_ptr<detail::WatchdogHandler>& end);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
