#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Collects the results of steps. The results arrive on the host up to Trainer::steps_under_way() steps after a step
/// was enqueued. The object makes reports from sums over steps, and finds steps whose gradients are not finite. It
/// calls the observer for each report and for each such step. enqueued() and finish() are collective.
class StepResults {
 public:
  explicit StepResults(const RunArguments& run)
      : run_(run),
        lag_(run.trainer.steps_under_way()),
        timed_(!run.trainer.graph_obstacle().empty()),
        checked_(run.trainer.position().step) {}

  void begin_epoch();
  /// Must be called after each step was enqueued. `batch` is the number of the step's batch in the epoch. If `last` is
  /// true, the step is the last of the epoch, and the call waits for its results.
  void enqueued(const StepEvent& step, std::int64_t batch, bool last);
  /// Waits for all reports that are due. Must be called before a checkpoint.
  void finish();
  /// Excludes the last `seconds` seconds from the time of training.
  void leave_out(double seconds) { lap_begin_ += seconds; }
  /// Writes the totals of the epoch's reports to `event`: loss, accuracy, speed and exposed communication.
  void describe_epoch(EpochEvent& event) const;

 private:
  /// A report that is due. report() sends it to the observer when the metrics of its last step have arrived on every
  /// rank.
  struct Report {
    std::int64_t step = 0;
    std::int64_t batch = 0;
    double learning_rate = 0;
    std::int64_t steps = 0;       ///< number of steps that the report covers
    bool there = false;           ///< true: the metrics of the report's last step have arrived on this rank
    std::vector<Metrics> sums{};  ///< this rank's metrics (Trainer::metrics_of()), summed over the steps
    double seconds = -1;          ///< training time that the report covers, in seconds; negative: not known yet
    double exposed_s = 0;
  };
  [[nodiscard]] Report& due(std::size_t i) { return due_[(first_due_ + i) % due_.size()]; }
  void restart_lap(double now);
  /// Fetches the metrics of all steps that have arrived on this rank, and adds them to the sums of the reports that
  /// cover these steps. If several reports become complete in one call, the time since the previous report is divided
  /// between these reports in proportion to their numbers of steps.
  void collect();
  void report();  ///< sends the oldest report that is due
  /// Checks the gradients of all steps up to step `through`. The metrics of these steps must have arrived.
  void check_gradients(std::int64_t through);
  void wait_and_report();

  const RunArguments& run_;
  int lag_;
  bool timed_;
  /// Ring buffer of reports that are not sent yet. Each step makes at most one report, and the last steps_under_way() +
  /// 1 steps may have unsent reports.
  std::array<Report, 4> due_{};
  std::size_t first_due_ = 0;
  std::size_t waiting_ = 0;
  std::int64_t reported_ = 0;   ///< last step of the newest report
  std::int64_t next_step_ = 0;  ///< step whose metrics arrive next
  std::int64_t checked_;        ///< last step whose gradients were checked
  std::vector<Metrics> lap_sums_;
  double lap_begin_ = 0;
  double lap_exposed_begin_ = 0;
  std::int64_t epoch_ = 0;
  Metrics epoch_sums_;  ///< sums of all ranks over the epoch
  double epoch_train_s_ = 0;
  double epoch_exposed_s_ = 0;
};

}  // namespace lockstep::nn::detail
