#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/nn/run/observers/run_trace.hpp>

namespace lockstep::nn::detail {

/// Implements --trace: records the timeline of some steps, writes it at the end of the run, and prints a summary.
/// Without --trace the calls do nothing. Must outlive the trainer, because the trainer's queued work writes to it. All
/// calls but save_own() are collective.
class RunTimeline {
 public:
  explicit RunTimeline(RunSite& site) : site_(site), o_(site.options) {}
  /// Call it before the run. `last` is the step with which the run ends.
  void start(Trainer& trainer, std::int64_t last, RunObservers& observers);
  void save_own() noexcept;  ///< call after an error; acts on rank 0
  void report();             ///< call after the run

 private:
  RunSite& site_;
  const TrainingOptions& o_;
  std::optional<RunTrace> trace_;
};

}  // namespace lockstep::nn::detail
