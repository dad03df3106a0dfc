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

/// The first and the last step that a timeline records, both by number. Step 1 is the first step of this process.
struct TraceSteps {
  static constexpr std::int64_t kMost = 1000;
  std::int64_t first = 10;
  std::int64_t last = 20;
};
/// Returns the steps of the text "A:B". Throws UsageError, which names --trace-steps, unless 1 <= A <= B < A + kMost.
[[nodiscard]] TraceSteps parse_trace_steps(const std::string& text);
/// Returns steps 10 to 20. If the run has fewer than 20 steps, returns the run's last 11 steps, or all steps if there
/// are fewer than 11.
[[nodiscard]] TraceSteps default_trace_steps(std::int64_t steps);

/// Records the timeline of some steps of a run and writes it to a file (nn/run/timeline.hpp). Make one object on every
/// rank; start() and write() are collective. Recording does not change the results of the run. The object must outlive
/// the trainer, unless the trainer's streams are idle.
///
///   nn::RunTrace trace(trainer, control, "t.json", {.first = 10, .last = 20});
///   trace.start();
///   ... run_training() with `trace` as an observer ...
///   trace.stop();
///   nn::TimelineSummary summary = trace.write();
class RunTrace final : public RunObserver {
 public:
  /// `control` is a communicator for host values, as in Ranks. `steps` counts from the trainer's position when the
  /// trace starts. The constructor allocates memory for all spans, so it may fail on one rank alone.
  RunTrace(Trainer& trainer, comm::Communicator& control, std::string file, const TraceSteps& steps);
  void start();  ///< must be called before run_training()

  void on_step_begin(const StepEvent& event) override;

  void stop();  ///< must be called after run_training(); waits for the device; may fail on one rank alone
  /// Writes the spans of all ranks to the file on rank 0. Returns the summary on rank 0, and an empty summary on all
  /// other ranks. Must be called after stop(). Throws WriteError on rank 0 if the file cannot be written.
  [[nodiscard]] TimelineSummary write();
  /// Writes the spans of this rank alone to the file, after an error of the run. Is not collective. Writes nothing if
  /// the trainer computes on a GPU, because the GPU may still be waiting for another rank. Ignores errors in writing.
  void save_own() noexcept;

 private:
  Trainer& trainer_;
  comm::Communicator& control_;
  std::string file_;
  std::int64_t origin_ns_ = 0;  ///< value of SpanRecorder::now_ns() that is time 0 in the file
  comm::AlignedClock clock_;
  SpanRecorder recorder_;
  std::vector<SpanRecorder::Span> spans_;  ///< spans that stop() took from recorder_
};

}  // namespace lockstep::nn
