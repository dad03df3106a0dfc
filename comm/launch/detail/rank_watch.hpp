#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <lockstep/comm/launch/detail/progress_board.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>

namespace lockstep::comm::detail {

/// The end of a job that hangs: says what this rank and those that say nothing were doing, gives other ranks the time
/// to speak, and ends the job with exit code 76.
class JobEnd {
 public:
  /// Without a board where the ranks of the node have none, or it cannot be made.
  JobEnd(double seconds, int rank, const std::optional<BoardPlace>& place);

  /// While there is a session, it ends the job; else the end of this process does, which the launcher takes for that
  /// of the job.
  void set_session(Session* session) noexcept { session_ = session; }
  void look(const std::string& doing) noexcept;
  [[noreturn]] void end(const std::string& text) noexcept;

 private:
  double seconds_;
  int rank_;
  std::atomic<Session*> session_ = nullptr;
  std::unique_ptr<ProgressBoard> board_;
};

/// The watchdog of a program's rank from its first instruction on, before MPI starts.
class RankWatch {
 public:
  RankWatch(double seconds, const Launch& launch, const Environment& environment);
  [[nodiscard]] Watchdog& watchdog() { return watchdog_; }
  void set_session(Session* session) noexcept { end_.set_session(session); }

 private:
  JobEnd end_;
  Watchdog watchdog_;  ///< its thread uses the line above
};

}  // namespace lockstep::comm::detail
