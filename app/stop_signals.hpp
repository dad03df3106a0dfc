#pragma once

#include <atomic>

namespace lockstep::nn {

/// How a training program answers SIGTERM, SIGINT and SIGUSR1. The settings hold for the whole process.
///
/// SIGXFSZ is ignored: a file that reaches its limit is an error like that of a full disk.
///
/// A training program calls this first. From then on such a signal ends the process at once, since there is nothing to
/// save yet: it prints one line (on several ranks only rank 0 does) and exits with exit_code::kStopped.
void watch_stop_signals();

/// The program has failed and is on its way out, while the launcher may already end its ranks: SIGTERM and SIGUSR1
/// change neither what it has said nor its exit code; SIGINT ends it at once, as it ends any program.
void ignore_stop_signals();

/// From this call on such a signal only sets the returned number, which is 0 before, and the run stops with a
/// checkpoint (RunOptions::stop).
[[nodiscard]] const std::atomic<int>& record_stop_signals();

}  // namespace lockstep::nn
