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

/// The steps of a timeline, counted from 1, the first step that this process makes.
struct TraceSteps {
  static constexpr std::int64_t kMost = 1000;
  std::int64_t first = 10;
  std::int64_t last = 20;
};
/// "A:B"; UsageError naming --trace-steps unless 1 <= A <= B and these are at most kMost steps.
[[nodiscard]] TraceSteps parse_trace_steps(const std::string& text);
/// 10:20, or as many of the last steps as there are of a process that makes `steps` steps.
[[nodiscard]] TraceSteps default_trace_steps(std::int64_t steps);

/// Records the timeline of some steps of a run and writes it (nn/run/timeline.hpp). One on every rank; start() and
/// write() are collective. Changes no number. Must outlive the trainer, or the trainer's streams be idle.
///
///   nn::RunTrace trace(trainer, control, "t.json", {.first = 10, .last = 20});
///   trace.start();
///   ... run_training() with `trace` as an observer ...
///   trace.stop();
///   nn::TimelineSummary summary = trace.write();
class RunTrace final : public RunObserver {
 public:
  /// control: for host values, as in Ranks. The steps count from the trainer's position. Allocates the memory of all
  /// spans: it may fail on one rank alone.
  RunTrace(Trainer& trainer, comm::Communicator& control, std::string file, const TraceSteps& steps);
  void start();  ///< before the run

  void on_step_begin(const StepEvent& event) override;

  void stop();  ///< after the run; waits for the device, and may fail on one rank alone
  /// After stop(): rank 0 writes the file, and has the summary. WriteError there.
  [[nodiscard]] TimelineSummary write();
  /// After an error, by itself: writes what this rank has recorded, with no word to other ranks. On a GPU, which may
  /// still wait for one, it writes nothing. Errors are dropped.
  void save_own() noexcept;

 private:
  Trainer& trainer_;
  comm::Communicator& control_;
  std::string file_;
  std::int64_t origin_ns_ = 0;  ///< the time 0 of the file
  comm::AlignedClock clock_;
  SpanRecorder recorder_;
  std::vector<SpanRecorder::Span> spans_;  ///< from stop() on
};

}  // namespace lockstep::nn
