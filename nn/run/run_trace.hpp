#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

/// Records the timeline of some steps of a run and writes it (nn/run/timeline.hpp). One on every rank; the constructor
/// and finish() are collective. Changes no number. Must outlive the trainer, or the trainer's streams be idle.
class RunTrace final : public RunObserver {
 public:
  /// control: for host values, as in Ranks. Allocates the memory of all spans. Rank 0's file is there already
  /// (TimelineFile::start()).
  RunTrace(Trainer& trainer, comm::Communicator& control, std::string file, const TraceSteps& steps);

  void on_step_begin(const StepEvent& event) override;
  void on_evaluation_begin(const EvaluationBegin& event) override;
  void on_evaluation_end(const EvaluationEvent& event) override;
  void on_checkpoint_begin(const CheckpointEvent& event) override;
  void on_checkpoint_end(const CheckpointEvent& event) override;

  /// After the run: rank 0 writes the file. Waits for the device. The summary is rank 0's.
  [[nodiscard]] TimelineSummary finish();
  /// After an error, by itself: writes what this rank has recorded, with no word to other ranks. On a GPU, which may
  /// still wait for one, it writes nothing. Errors are dropped.
  void save_own() noexcept;

 private:
  Trainer& trainer_;
  comm::Communicator& control_;
  std::string file_;
  std::int64_t origin_ns_;
  comm::AlignedClock clock_;
  SpanRecorder recorder_;
  int evaluation_name_;
  int checkpoint_name_;
  int open_evaluation_ = -1;
  int open_checkpoint_ = -1;
};

}  // namespace lockstep::nn
