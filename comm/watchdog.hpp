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

/// Ends a job that hangs. A rank calls begin() to record what it is doing. If a rank has begun nothing new for
/// `seconds`, its watchdog prints one line ("lockstep: error: rank 1: no progress for 600 s while reading the batch of
/// step 42"). After another seconds / 10 (at least 2 s, at most 30 s), the watchdog ends the job with exit code 76.
/// Most ranks of a hanging job wait for one rank, so the cause is usually on the rank whose line differs from the
/// others or came first. A rank whose process is stopped or was never started prints nothing. The first rank of the
/// same node that prints its own line also names the silent rank: "no word from rank 1 (host a, pid 12) for 600 s: the
/// process is stopped; it was computing step 42". If all ranks of a node print nothing, the next node names the node:
/// "no word from host b (ranks 4 to 7) for 600 s: the host, its network or all its ranks hang".
///
/// Earlier, when the seconds set by report_after() have passed without progress, one rank of each node prints what all
/// ranks of the node are doing. This report does not end the job.
///
/// A thread checks ten times in `seconds`, and at least once a second. Only the time between checks that found no
/// change counts, so a job that was suspended for a while does not count as hanging. No time counts before the first
/// begin(), or between pause() and the next begin().
class Watchdog {
 public:
  /// Makes a watchdog that ends the job through session.abort(). If abort() takes longer than 10 s, the watchdog ends
  /// this process alone. Unlike the session's own watchdog, this watchdog gets no heartbeats of other nodes. `session`
  /// must outlive the watchdog. Throws UsageError unless `seconds` is finite and at least 0.001.
  Watchdog(Session& session, double seconds);
  /// Result of one check.
  struct Look {
    std::string doing;    ///< activity of the rank: "computing step 7, 1 of 3 buckets enqueued"
    double still_s = 0;   ///< seconds without progress
    bool stalls = false;  ///< true if still_s is at least report_after()
  };
  /// Makes a watchdog that does not end the job, but calls `expired` once from its own thread. If `look` is set, this
  /// thread calls `look` at each check. If `progress` is not nullptr, begin() and where() write to *progress, which
  /// must be all zero at first and outlive this object.
  Watchdog(double seconds, std::function<void(const std::string& text)> expired,
           std::function<void(const Look& found)> look = {}, detail::Progress* progress = nullptr);
  ~Watchdog();  ///< ends the checks; waits if `expired` is running
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Tells the watchdog what this rank is doing now: begin("reading the batch of step", 42). Copies at most 95 letters
  /// of `doing`, and takes no lock. Only one thread at a time may call begin().
  void begin(const char* doing, std::int64_t number) noexcept;
  void begin(const char* doing) noexcept;
  /// Records an activity that may take any time, such as waiting for a person. Its time does not count as hanging.
  void pause(const char* doing) noexcept;
  /// Tells the watchdog how far the activity of the last begin() has come: "1 of 3 buckets enqueued". Only one thread
  /// at a time may call where().
  void where(std::string_view how_far) noexcept;
  /// Sets `device`, a function that each check calls from the watchdog's thread. It returns how far the device has come
  /// with the enqueued work ("on the device step 16: summing bucket 2 of 3"; 191 letters are kept). The text is printed
  /// after the rank's own activity, and a change of the text counts as progress. `device` must return at once,
  /// because the check waits for it, and must not throw. `device` replaces the function of an earlier call.
  void watch_device(const void* owner, std::function<std::string()> device);
  /// Stops calling the function that `owner` gave to watch_device(). Does nothing if another owner has replaced it.
  void forget_device(const void* owner) noexcept;
  /// Sets the seconds without progress after which the ranks print what they are doing. At first this is a quarter of
  /// the watchdog's seconds; 0 means no report. Throws UsageError for less than 0, NaN or infinity.
  void report_after(double seconds);

 private:
  Watchdog(double seconds, const std::shared_ptr<detail::WatchdogHandler>& end);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
