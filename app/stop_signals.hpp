#pragma once

#include <atomic>

namespace lockstep::nn {

/// How a training program answers SIGTERM, SIGINT and SIGUSR1. The settings hold for the whole process.
///
/// SIGXFSZ is ignored: a file that reaches its size limit is an error like a full disk.
///
/// A training program calls this first. From then on a stop signal ends the process at once, because there is nothing
/// to save yet: the process prints one line (on several ranks only rank 0 does) and exits with exit_code::kStopped.
void watch_stop_signals();

/// For a program that has failed and is ending, while the launcher may already end its ranks: SIGTERM and SIGUSR1
/// change neither its output nor its exit code; SIGINT ends the program at once, as it ends any program.
void ignore_stop_signals();

/// From this call on a stop signal only stores its number in the returned variable, which is 0 before, and the run
/// stops with a checkpoint (RunOptions::stop).
[[nodiscard]] const std::atomic<int>& record_stop_signals();

}  // namespace lockstep::nn
