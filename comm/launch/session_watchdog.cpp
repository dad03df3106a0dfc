// This file is separate from watchdog.cpp: a program whose watchdog has no Session links neither Session nor MPI.
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

/// Least seconds between two heartbeats of a node. If the watchdog checks once a second, they are less than 2 s apart.
constexpr double kHeartbeatEvery = 0.75;

/// A node counts as silent if no heartbeat of the node has come for at least kSilent seconds (the time of five
/// heartbeats), and for at least kSilentPart of the time without progress. Because of kSilentPart, a network that drops
/// heartbeats for a short time is not reported as the cause of a longer stall.
constexpr double kSilent = 5;
constexpr double kSilentPart = 1.0 / 3;

/// Returns the time from this rank's error line to the end of the job. In this time, other ranks that notice the hang
/// print their lines. `seconds` is the watchdog's time without progress.
Seconds for_others(double seconds) {
  return Seconds(std::clamp(seconds / 10, 2.0, 30.0));
}

/// Ends the process with `code` after `time`, even if this rank hangs in MPI or while it writes to a FILE.
void leave_later(Seconds time, int code) noexcept {
  try {
    std::thread([time, code] {
      std::this_thread::sleep_for(time);
      std::_Exit(code);
    }).detach();
  } catch (...) {  // no thread could be started, so only MPI_Abort can end the process
  }
}

}  // namespace

WatchdogHandler::WatchdogHandler(double seconds, int rank, const std::optional<TablePlace>& place)
    : seconds_(seconds), rank_(rank) {
  if (place) {
    try {
      table_ = std::make_unique<StatusTable>(*place);
    } catch (const Error&) {
      table_.reset();  // without a table, silent ranks are not named
    }
  }
}

void WatchdogHandler::look(const Watchdog::Look& found) noexcept {
  if (table_) {
    table_->alive();
  }
  try {
    exchange_heartbeats(found);
    report(found);
    if (!table_) {
      return;
    }
    const std::string text = table_->first_difference();
    if (!text.empty() && table_->first_to_tell()) {
      leave_later(kForAbort, exit_code::kFailure);
      write_error(-1, text);
      write_operations();
      table_->remove();
      leave(exit_code::kFailure);
    }
  } catch (...) {  // out of memory; the watchdog still ends a job that hangs
  }
}

void WatchdogHandler::start_heartbeat(std::unique_ptr<NodeHeartbeat> heartbeat, int local_size) {
  const std::lock_guard lock(heartbeat_mutex_);
  heartbeat_ = std::move(heartbeat);
  one_sends_ = table_ && table_->ranks() == local_size;
  // Sends a heartbeat now, not at the next check, so that a node that falls silent before that check can be named, too.
  heartbeat_->send_heartbeat({concat("rank ", rank_, ": has met the others")});
}

void WatchdogHandler::end_heartbeat() noexcept {
  const std::lock_guard lock(heartbeat_mutex_);
  if (heartbeat_) {
    try {
      heartbeat_->send_shutdown();
    } catch (...) {  // out of memory; if the job hangs later, the next node may call this node silent
    }
    heartbeat_.reset();
  }
}

/// Sends and receives heartbeats. Usually one rank sends for its whole node. A rank sends its own heartbeat if it has
/// no StatusTable, or if the table does not have exactly this node's ranks, because then no other rank can see that it
/// is alive.
void WatchdogHandler::exchange_heartbeats(const Watchdog::Look& found) {
  const std::lock_guard lock(heartbeat_mutex_);
  if (!heartbeat_) {
    return;
  }
  const std::int64_t now = Progress::now_ns();
  heartbeat_->listen(now);
  if (one_sends_) {
    if (table_->claims_heartbeat(kHeartbeatEvery)) {
      heartbeat_->send_heartbeat(table_->table());
    }
  } else if (1e-9 * static_cast<double>(now - sent_ns_) >= kHeartbeatEvery) {
    sent_ns_ = now;
    heartbeat_->send_heartbeat(
        {concat("rank ", rank_, ": ", found.doing.empty() ? "nothing has begun" : found.doing,
                found.still_s > 0 ? concat(", for ", std::lround(found.still_s), " s") : std::string())});
  }
}

std::string WatchdogHandler::silent_node(double still_s) {
  const std::lock_guard lock(heartbeat_mutex_);
  return heartbeat_ ? heartbeat_->silent(std::max(kSilent, kSilentPart * still_s)) : std::string();
}

void WatchdogHandler::report(const Watchdog::Look& found) {
  if (!found.stalls) {
    if (std::exchange(told_, false)) {
      table_->end_of_stall();
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
  if (!table_) {
    write_note(rank_, concat(stands, " while ", found.doing));
    return;
  }
  told_ = table_->first_of_stall();
  if (!told_) {
    return;
  }
  write_note(-1, concat(stands, "; the ranks of host ", table_->host(), ":"));
  for (const std::string& line : table_->table()) {
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
  } catch (...) {  // out of memory; this rank has already printed what it was doing
  }
  if (table_) {
    try {
      if (table_->first_to_tell()) {
        for (const std::string& line : table_->silent(seconds_ / 2)) {
          write_error(rank_, line);
        }
        for (const std::string& line : table_->behind()) {
          write_error(rank_, line);
        }
        write_operations();
      }
    } catch (...) {  // out of memory; this rank has already printed what it was doing
    }
    table_->remove();
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
  return table_ ? &table_->log(communicator) : nullptr;
}

Progress* WatchdogHandler::progress() noexcept {
  return table_ ? &table_->progress() : nullptr;
}

void WatchdogHandler::keep_operations(const std::string& path) {
  const std::lock_guard lock(mutex_);
  operations_file_ = path;
}

void WatchdogHandler::save_operations() noexcept {
  if (table_ && table_->first_to_tell()) {
    write_operations();
  }
}

void WatchdogHandler::forget_ranks() noexcept {
  if (table_) {
    table_->remove();
  }
}

void WatchdogHandler::write_operations() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!operations_file_.empty()) {
      replace_file(operations_file_, concat(table_->operations().text(1), '\n'));
    }
  } catch (...) {  // not reported, because the error that ends the job matters more
  }
}

RankWatch::RankWatch(double seconds, const Launch& launch, const Environment& environment)
    : end_(seconds, launch.size > 1 ? launch.rank : -1, table_place(launch, environment)),
      watchdog_(
          seconds, [this](const std::string& text) { end_.end(text); },
          [this](const Watchdog::Look& found) { end_.look(found); }, end_.progress()) {}

}  // namespace detail

namespace {

std::shared_ptr<detail::WatchdogHandler> watchdog_handler(Session& session, double seconds) {
  auto end = std::make_shared<detail::WatchdogHandler>(seconds, session.size() > 1 ? session.rank() : -1,
                                                       detail::table_place(session.launch(), process_environment()));
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
