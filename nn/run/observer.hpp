#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

enum class RunEnd : unsigned char {
  finished,
  stopped,      ///< RunOptions::stop stopped the run
  out_of_time,  ///< RunOptions::max_seconds has passed
  no_better     ///< RunOptions::patience evaluations brought no new best value
};

// Events of a run. Unless a comment says otherwise, all numbers are over all ranks and are the same on every rank.

struct RunBegin {
  Position position;  ///< position at which the run begins or continues
  /// Number of epochs of the whole run, including a last epoch that RunOptions::steps ends early.
  std::int64_t epochs = 0;
  std::int64_t total_steps = 0;        ///< number of steps of the whole run
  std::int64_t batches_per_epoch = 0;  ///< number of steps of a full epoch
};

struct EpochBegin {
  std::int64_t epoch = 0;  ///< number of epochs done
  std::int64_t step = 0;   ///< number of steps done
};

/// A step that will be enqueued next, or that was just enqueued. The device may still be computing an enqueued step.
struct StepEvent {
  std::int64_t epoch = 0;  ///< number of epochs done before this step
  std::int64_t step = 0;   ///< number of the step, 1 for the first of the run
  double learning_rate = 0;
};

struct ReportEvent {
  std::int64_t epoch = 0;  ///< number of epochs done before this one
  std::int64_t step = 0;   ///< last step that the report covers
  std::int64_t batch = 0;  ///< number of batches done in this epoch
  double loss = 0;         ///< mean loss over the samples of all ranks since the last report
  double accuracy = 0;     ///< accuracy on the training batches; NaN for regressions
  double learning_rate = 0;
  double samples_per_second = 0;
  /// Seconds per step in which this rank waited for gradient communication that did not overlap with computation.
  /// Negative if steps ran as a CUDA graph, because communication in a graph is not timed.
  double comm_exposed_s = 0;
  MetricValues metrics;  ///< program's own metrics (RunMetric::of_report)
};

/// A step whose update was skipped, because its gradients were not finite (TrainStepOptions::check_gradients).
struct NonFiniteEvent {
  std::int64_t step = 0;
  std::string gradients;  ///< text of Trainer::non_finite_gradients()
};

struct EvaluationBegin {
  std::int64_t step = 0;  ///< number of steps done
};

/// A micro-batch of an evaluation, which was just enqueued on this rank. Use this event to sum up values of your own
/// over the outputs. on_evaluation_begin() is the place to set such sums to 0. Work on the trainer's stream may read
/// the outputs until the next event. copy_now() (runtime/tensor/copy.hpp) copies outputs of any type and layout from
/// any device to the host as f32.
struct EvaluationBatch {
  const Batch& batch;        ///< fields on the host; only the first batch.valid (>= 0) rows are samples
  const TensorView& output;  ///< output of the plan on the device, of shape (rows, output shape)
};

struct EvaluationEvent {
  std::int64_t step = 0;
  double loss = 0;      ///< mean loss over the test set
  double accuracy = 0;  ///< fraction of correct labels; NaN for regressions
  int top_k = 0;        ///< k of top_k_accuracy (PlanOptions::top_k)
  double top_k_accuracy = 0;
  /// Number of samples whose label has the largest output; with weights of the loss, the sum of their weights.
  double correct = 0;
  double samples = 0;    ///< number of samples in the test set
  MetricValues metrics;  ///< program's own metrics (RunMetric::of_evaluation)
};

struct EpochEvent {
  std::int64_t epoch = 0;  ///< number of epochs done
  std::int64_t step = 0;
  double train_loss = 0;
  double train_accuracy = 0;  ///< NaN for regressions
  EvaluationEvent test;
  double samples_per_second = 0;  ///< speed of training, without the time of evaluations
  /// Seconds of this rank's communication in the epoch that did not overlap with computation; negative: not timed.
  double comm_exposed_s = 0;
  double seconds = 0;                ///< seconds that the epoch took, including its evaluation
  std::int64_t skipped_updates = 0;  ///< number of skipped updates: Trainer::skipped_updates()
  /// Bytes of one rank's gradients per step, and bytes that the rank sends to sum them over the ranks
  /// (GradientReducer::sent_bytes()).
  std::int64_t gradient_bytes = 0;
  std::int64_t sent_bytes = 0;
  std::int64_t peak_bytes = -1;  ///< largest memory use on this rank's device; -1: not counted
  bool best = false;             ///< true: this evaluation is the best so far by RunOptions::best
};

struct CheckpointEvent {
  std::string folder;
  std::int64_t step = 0;
};

struct RunResult {
  RunEnd end = RunEnd::finished;
  RunProgress progress;  ///< progress at the end of the run
};

/// Base class of an observer of a run, for example a console, a log or a metric of your own. The run calls its observer
/// on every rank, between steps, in the order of events. A slow call delays the host. A call that waits for the device
/// also delays the device. An exception from a call ends the run on this rank.
class RunObserver {
 public:
  RunObserver() = default;
  RunObserver(const RunObserver&) = delete;
  RunObserver& operator=(const RunObserver&) = delete;
  virtual ~RunObserver() = default;
  virtual void on_run_begin(const RunBegin&) {}
  virtual void on_epoch_begin(const EpochBegin&) {}
  virtual void on_step_begin(const StepEvent&) {}
  virtual void on_step_end(const StepEvent&) {}
  virtual void on_non_finite(const NonFiniteEvent&) {}
  virtual void on_report(const ReportEvent&) {}
  virtual void on_evaluation_begin(const EvaluationBegin&) {}
  virtual void on_evaluation_batch(const EvaluationBatch&) {}
  virtual void on_evaluation_end(const EvaluationEvent&) {}
  virtual void on_epoch_end(const EpochEvent&) {}
  virtual void on_checkpoint_begin(const CheckpointEvent&) {}
  virtual void on_checkpoint_end(const CheckpointEvent&) {}
  virtual void on_run_end(const RunResult&) {}  ///< called at the end of the run, but not after an error
};

/// Combines several observers into one, which calls them in the order in which add() got them. The observers must
/// outlive this object.
class RunObservers final : public RunObserver {
 public:
  RunObservers& add(RunObserver& observer) {
    observers_.push_back(&observer);
    return *this;
  }
  void on_run_begin(const RunBegin& event) override { tell(&RunObserver::on_run_begin, event); }
  void on_epoch_begin(const EpochBegin& event) override { tell(&RunObserver::on_epoch_begin, event); }
  void on_step_begin(const StepEvent& event) override { tell(&RunObserver::on_step_begin, event); }
  void on_step_end(const StepEvent& event) override { tell(&RunObserver::on_step_end, event); }
  void on_non_finite(const NonFiniteEvent& event) override { tell(&RunObserver::on_non_finite, event); }
  void on_report(const ReportEvent& event) override { tell(&RunObserver::on_report, event); }
  void on_evaluation_begin(const EvaluationBegin& event) override { tell(&RunObserver::on_evaluation_begin, event); }
  void on_evaluation_batch(const EvaluationBatch& event) override { tell(&RunObserver::on_evaluation_batch, event); }
  void on_evaluation_end(const EvaluationEvent& event) override { tell(&RunObserver::on_evaluation_end, event); }
  void on_epoch_end(const EpochEvent& event) override { tell(&RunObserver::on_epoch_end, event); }
  void on_checkpoint_begin(const CheckpointEvent& event) override { tell(&RunObserver::on_checkpoint_begin, event); }
  void on_checkpoint_end(const CheckpointEvent& event) override { tell(&RunObserver::on_checkpoint_end, event); }
  void on_run_end(const RunResult& event) override { tell(&RunObserver::on_run_end, event); }

 private:
  template <class Event>
  void tell(void (RunObserver::*call)(const Event&), const Event& event) {
    for (RunObserver* each : observers_) {
      (each->*call)(event);
    }
  }
  std::vector<RunObserver*> observers_;
};

/// One rank's part of a metric. For a mean over items, return the sum and the number of items as `sum` and `amount`,
/// because ranks may have different numbers of items. For any other number, `amount` is 1. The metric is then the mean
/// of the ranks' numbers, which is the number itself if it is equal on all ranks.
struct MetricPart {
  double sum = 0;
  double amount = 1;
  MetricPart() = default;
  MetricPart(double number) : sum(number) {}  // NOLINT(google-explicit-constructor): `return loss / std::log(2);`
  MetricPart(double s, double a) : sum(s), amount(a) {}
};

/// A metric of the program's own. Its values appear in the console and in metrics.jsonl, and metrics of evaluations
/// also appear in checkpoints:
///
///   options.metrics = {{.name = "bits_per_byte", .of_evaluation = [](const auto& e) { return e.loss / M_LN2; }}};
///
/// The functions are called on every rank, with the results of all ranks. At that time, `metrics` of the event is still
/// empty. The metric is (sum of all `sum`) / (sum of all `amount`) over the ranks, added in rank order. If the
/// functions use data that an observer collects, the observer must run on every rank.
struct RunMetric {
  std::string name{};  ///< lower-case letters, digits and '_'; must not be a name that metrics.jsonl uses itself
  std::function<MetricPart(const ReportEvent&)> of_report{};
  std::function<MetricPart(const EvaluationEvent&)> of_evaluation{};
};

}  // namespace lockstep::nn
