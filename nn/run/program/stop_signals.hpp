#pragma once

#include <atomic>

namespace lockstep::nn {

/// What SIGTERM, SIGINT and SIGUSR1 do to a training program. They belong to the process, and so does this.
///
/// From watch_stop_signals() on, which is the first thing that a training program does, such a signal ends the process
/// at once: there is nothing to save yet. It prints one line (of several ranks only rank 0 does) and exits with
/// exit_code::kStopped.
void watch_stop_signals();

/// From now on such a signal only sets the number that is returned, 0 before: the run stops with a checkpoint
/// (RunOptions::stop).
[[nodiscard]] const std::atomic<int>& record_stop_signals();

}  // namespace lockstep::nn
