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

/// The end of a job that hangs: says what this rank and those that say nothing were doing, which rank has called fewer
/// operations than others, gives other ranks the time to speak, and ends the job with exit code 76. And of one whose
/// ranks call different operations, which would hang: one rank of the node says which, and ends it with 3. A job that
/// stalls for a while is reported first, rank by rank. A rank that listens names the node before its own, too, when
/// that says nothing.
class WatchdogHandler {
 public:
  /// Without a board where the ranks of the node have none, or it cannot be made.
  WatchdogHandler(double seconds, int rank, const std::optional<BoardPlace>& place);

  /// While there is a session, it ends the job; else the end of this process does, which the launcher takes for that
  /// of the job.
  void set_session(Session* session) noexcept { session_ = session; }
  /// From the watchdog's thread.
  void look(const Watchdog::Look& found) noexcept;
  [[noreturn]] void end(const std::string& text) noexcept;
  /// From now on this node, of `local_size` ranks, exchanges words with its neighbours.
  void start_words(std::unique_ptr<NodeHeartbeat> words, int local_size);
  /// The job has ended as it should: says goodbye, and nothing after it.
  void end_words() noexcept;
  /// Nothing without a board.
  [[nodiscard]] FlightRecorder* log(LoggedCommunicator communicator) noexcept;
  /// Where this rank's watchdog keeps what it is told.
  [[nodiscard]] Progress* progress() noexcept;
  /// Where save_operations() writes StatusTable::operations(); empty: nowhere.
  void keep_operations(const std::string& path);
  /// For the end of a job by an error. One rank of the node writes, the first.
  void save_operations() noexcept;
  /// The ranks have not met: the next start of this job is not to find what this one has left.
  void forget_ranks() noexcept;

 private:
  /// Prints what the ranks of this node are doing, once a stall and by one of them.
  void report(const Watchdog::Look& found);
  void tell_stall(const Watchdog::Look& found);
  void exchange_words(const Watchdog::Look& found);
  /// NodeHeartbeat::silent() of a node that was silent for a good part of the time without progress; or empty.
  [[nodiscard]] std::string silent_node(double still_s);
  [[noreturn]] void leave(int code) noexcept;
  void write_operations() noexcept;
  double seconds_;
  int rank_;
  std::atomic<Session*> session_ = nullptr;
  std::unique_ptr<StatusTable> board_;
  bool asked_ = false;  ///< in this stall
  bool told_ = false;   ///< this rank printed
  bool named_ = false;  ///< in this stall, the node before this one
  std::int64_t spoke_ns_ = 0;
  std::mutex words_mutex_;  ///< not the other one, which is held while a file is written
  std::unique_ptr<NodeHeartbeat> words_;
  bool one_speaks_ = false;  ///< the board has all ranks of this node and no others: one of them speaks for all
  std::mutex mutex_;
  std::string operations_file_;  ///< under the mutex
};

/// The watchdog of a program's rank from its first instruction on, before MPI starts.
class RankWatch {
 public:
  RankWatch(double seconds, const Launch& launch, const Environment& environment);
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  [[nodiscard]] WatchdogHandler& end() { return end_; }

 private:
  WatchdogHandler end_;
  Watchdog watchdog_;  ///< its thread uses the line above
};

}  // namespace lockstep::comm::detail
