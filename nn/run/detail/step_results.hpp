#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// Results of steps that reach the host after the steps are enqueued, up to Trainer::steps_under_way() steps later:
/// sums, of which reports are made, and gradients that are not finite. Tells the observer. All calls but leave_out()
/// are collective.
class StepResults {
 public:
  explicit StepResults(const RunArguments& run)
      : run_(run),
        lag_(run.trainer.steps_under_way()),
        timed_(!run.trainer.graph_obstacle().empty()),
        checked_(run.trainer.position().step) {}

  void begin_epoch();
  /// A step was enqueued, batch `batch` of its epoch. last: the epoch has no further step, so this call waits for the
  /// step.
  void enqueued(const StepEvent& step, std::int64_t batch, bool last);
  /// Waits for all reports that are due. Call before a checkpoint.
  void finish();
  /// Leaves `seconds` out of the time of training.
  void leave_out(double seconds) { lap_begin_ += seconds; }
  /// Fills in the totals of the epoch's reports: loss, accuracy, speed and exposed communication.
  void describe_epoch(EpochEvent& event) const;

 private:
  /// A report that is due: made when the metrics of its last step have arrived on every rank.
  struct Report {
    std::int64_t step = 0;
    std::int64_t batch = 0;
    double learning_rate = 0;
    std::int64_t steps = 0;       ///< number of steps that the report covers
    bool there = false;           ///< true: the metrics have arrived on this rank
    std::vector<Metrics> sums{};  ///< sums of this rank, as in Trainer::metrics_of()
    double seconds = -1;          ///< training time that the report covers; below 0: not known yet
    double exposed_s = 0;
  };
  [[nodiscard]] Report& due(std::size_t i) { return due_[(first_due_ + i) % due_.size()]; }
  void restart_lap(double now);
  /// Takes the metrics of steps that have arrived. Reports whose last steps arrived together divide the time since the
  /// report before them, in proportion to their steps.
  void collect();
  void report();  ///< makes the first report that is due
  /// Checks the gradients of all steps up to `through`, whose metrics have arrived.
  void check_gradients(std::int64_t through);
  void wait_and_report();

  const RunArguments& run_;
  int lag_;
  bool timed_;
  std::array<Report, 4> due_{};  ///< a ring: at most the reports of steps_under_way() + 1 steps
  std::size_t first_due_ = 0;
  std::size_t waiting_ = 0;
  std::int64_t reported_ = 0;      ///< the last step of the newest report
  std::int64_t next_step_ = 0;     ///< step whose metrics come next
  std::int64_t checked_;           ///< the last step whose gradients were checked
  std::vector<Metrics> lap_sums_;  ///< sums of this rank since the last report
  double lap_begin_ = 0;
  double lap_exposed_begin_ = 0;
  std::int64_t epoch_ = 0;  ///< number of epochs done before this one
  Metrics epoch_sums_;      ///< sums of all ranks over the epoch
  double epoch_train_s_ = 0;
  double epoch_exposed_s_ = 0;
};

}  // namespace lockstep::nn::detail
