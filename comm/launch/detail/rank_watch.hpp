#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <lockstep/comm/launch/detail/node_heartbeat.hpp>
#include <lockstep/comm/launch/detail/status_table.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>

namespace lockstep::comm::detail {

/// Ends a job that hangs: says what this rank and the silent ranks were doing and which rank has called fewer
/// operations than others, gives other ranks time to report, and ends the job with exit code 76. Also ends a job whose
/// ranks call different operations, which would hang: one rank of the node names the difference and ends the job with
/// 3. Reports a job that stalls for a while first, rank by rank. A rank that listens also names the previous node when
/// it is silent.
class WatchdogHandler {
 public:
  /// Works without a status table when the ranks of the node have none, or it cannot be made.
  WatchdogHandler(double seconds, int rank, const std::optional<TablePlace>& place);

  /// With a session, the session ends the job. Without one this process ends, which the launcher takes for the end of
  /// the job.
  void set_session(Session* session) noexcept { session_ = session; }
  /// Called on the watchdog's thread.
  void look(const Watchdog::Look& found) noexcept;
  [[noreturn]] void end(const std::string& text) noexcept;
  /// From now on this node, of `local_size` ranks, exchanges heartbeats with its neighbours.
  void start_heartbeat(std::unique_ptr<NodeHeartbeat> heartbeat, int local_size);
  /// The job has ended normally: sends the shutdown, and no heartbeat after it.
  void end_heartbeat() noexcept;
  /// nullptr without a status table.
  [[nodiscard]] FlightRecorder* log(LoggedCommunicator communicator) noexcept;
  /// Memory in which this rank's watchdog stores its activity; nullptr without a status table.
  [[nodiscard]] Progress* progress() noexcept;
  /// Sets the file to which save_operations() writes StatusTable::operations(); empty: none.
  void keep_operations(const std::string& path);
  /// Called when an error ends the job. Only the first rank of the node that calls it writes.
  void save_operations() noexcept;
  /// The ranks have not met: unlinks the table, so that the next start of this job does not find it.
  void forget_ranks() noexcept;

 private:
  /// Prints what the ranks of this node are doing, once a stall and on one rank.
  void report(const Watchdog::Look& found);
  void tell_stall(const Watchdog::Look& found);
  void exchange_heartbeats(const Watchdog::Look& found);
  /// Returns NodeHeartbeat::silent() for a node that was silent for a third of the time without progress; or empty.
  [[nodiscard]] std::string silent_node(double still_s);
  [[noreturn]] void leave(int code) noexcept;
  void write_operations() noexcept;
  double seconds_;
  int rank_;
  std::atomic<Session*> session_ = nullptr;
  std::unique_ptr<StatusTable> table_;
  bool asked_ = false;  ///< a report was tried in this stall
  bool told_ = false;   ///< this rank printed the report
  bool named_ = false;  ///< the previous node was named in this stall
  std::int64_t sent_ns_ = 0;
  std::mutex heartbeat_mutex_;  ///< separate from mutex_, which is held while a file is written
  std::unique_ptr<NodeHeartbeat> heartbeat_;
  bool one_sends_ = false;  ///< the table has exactly this node's ranks: one of them sends for all
  std::mutex mutex_;
  std::string operations_file_;  ///< guarded by mutex_
};

/// The watchdog of a program's rank from its first instruction, before MPI starts.
class RankWatch {
 public:
  RankWatch(double seconds, const Launch& launch, const Environment& environment);
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  [[nodiscard]] WatchdogHandler& end() { return end_; }

 private:
  WatchdogHandler end_;
  Watchdog watchdog_;  ///< the watchdog's thread uses end_
};

}  // namespace lockstep::comm::detail
