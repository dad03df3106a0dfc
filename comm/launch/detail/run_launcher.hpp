#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm::detail {

struct LauncherEnd {
  int code = 0;
  bool stopped = false;  ///< this process was asked to stop meanwhile, and passed that on
};

/// Runs a command (found on PATH) with additional environment variables, waits for it, and passes signals on as
/// self_start() describes. Its exit code is 128 + n when signal n ended it, also when it ended by a SIGUSR1 that
/// stood for n; 127 when it cannot be run. When this process dies, the command gets SIGTERM. The command's standard
/// error passes through a BannerFilter. Blocks and restores the signals of the calling thread; the process must have no
/// other threads.
[[nodiscard]] LauncherEnd run_launcher(const std::vector<std::string>& command, const Environment& variables);

/// The path of the command of this name; empty when there is none.
[[nodiscard]] std::string find_on_path(const std::string& name);

/// Calls `number` in a child process that then ends, so that nothing that it starts (CUDA) stays in this process. 0
/// when it throws: a later call in this process shows the error.
[[nodiscard]] int ask_in_a_child(const std::function<int()>& number);

}  // namespace lockstep::comm::detail
