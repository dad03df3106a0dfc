#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm::detail {

struct LauncherEnd {
  int code = 0;
  bool stopped = false;      ///< true if this process was asked to stop while it waited; the request was forwarded
  bool output_lost = false;  ///< true if some output could not be written (only with LauncherLimit::output)
  bool silent = false;       ///< true if the launcher failed on its own, and nothing was written to standard error
};

/// Limits for a launcher. A launcher that exceeds a limit gets SIGTERM. After 2 s more, the launcher and its children
/// get SIGKILL.
struct LauncherLimit {
  /// Longest time for the launcher to be stopped or, if `children` is true, to have no living child; 0 means no limit.
  double seconds = 0;
  bool children = false;  ///< true if the ranks are the launcher's own children
  bool output = false;    ///< true if this process relays standard output; a terminal is never relayed
};

/// Runs `command` (found on PATH) with additional environment variables, waits for its end, and forwards signals as
/// self_start() describes. The process must have no other threads. Blocks signals in the calling thread and restores
/// them afterwards, except SIGPIPE, which stays blocked. If this process dies, the command gets SIGTERM.
///
/// LauncherEnd::code is 128 + n if signal n ended the command, or if SIGUSR1, forwarded in place of n, ended it. The
/// code is 127 if the command cannot be run.
///
/// The command's standard error passes through a BannerFilter. If the reader of the relayed output closes the pipe, the
/// command continues, and a line on standard error gives the reason. If the reader stops reading, run_launcher() waits
/// until this process is asked to stop.
///
/// Ends a command that exceeds `limit`, and prints a line on standard error. LauncherEnd::code is then 76, the exit
/// code of a watchdog. If signal n has asked this process to stop, the limit is 10 s instead of limit.seconds, and the
/// code is 128 + n.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command, const Environment& variables,
                                       const LauncherLimit& limit = {});

/// Returns the path of the command `name`; empty if PATH has no such command.
[[nodiscard]] std::string find_on_path(const std::string& name);

/// Calls `number` in a child process, so that this process does not keep what `number` initialises, such as CUDA.
/// Returns the result, or 0 if `number` throws; a later call of `number` in this process would then throw the error.
/// Throws StateError if the child does not answer within `seconds`.
[[nodiscard]] int ask_in_a_child(const std::function<int()>& number, int seconds = 300);

}  // namespace lockstep::comm::detail
