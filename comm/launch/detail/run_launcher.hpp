#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm::detail {

struct LauncherEnd {
  int code = 0;
  bool stopped = false;      ///< this process was asked to stop meanwhile, and forwarded the request
  bool output_lost = false;  ///< with LauncherLimit::output: some output could not be written
  bool silent = false;       ///< the launcher failed on its own, and nothing was written to standard error
};

/// Limits for a launcher. A launcher beyond them gets SIGTERM, then it and its children get SIGKILL two seconds later.
struct LauncherLimit {
  double seconds = 0;     ///< longest time without a living child (with `children`), or stopped; 0: no limit
  bool children = false;  ///< the ranks are the launcher's own children
  bool output = false;    ///< standard output is relayed by this process, unless it is a terminal
};

/// Runs a command (found on PATH) with additional environment variables, waits for it, and forwards signals as
/// self_start() describes. Its exit code is 128 + n when signal n ended it, also when it ended by a SIGUSR1 sent in
/// place of n; 127 when it cannot be run. When this process dies, the command gets SIGTERM. The command's standard
/// error passes through a BannerFilter. Blocks and then restores the signals of the calling thread, except SIGPIPE,
/// which stays blocked; the process must have no other threads. If the reader of the command's output closes it, the
/// command goes on, and a line on standard error names the reason. If the reader stops reading, run_launcher() waits
/// until this process is asked to stop.
///
/// A command beyond `limit` is ended, and a line on standard error says so; the exit code is that of a watchdog (76).
/// After this process was asked to stop, 10 s replace limit.seconds, and the code is 128 + n.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command, const Environment& variables,
                                       const LauncherLimit& limit = {});

/// Returns the path of the command of this name; empty when there is none.
[[nodiscard]] std::string find_on_path(const std::string& name);

/// Calls `number` in a child process that then ends, so that this process keeps nothing that the call starts (CUDA).
/// Returns 0 when `number` throws: a later call in this process shows the error. StateError without an answer within
/// `seconds`.
[[nodiscard]] int ask_in_a_child(const std::function<int()>& number, int seconds = 300);

}  // namespace lockstep::comm::detail
