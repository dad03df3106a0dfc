#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/nn/run/observers/run_trace.hpp>

namespace lockstep::nn::detail {

/// Implements --trace: records the timeline of some steps, writes it at the end of the run, and prints a summary.
/// Without --trace the functions do nothing. This object must outlive the trainer, whose queued work writes to it. All
/// functions but save_own() are collective.
class RunTimeline {
 public:
  explicit RunTimeline(RunSite& site) : site_(site), o_(site.options) {}
  /// Begins to record. Call start() before the run. `last` is the number of the step with which the run ends.
  void start(Trainer& trainer, std::int64_t last, RunObservers& observers);
  void save_own() noexcept;  ///< writes this rank's timeline after an error; does nothing on ranks other than 0
  void report();             ///< writes the timeline and prints the summary; call report() after the run

 private:
  RunSite& site_;
  const TrainingOptions& o_;
  std::optional<RunTrace> trace_;
};

}  // namespace lockstep::nn::detail
