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

/// The steps that a timeline records, counted from 1, the first step that this process makes.
struct TraceSteps {
  static constexpr std::int64_t kMost = 1000;
  std::int64_t first = 10;
  std::int64_t last = 20;
};
/// Parses "A:B"; UsageError naming --trace-steps unless 1 <= A <= B and A to B are at most kMost steps.
[[nodiscard]] TraceSteps parse_trace_steps(const std::string& text);
/// Returns 10:20; for a process that makes fewer than 20 steps, as many of its last steps as there are.
[[nodiscard]] TraceSteps default_trace_steps(std::int64_t steps);

/// Records the timeline of some steps of a run and writes it to a file (nn/run/timeline.hpp). One object on every rank;
/// start() and write() are collective. Changes no number. Must outlive the trainer, unless the trainer's streams are
/// idle.
///
///   nn::RunTrace trace(trainer, control, "t.json", {.first = 10, .last = 20});
///   trace.start();
///   ... run_training() with `trace` as an observer ...
///   trace.stop();
///   nn::TimelineSummary summary = trace.write();
class RunTrace final : public RunObserver {
 public:
  /// control: for host values, as in Ranks. Steps count from the trainer's position. Allocates the memory of all spans,
  /// so it may fail on one rank alone.
  RunTrace(Trainer& trainer, comm::Communicator& control, std::string file, const TraceSteps& steps);
  void start();  ///< call before the run

  void on_step_begin(const StepEvent& event) override;

  void stop();  ///< call after the run; waits for the device, and may fail on one rank alone
  /// Call after stop(): rank 0 writes the file and gets the summary. WriteError on rank 0.
  [[nodiscard]] TimelineSummary write();
  /// For use after an error: writes what this rank has recorded, without asking other ranks. Writes nothing on a GPU,
  /// which may still wait for another rank. Errors are dropped.
  void save_own() noexcept;

 private:
  Trainer& trainer_;
  comm::Communicator& control_;
  std::string file_;
  std::int64_t origin_ns_ = 0;  ///< time 0 of the file
  comm::AlignedClock clock_;
  SpanRecorder recorder_;
  std::vector<SpanRecorder::Span> spans_;  ///< filled by stop()
};

}  // namespace lockstep::nn
