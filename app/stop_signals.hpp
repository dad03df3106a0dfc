#pragma once

#include <atomic>

namespace lockstep::nn {

/// Functions that decide how a training program reacts to the stop signals SIGTERM, SIGINT and SIGUSR1.
///
/// After the call of watch_stop_signals(), a stop signal ends the process at once, because there is nothing to save
/// yet. The process prints one line (with several ranks only rank 0 does) and exits with exit_code::kStopped. SIGXFSZ
/// is ignored, so that a file at its size limit causes an error as a full disk does. A training program calls this
/// function first.
void watch_stop_signals();

/// Ignores SIGTERM and SIGUSR1, so that they change neither output nor exit code; SIGINT ends the program at once, as
/// by default. Call this function in a program that has failed and is ending, because the launcher may send signals to
/// its ranks then.
void ignore_stop_signals();

/// From now on, a stop signal only stores its number in the returned variable, which is 0 before. RunOptions::stop then
/// makes the run stop with a checkpoint.
[[nodiscard]] const std::atomic<int>& record_stop_signals();

}  // namespace lockstep::nn
