#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm::detail {

struct LauncherEnd {
  int code = 0;
  bool stopped = false;      ///< true: this process was asked to stop while it waited, and forwarded the request
  bool output_lost = false;  ///< true: some output could not be written (only with LauncherLimit::output)
  bool silent = false;       ///< true: the launcher failed on its own, and nothing was written to standard error
};

/// Limits for a launcher. A launcher beyond them gets SIGTERM. Two seconds later, it and its children get SIGKILL.
struct LauncherLimit {
  double seconds = 0;     ///< longest time to be stopped, or (with `children`) without a living child; 0: no limit
  bool children = false;  ///< true: the ranks are the launcher's own children
  bool output = false;    ///< true: this process relays standard output, unless that is a terminal
};

/// Runs a command (found on PATH) with additional environment variables, waits for it, and forwards signals as
/// self_start() describes. Its exit code is 128 + n if signal n ended it, also if it ended by a SIGUSR1 sent in place
/// of n; 127 if it cannot be run. If this process dies, the command gets SIGTERM. The command's standard error passes
/// through a BannerFilter. Blocks the signals of the calling thread and restores them afterwards, except SIGPIPE, which
/// stays blocked. The process must have no other threads. If the reader of the command's output closes it, the command
/// continues, and a line on standard error names the reason. If the reader stops reading, run_launcher() waits until
/// this process is asked to stop.
///
/// Ends a command beyond `limit`, and prints a line on standard error. The exit code is then that of a watchdog (76).
/// After this process was asked to stop, 10 s replace limit.seconds, and the code is 128 + n.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command, const Environment& variables,
                                       const LauncherLimit& limit = {});

/// Returns the path of the command of this name; empty if there is none.
[[nodiscard]] std::string find_on_path(const std::string& name);

/// Calls `number` in a child process that then ends, so that this process keeps nothing that the call starts (CUDA).
/// Returns 0 if `number` throws; a later call in this process shows the error. Throws StateError if there is no answer
/// within `seconds`.
[[nodiscard]] int ask_in_a_child(const std::function<int()>& number, int seconds = 300);

}  // namespace lockstep::comm::detail
