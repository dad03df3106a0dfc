#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/clock.hpp>
#include <lockstep/comm/communicator.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/timeline.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

namespace lockstep::nn {

/// The steps that a timeline records. Step 1 is the first step that this process makes.
struct TraceSteps {
  static constexpr std::int64_t kMost = 1000;
  std::int64_t first = 10;
  std::int64_t last = 20;
};
/// Parses "A:B". UsageError that names --trace-steps unless 1 <= A <= B and A to B are at most kMost steps.
[[nodiscard]] TraceSteps parse_trace_steps(const std::string& text);
/// Returns 10:20. For a process of fewer than 20 steps returns its last 11 steps, or all steps if there are fewer.
[[nodiscard]] TraceSteps default_trace_steps(std::int64_t steps);

/// Records the timeline of some steps of a run and writes it to a file (nn/run/timeline.hpp). Make one object on every
/// rank; start() and write() are collective. The recording changes no number. The object must outlive the trainer,
/// unless the trainer's streams are idle.
///
///   nn::RunTrace trace(trainer, control, "t.json", {.first = 10, .last = 20});
///   trace.start();
///   ... run_training() with `trace` as an observer ...
///   trace.stop();
///   nn::TimelineSummary summary = trace.write();
class RunTrace final : public RunObserver {
 public:
  /// `control` is a communicator for host values, as in Ranks. Steps count from the trainer's position. The constructor
  /// allocates the memory of all spans, so one rank alone may fail.
  RunTrace(Trainer& trainer, comm::Communicator& control, std::string file, const TraceSteps& steps);
  void start();  ///< call before the run

  void on_step_begin(const StepEvent& event) override;

  void stop();  ///< call after the run; waits for the device; one rank alone may fail
  /// Writes the file on rank 0, which also gets the summary. Call it after stop(). WriteError on rank 0.
  [[nodiscard]] TimelineSummary write();
  /// Writes the spans of this rank after an error, without asking other ranks. On a GPU, which may still wait for
  /// another rank, writes nothing. Ignores errors.
  void save_own() noexcept;

 private:
  Trainer& trainer_;
  comm::Communicator& control_;
  std::string file_;
  std::int64_t origin_ns_ = 0;  ///< time 0 of the file, in ns
  comm::AlignedClock clock_;
  SpanRecorder recorder_;
  std::vector<SpanRecorder::Span> spans_;  ///< spans that stop() has taken
};

}  // namespace lockstep::nn
