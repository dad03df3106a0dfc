// Kept apart from watchdog.cpp, so that a program whose watchdog has no Session links neither Session nor MPI.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/detail/rank_watch.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace detail {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kForAbort(10);

/// The time between this rank's line and the end of the job, in which ranks that noticed later print theirs.
Seconds for_others(double seconds) {
  return Seconds(std::clamp(seconds / 10, 2.0, 30.0));
}

}  // namespace

JobEnd::JobEnd(double seconds, int rank, const std::optional<BoardPlace>& place) : seconds_(seconds), rank_(rank) {
  if (place) {
    try {
      board_ = std::make_unique<ProgressBoard>(*place);
    } catch (const Error&) {
      board_.reset();  // without one, ranks that say nothing are not named
    }
  }
}

void JobEnd::look(const std::string& doing) noexcept {
  if (board_) {
    board_->write(doing);
  }
}

/// Ends the process whatever the rank hangs in, MPI and the C library's streams included.
void JobEnd::end(const std::string& text) noexcept {
  const Seconds grace = for_others(seconds_);
  try {
    std::thread([grace] {
      std::this_thread::sleep_for(grace + kForAbort);
      std::_Exit(exit_code::kWatchdog);
    }).detach();
  } catch (...) {  // no thread could be started: only MPI_Abort is left
  }
  write_error(rank_, text);
  if (board_) {
    try {
      if (board_->first_to_tell()) {
        for (const std::string& line : board_->silent(seconds_ / 2)) {
          write_error(rank_, line);
        }
      }
    } catch (...) {  // no memory: this rank has said what it was doing
    }
    board_->remove();
  }
  std::this_thread::sleep_for(grace);
  if (Session* session = session_) {
    session->abort(exit_code::kWatchdog);
  }
  std::_Exit(exit_code::kWatchdog);
}

RankWatch::RankWatch(double seconds, const Launch& launch, const Environment& environment)
    : end_(seconds, launch.size > 1 ? launch.rank : -1, board_place(launch, environment)),
      watchdog_(
          seconds, [this](const std::string& text) { end_.end(text); },
          [this](const std::string& doing) { end_.look(doing); }) {}

}  // namespace detail

namespace {

std::shared_ptr<detail::JobEnd> job_end(Session& session, double seconds) {
  auto end = std::make_shared<detail::JobEnd>(seconds, session.size() > 1 ? session.rank() : -1,
                                              detail::board_place(session.launch(), process_environment()));
  end->set_session(&session);
  return end;
}

}  // namespace

Watchdog::Watchdog(Session& session, double seconds) : Watchdog(seconds, job_end(session, seconds)) {}

Watchdog::Watchdog(double seconds, const std::shared_ptr<detail::JobEnd>& end)
    : Watchdog(
          seconds, [end](const std::string& text) { end->end(text); },
          [end](const std::string& doing) { end->look(doing); }) {}

}  // namespace lockstep::comm
