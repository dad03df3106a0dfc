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

/// Ends a job that hangs with exit code 76. Before, it prints what this rank and the silent ranks were doing, and which
/// rank has called fewer operations than others, and gives other ranks time to report. Also ends, with code 3, a job
/// whose ranks call different operations, because such a job would hang; one rank of the node names the difference. If
/// a job only stalls, prints the activity of each rank once. A rank that listens also names a silent previous node.
class WatchdogHandler {
 public:
  /// Works without a status table if the ranks of the node have none, or if the table cannot be made.
  WatchdogHandler(double seconds, int rank, const std::optional<TablePlace>& place);

  /// With a session, the session ends the job. Without one, this process ends, and the launcher ends the job.
  void set_session(Session* session) noexcept { session_ = session; }
  /// Handles one check of the watchdog, on the watchdog's thread.
  void look(const Watchdog::Look& found) noexcept;
  [[noreturn]] void end(const std::string& text) noexcept;
  /// Starts heartbeats between this node, which has `local_size` ranks, and its neighbours.
  void start_heartbeat(std::unique_ptr<NodeHeartbeat> heartbeat, int local_size);
  /// Sends the shutdown after the job has ended normally, and sends no heartbeat afterwards.
  void end_heartbeat() noexcept;
  /// Returns the log of this rank's operations on the communicator; nullptr without a status table.
  [[nodiscard]] FlightRecorder* log(LoggedCommunicator communicator) noexcept;
  /// Returns the memory in which this rank's watchdog stores its activity; nullptr without a status table.
  [[nodiscard]] Progress* progress() noexcept;
  /// Sets the file to which save_operations() writes StatusTable::operations(); empty for no file.
  void keep_operations(const std::string& path);
  /// Writes the file after an error that ends the job. Only the first rank of the node that calls this writes.
  void save_operations() noexcept;
  /// Unlinks the table if the ranks have not met, so that the next start of this job does not find it.
  void forget_ranks() noexcept;

 private:
  /// Prints what the ranks of this node are doing, once in a stall and on one rank.
  void report(const Watchdog::Look& found);
  void tell_stall(const Watchdog::Look& found);
  void exchange_heartbeats(const Watchdog::Look& found);
  /// Returns NodeHeartbeat::silent() for a node that was silent for at least a third of the stall; or "".
  [[nodiscard]] std::string silent_node(double still_s);
  [[noreturn]] void leave(int code) noexcept;
  void write_operations() noexcept;
  double seconds_;
  int rank_;
  std::atomic<Session*> session_ = nullptr;
  std::unique_ptr<StatusTable> table_;
  bool asked_ = false;  ///< true after this rank has tried to report this stall
  bool told_ = false;   ///< true if this rank printed the report
  bool named_ = false;  ///< true after the previous node was named in this stall
  std::int64_t sent_ns_ = 0;
  std::mutex heartbeat_mutex_;  ///< separate from mutex_, because mutex_ is held while a file is written
  std::unique_ptr<NodeHeartbeat> heartbeat_;
  bool one_sends_ = false;  ///< true if the table has exactly this node's ranks: then one of them sends for all
  std::mutex mutex_;
  std::string operations_file_;  ///< guarded by mutex_
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
