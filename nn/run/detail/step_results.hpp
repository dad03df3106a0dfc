#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Results of steps, which reach the host up to Trainer::steps_under_way() steps after the steps are enqueued. The
/// object makes reports from the steps' sums, finds gradients that are not finite, and tells both to the observer.
/// enqueued() and finish() are collective.
class StepResults {
 public:
  explicit StepResults(const RunArguments& run)
      : run_(run),
        lag_(run.trainer.steps_under_way()),
        timed_(!run.trainer.graph_obstacle().empty()),
        checked_(run.trainer.position().step) {}

  void begin_epoch();
  /// Takes note of a step that was enqueued; `batch` is the number of its batch in the epoch. If `last` is true, the
  /// step is the last of the epoch, and this call waits for the step.
  void enqueued(const StepEvent& step, std::int64_t batch, bool last);
  /// Waits for all reports that are due. Call it before a checkpoint.
  void finish();
  /// Does not count `seconds`, which passed just now, as time of training.
  void leave_out(double seconds) { lap_begin_ += seconds; }
  /// Writes the totals of the epoch's reports to `event`: loss, accuracy, speed and exposed communication.
  void describe_epoch(EpochEvent& event) const;

 private:
  /// A report that is due. report() makes it when the metrics of its last step have arrived on every rank.
  struct Report {
    std::int64_t step = 0;
    std::int64_t batch = 0;
    double learning_rate = 0;
    std::int64_t steps = 0;       ///< number of steps that the report covers
    bool there = false;           ///< true: the metrics have arrived on this rank
    std::vector<Metrics> sums{};  ///< sums of this rank over the steps, as Trainer::metrics_of() gives them
    double seconds = -1;          ///< training time that the report covers; negative: not known yet
    double exposed_s = 0;
  };
  [[nodiscard]] Report& due(std::size_t i) { return due_[(first_due_ + i) % due_.size()]; }
  void restart_lap(double now);
  /// Takes all metrics of steps that have arrived on this rank. If the last steps of several reports arrive together,
  /// the time since the previous report is divided between these reports in proportion to their steps.
  void collect();
  void report();  ///< makes the report that is due first
  /// Checks the gradients of all steps up to `through`. The metrics of these steps must have arrived.
  void check_gradients(std::int64_t through);
  void wait_and_report();

  const RunArguments& run_;
  int lag_;
  bool timed_;
  std::array<Report, 4> due_{};  ///< a ring for the reports of at most steps_under_way() + 1 steps
  std::size_t first_due_ = 0;
  std::size_t waiting_ = 0;
  std::int64_t reported_ = 0;      ///< number of the last step that the newest report covers
  std::int64_t next_step_ = 0;     ///< number of the step whose metrics arrive next
  std::int64_t checked_;           ///< number of the last step whose gradients were checked
  std::vector<Metrics> lap_sums_;  ///< sums of this rank since the last report
  double lap_begin_ = 0;
  double lap_exposed_begin_ = 0;
  std::int64_t epoch_ = 0;  ///< number of epochs done before this one
  Metrics epoch_sums_;      ///< sums of all ranks over the epoch
  double epoch_train_s_ = 0;
  double epoch_exposed_s_ = 0;
};

}  // namespace lockstep::nn::detail
