// Kept apart from watchdog.cpp, so that a program whose watchdog has no Session links neither Session nor MPI.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include <lockstep/comm/launch/detail/error_line.hpp>
#include <lockstep/comm/launch/detail/rank_watch.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::comm {

namespace detail {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kForAbort(10);

/// Seconds between two words of a node: about one, and not two where looks are a second apart.
constexpr double kWordEvery = 0.75;

/// A node is called silent after so many seconds, which are five words, and when its silence is so great a part of the
/// time without progress: a network that drops words for a while is not taken for the reason of a longer stall. Both
/// are longer than for_others(), in which a rank that ends the job says nothing.
constexpr double kSilent = 5;
constexpr double kSilentPart = 1.0 / 3;

/// The time between this rank's line and the end of the job, in which ranks that noticed later print theirs.
Seconds for_others(double seconds) {
  return Seconds(std::clamp(seconds / 10, 2.0, 30.0));
}

/// Ends the process after a time whatever the rank hangs in, MPI and the C library's streams included.
void leave_later(Seconds time, int code) noexcept {
  try {
    std::thread([time, code] {
      std::this_thread::sleep_for(time);
      std::_Exit(code);
    }).detach();
  } catch (...) {  // no thread could be started: only MPI_Abort is left
  }
}

}  // namespace

WatchdogHandler::WatchdogHandler(double seconds, int rank, const std::optional<BoardPlace>& place)
    : seconds_(seconds), rank_(rank) {
  if (place) {
    try {
      board_ = std::make_unique<StatusTable>(*place);
    } catch (const Error&) {
      board_.reset();  // without one, ranks that say nothing are not named
    }
  }
}

void WatchdogHandler::look(const Watchdog::Look& found) noexcept {
  if (board_) {
    board_->alive();
  }
  try {
    exchange_words(found);
    report(found);
    if (!board_) {
      return;
    }
    const std::string text = board_->first_difference();
    if (!text.empty() && board_->first_to_tell()) {
      leave_later(kForAbort, exit_code::kFailure);
      write_error(-1, text);
      write_operations();
      board_->remove();
      leave(exit_code::kFailure);
    }
  } catch (...) {  // no memory: the watchdog ends a job that hangs
  }
}

void WatchdogHandler::start_words(std::unique_ptr<NodeHeartbeat> words, int local_size) {
  const std::lock_guard lock(words_mutex_);
  words_ = std::move(words);
  one_speaks_ = board_ && board_->ranks() == local_size;
  // Now, and not only at the next look: a node that falls silent before it is to be named too.
  words_->say({concat("rank ", rank_, ": has met the others")});
}

void WatchdogHandler::end_words() noexcept {
  const std::lock_guard lock(words_mutex_);
  if (words_) {
    try {
      words_->say_goodbye();
    } catch (...) {  // no memory: a node that ends without it is named only by a job that hangs
    }
    words_.reset();
  }
}

/// A rank without a board, or with one that is not its node's, speaks for itself: others cannot know that it lives.
void WatchdogHandler::exchange_words(const Watchdog::Look& found) {
  const std::lock_guard lock(words_mutex_);
  if (!words_) {
    return;
  }
  const std::int64_t now = Progress::now_ns();
  words_->listen(now);
  if (one_speaks_) {
    if (board_->takes_the_word(kWordEvery)) {
      words_->say(board_->table());
    }
  } else if (1e-9 * static_cast<double>(now - spoke_ns_) >= kWordEvery) {
    spoke_ns_ = now;
    words_->say({concat("rank ", rank_, ": ", found.doing.empty() ? "nothing has begun" : found.doing,
                        found.still_s > 0 ? concat(", for ", std::lround(found.still_s), " s") : std::string())});
  }
}

std::string WatchdogHandler::silent_node(double still_s) {
  const std::lock_guard lock(words_mutex_);
  return words_ ? words_->silent(std::max(kSilent, kSilentPart * still_s)) : std::string();
}

void WatchdogHandler::report(const Watchdog::Look& found) {
  if (!found.stalls) {
    if (std::exchange(told_, false)) {
      board_->end_of_stall();
    }
    asked_ = named_ = false;
    return;
  }
  if (!std::exchange(asked_, true)) {
    tell_stall(found);
  }
  if (!named_) {
    const std::string text = silent_node(found.still_s);
    if (!text.empty()) {
      named_ = true;
      write_note(-1, text);
    }
  }
}

void WatchdogHandler::tell_stall(const Watchdog::Look& found) {
  const auto stands = concat("no progress for ", std::lround(found.still_s), " s");
  if (!board_) {
    write_note(rank_, concat(stands, " while ", found.doing));
    return;
  }
  told_ = board_->first_of_stall();
  if (!told_) {
    return;
  }
  write_note(-1, concat(stands, "; the ranks of host ", board_->host(), ":"));
  for (const std::string& line : board_->table()) {
    write_note(-1, concat("  ", line));
  }
}

void WatchdogHandler::end(const std::string& text) noexcept {
  const Seconds grace = for_others(seconds_);
  leave_later(grace + kForAbort, exit_code::kWatchdog);
  write_error(rank_, text);
  try {
    const std::string node = silent_node(seconds_);
    if (!node.empty()) {
      write_error(rank_, node);
    }
  } catch (...) {  // no memory: this rank has said what it was doing
  }
  if (board_) {
    try {
      if (board_->first_to_tell()) {
        for (const std::string& line : board_->silent(seconds_ / 2)) {
          write_error(rank_, line);
        }
        for (const std::string& line : board_->behind()) {
          write_error(rank_, line);
        }
        write_operations();
      }
    } catch (...) {  // no memory: this rank has said what it was doing
    }
    board_->remove();
  }
  std::this_thread::sleep_for(grace);
  leave(exit_code::kWatchdog);
}

void WatchdogHandler::leave(int code) noexcept {
  if (Session* session = session_) {
    session->abort(code);
  }
  std::_Exit(code);
}

FlightRecorder* WatchdogHandler::log(LoggedCommunicator communicator) noexcept {
  return board_ ? &board_->log(communicator) : nullptr;
}

Progress* WatchdogHandler::progress() noexcept {
  return board_ ? &board_->progress() : nullptr;
}

void WatchdogHandler::keep_operations(const std::string& path) {
  const std::lock_guard lock(mutex_);
  operations_file_ = path;
}

void WatchdogHandler::save_operations() noexcept {
  if (board_ && board_->first_to_tell()) {
    write_operations();
  }
}

void WatchdogHandler::forget_ranks() noexcept {
  if (board_) {
    board_->remove();
  }
}

void WatchdogHandler::write_operations() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!operations_file_.empty()) {
      replace_file(operations_file_, concat(board_->operations().text(1), '\n'));
    }
  } catch (...) {  // the error that ends the job is the one to tell
  }
}

RankWatch::RankWatch(double seconds, const Launch& launch, const Environment& environment)
    : end_(seconds, launch.size > 1 ? launch.rank : -1, board_place(launch, environment)),
      watchdog_(
          seconds, [this](const std::string& text) { end_.end(text); },
          [this](const Watchdog::Look& found) { end_.look(found); }, end_.progress()) {}

}  // namespace detail

namespace {

std::shared_ptr<detail::WatchdogHandler> watchdog_handler(Session& session, double seconds) {
  auto end = std::make_shared<detail::WatchdogHandler>(seconds, session.size() > 1 ? session.rank() : -1,
                                                       detail::board_place(session.launch(), process_environment()));
  end->set_session(&session);
  return end;
}

}  // namespace

Watchdog::Watchdog(Session& session, double seconds) : Watchdog(seconds, watchdog_handler(session, seconds)) {}

Watchdog::Watchdog(double seconds, const std::shared_ptr<detail::WatchdogHandler>& end)
    : Watchdog(
          seconds, [end](const std::string& text) { end->end(text); }, [end](const Look& found) { end->look(found); },
          end->progress()) {}

}  // namespace lockstep::comm
