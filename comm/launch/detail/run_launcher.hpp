#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm::detail {

struct LauncherEnd {
  int code = 0;
  bool stopped = false;      ///< this process was asked to stop meanwhile, and passed that on
  bool output_lost = false;  ///< with LauncherLimit::output: some of it could not be written
  bool silent = false;       ///< it failed by itself, and nothing was written to standard error
};

/// How a launcher is treated. One that does not end is ended: SIGTERM, and SIGKILL for it and its children two seconds
/// later.
struct LauncherLimit {
  double seconds = 0;     ///< so long without a living child (with `children`), or stopped; 0: never
  bool children = false;  ///< the ranks are its own children
  bool output = false;    ///< standard output passes through this process, unless it is a terminal
};

/// Runs a command (found on PATH) with additional environment variables, waits for it, and passes signals on as
/// self_start() describes. Its exit code is 128 + n when signal n ended it, also when it ended by a SIGUSR1 that
/// stood for n; 127 when it cannot be run. When this process dies, the command gets SIGTERM. The command's standard
/// error passes through a BannerFilter. Blocks and restores the signals of the calling thread, but for SIGPIPE,
/// which stays blocked; the process must have no other threads. If the reader of the command's output goes, the
/// command goes on, and a line on standard error names the reason. If the reader stops reading, run_launcher() waits
/// until this process is asked to stop.
///
/// A command that is beyond `limit` is ended, and a line on standard error says so; the exit code is that of a watchdog
/// (76). Once this process was asked to stop, 10 s count in place of limit.seconds, and the code is 128 + n.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command, const Environment& variables,
                                       const LauncherLimit& limit = {});

/// The path of the command of this name; empty when there is none.
[[nodiscard]] std::string find_on_path(const std::string& name);

/// Calls `number` in a child process that then ends, so that nothing that it starts (CUDA) stays in this process. 0
/// when it throws: a later call in this process shows the error. StateError without an answer in so many seconds.
[[nodiscard]] int ask_in_a_child(const std::function<int()>& number, int seconds = 300);

}  // namespace lockstep::comm::detail
