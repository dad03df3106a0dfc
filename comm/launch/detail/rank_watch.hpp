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

/// Handles what a rank's watchdog finds:
///   - If the job hangs, prints what this rank and the silent ranks were doing, and which rank has called the fewest
///     operations. Then gives other ranks time to report, and ends the job with exit code 76.
///   - If the ranks call different operations, ends the job with exit code 3, because the job would hang. One rank of
///     the node names the difference.
///   - If the job only stalls (no progress for Watchdog::report_after() seconds), prints each rank's activity once.
/// A rank that listens to heartbeats also names the previous node if that node sends no heartbeats.
class WatchdogHandler {
 public:
  /// Makes the handler. If `place` is not set, or if no StatusTable can be made, the handler works without a
  /// StatusTable.
  WatchdogHandler(double seconds, int rank, const std::optional<TablePlace>& place);

  /// Sets the session that ends the job. Without a session, the handler ends only this process, and the launcher then
  /// ends the job.
  void set_session(Session* session) noexcept { session_ = session; }
  /// Handles the result of one check of the watchdog. The watchdog's thread calls it.
  void look(const Watchdog::Look& found) noexcept;
  [[noreturn]] void end(const std::string& text) noexcept;
  /// Starts heartbeats between this node and its neighbours. `local_size` is the number of this node's ranks.
  void start_heartbeat(std::unique_ptr<NodeHeartbeat> heartbeat, int local_size);
  /// Tells the next node that the job ends normally. Sends no heartbeat afterwards.
  void end_heartbeat() noexcept;
  /// Returns the log of this rank's operations on `communicator`; nullptr without a StatusTable.
  [[nodiscard]] FlightRecorder* log(LoggedCommunicator communicator) noexcept;
  /// Returns the memory into which the watchdog writes this rank's activity; nullptr without a StatusTable.
  [[nodiscard]] Progress* progress() noexcept;
  /// Sets the file to which save_operations() writes StatusTable::operations(); empty for no file.
  void keep_operations(const std::string& path);
  /// Writes the file of keep_operations() after an error that ends the job. Only the first caller on the node writes.
  void save_operations() noexcept;
  /// Unlinks the file of the StatusTable, so that the next start of the job makes a new file. Called if the ranks could
  /// not find each other.
  void forget_ranks() noexcept;

 private:
  /// In a stall, prints once and on one rank what the node's ranks are doing. Also names a silent previous node once.
  void report(const Watchdog::Look& found);
  void tell_stall(const Watchdog::Look& found);
  void exchange_heartbeats(const Watchdog::Look& found);
  /// Returns NodeHeartbeat::silent(s), where s is a third of `still_s` (the time without progress), but at least 5 s.
  [[nodiscard]] std::string silent_node(double still_s);
  [[noreturn]] void leave(int code) noexcept;
  void write_operations() noexcept;
  double seconds_;
  int rank_;
  std::atomic<Session*> session_ = nullptr;
  std::unique_ptr<StatusTable> table_;
  bool asked_ = false;  ///< true after report() has run in this stall, on this rank, with or without output
  bool told_ = false;   ///< true if this rank has printed the report on this stall
  bool named_ = false;  ///< true after this rank has named the previous node in this stall
  std::int64_t sent_ns_ = 0;
  std::mutex heartbeat_mutex_;  ///< separate from mutex_, because a thread holds mutex_ while it writes a file
  std::unique_ptr<NodeHeartbeat> heartbeat_;
  /// True if the StatusTable has exactly this node's ranks. Then one rank sends the heartbeat of the node; otherwise
  /// each rank sends its own heartbeat.
  bool one_sends_ = false;
  std::mutex mutex_;
  std::string operations_file_;  ///< path for keep_operations(); guarded by mutex_
};

/// Watchdog of a program's rank. It runs from the program's first instructions, before MPI starts.
class RankWatch {
 public:
  RankWatch(double seconds, const Launch& launch, const Environment& environment);
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  [[nodiscard]] WatchdogHandler& end() { return end_; }

 private:
  WatchdogHandler end_;
  Watchdog watchdog_;  ///< declared after end_, because the watchdog's thread uses end_
};

}  // namespace lockstep::comm::detail
