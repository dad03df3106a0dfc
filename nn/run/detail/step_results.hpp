#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/run/detail/run_arguments.hpp>

namespace lockstep::nn::detail {

/// What steps bring to the host after they are enqueued, up to Trainer::steps_under_way() steps later: sums, of which
/// reports are made, and gradients that are not finite. Tells the observer. Collective, all calls but leave_out().
class StepResults {
 public:
  explicit StepResults(const RunArguments& run)
      : run_(run),
        lag_(run.trainer.steps_under_way()),
        timed_(!run.trainer.graph_obstacle().empty()),
        checked_(run.trainer.position().step) {}

  void begin_epoch();
  /// A step was enqueued, batch `batch` of its epoch. last: none of the epoch's follows, so it waits for this one.
  void enqueued(const StepEvent& step, std::int64_t batch, bool last);
  /// What a checkpoint waits for: all reports that are due.
  void finish();
  /// So much of the time was none of training.
  void leave_out(double seconds) { lap_begin_ += seconds; }
  /// What the epoch's reports add up to: loss, accuracy, speed and exposed communication.
  void describe_epoch(EpochEvent& event) const;

 private:
  /// A report that is due: made when the metrics of its last step are there on every rank.
  struct Report {
    std::int64_t step = 0;
    std::int64_t batch = 0;
    double learning_rate = 0;
    std::int64_t steps = 0;       ///< that it covers
    bool there = false;           ///< on this rank
    std::vector<Metrics> sums{};  ///< of this rank, as Trainer::metrics_of()
    double seconds = -1;          ///< below 0: not known yet
    double exposed_s = 0;
  };
  [[nodiscard]] Report& due(std::size_t i) { return due_[(first_due_ + i) % due_.size()]; }
  void restart_lap(double now);
  /// Takes the metrics of steps that are there. Reports whose last steps came together share the time since the report
  /// before by their steps.
  void collect();
  void report();  ///< the first one that is due
  /// Looks at the gradients of all steps up to this one, whose metrics are there.
  void check_gradients(std::int64_t through);
  void wait_and_report();

  const RunArguments& run_;
  int lag_;
  bool timed_;
  std::array<Report, 4> due_{};  ///< a ring: reports of steps_under_way() + 1 steps at most
  std::size_t first_due_ = 0;
  std::size_t waiting_ = 0;
  std::int64_t reported_ = 0;      ///< the last step of the newest report
  std::int64_t next_step_ = 0;     ///< whose metrics come next
  std::int64_t checked_;           ///< the last step whose gradients were looked at
  std::vector<Metrics> lap_sums_;  ///< of this rank, since the last report
  double lap_begin_ = 0;
  double lap_exposed_begin_ = 0;
  std::int64_t epoch_ = 0;  ///< epochs done before
  Metrics epoch_sums_;      ///< of all ranks
  double epoch_train_s_ = 0;
  double epoch_exposed_s_ = 0;
};

}  // namespace lockstep::nn::detail
