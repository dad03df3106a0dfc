#pragma once

#include <atomic>

namespace lockstep::nn {

/// Functions that decide how a training program answers SIGTERM, SIGINT and SIGUSR1, for the whole process.
///
/// SIGXFSZ is ignored, so that a file at its size limit causes an error like a full disk.
///
/// Makes a stop signal end the process at once, because there is nothing to save yet. The process prints one line (of
/// several ranks only rank 0 does) and exits with exit_code::kStopped. A training program calls this first.
void watch_stop_signals();

/// Ignores SIGTERM and SIGUSR1, which then change neither output nor exit code; SIGINT ends the program at once, as it
/// ends any program. For a program that has failed and is ending, because the launcher may already end its ranks.
void ignore_stop_signals();

/// Makes a stop signal only store its number in the returned variable, which is 0 before. The run then stops with a
/// checkpoint (RunOptions::stop).
[[nodiscard]] const std::atomic<int>& record_stop_signals();

}  // namespace lockstep::nn
