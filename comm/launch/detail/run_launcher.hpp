#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/launch/launch.hpp>

namespace lockstep::comm::detail {

/// Runs a command (found on PATH) with more environment variables, waits for it, passes signals on as self_start()
/// says, and returns its exit code: 128 + n when signal n ended it, also when it ended by a SIGUSR1 that stood for n;
/// 127 when it cannot be run. When this process dies the command gets SIGTERM. Blocks and restores the signals of the
/// calling thread; the process must have no other threads.
[[nodiscard]] int run_launcher(const std::vector<std::string>& command, const Environment& variables);

/// The file that a command of this name is, or nothing.
[[nodiscard]] std::string find_on_path(const std::string& name);

/// What `number` returns, asked in a process that ends afterwards, so that nothing it starts (CUDA) stays in this one.
/// 0 when it throws: whoever asks again learns why.
[[nodiscard]] int ask_in_a_child(const std::function<int()>& number);

}  // namespace lockstep::comm::detail
