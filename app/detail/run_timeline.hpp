#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/nn/run/observers/run_trace.hpp>

namespace lockstep::nn::detail {

/// --trace: records the timeline of some steps, writes it at the end of the run, and says what is in it. Without it
/// every call does nothing. Outlives the trainer, whose queued work writes to it. Collective, all calls but save_own().
class RunTimeline {
 public:
  explicit RunTimeline(RunSite& site) : site_(site), o_(site.options) {}
  /// Before the run, which ends with step `last`.
  void start(Trainer& trainer, std::int64_t last, RunObservers& observers);
  void save_own() noexcept;  ///< after an error, on rank 0
  void report();             ///< after the run

 private:
  RunSite& site_;
  const TrainingOptions& o_;
  std::optional<RunTrace> trace_;
};

}  // namespace lockstep::nn::detail
