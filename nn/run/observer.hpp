#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>

namespace lockstep::nn {

enum class RunEnd : unsigned char { finished, stopped };

// What a run tells about itself. Numbers are those of all ranks, and the same on every rank, unless they say otherwise.

struct RunBegin {
  Position position;                   ///< where it goes on from
  std::int64_t epochs = 0;             ///< of the whole run
  std::int64_t total_steps = 0;        ///< of the whole run
  std::int64_t batches_per_epoch = 0;  ///< steps of an epoch
};

struct EpochBegin {
  std::int64_t epoch = 0;  ///< epochs done
  std::int64_t step = 0;   ///< steps done
};

/// A step that is about to be enqueued, or that was: the device may still compute it.
struct StepEvent {
  std::int64_t epoch = 0;  ///< epochs done before it
  std::int64_t step = 0;   ///< 1 for the first of the run
  double learning_rate = 0;
};

struct ReportEvent {
  std::int64_t epoch = 0;  ///< epochs done before
  std::int64_t step = 0;   ///< the last step that it covers
  std::int64_t batch = 0;  ///< batches of this epoch up to there
  double loss = 0;         ///< mean over the samples of all ranks since the last report
  double accuracy = 0;     ///< on the training batches; NaN for regressions, which have none
  double learning_rate = 0;
  double samples_per_second = 0;
  double comm_exposed_s = 0;  ///< seconds a step that gradient communication was not hidden, this rank; negative: steps
                              ///< ran as a CUDA graph, which is not timed
  MetricValues metrics;       ///< of one's own (RunMetric::of_report)
};

struct EvaluationBegin {
  std::int64_t step = 0;  ///< steps done
};

/// A micro-batch of an evaluation, enqueued on this rank: for sums of one's own over outputs, which begin anew with
/// on_evaluation_begin(). Work on the trainer's stream sees the outputs until the next event; copy_now() brings them to
/// the host in f32, whatever they are and wherever they lie (runtime/tensor/copy.hpp).
struct EvaluationBatch {
  const Batch& batch;        ///< its fields on the host; the first `valid` rows count, a number of at least 0
  const TensorView& output;  ///< (rows, output shape) on the device, as the plan computes it
};

struct EvaluationEvent {
  std::int64_t step = 0;
  double loss = 0;      ///< mean over the test set
  double accuracy = 0;  ///< fraction of the labels; NaN for regressions
  int top_k = 0;        ///< PlanOptions::top_k
  double top_k_accuracy = 0;
  double correct = 0;    ///< samples whose label is the largest output; weighted where samples have weights
  double samples = 0;    ///< of the test set
  MetricValues metrics;  ///< of one's own (RunMetric::of_evaluation)
};

struct EpochEvent {
  std::int64_t epoch = 0;  ///< epochs done
  std::int64_t step = 0;
  double train_loss = 0;
  double train_accuracy = 0;  ///< NaN for regressions
  EvaluationEvent test;
  double samples_per_second = 0;     ///< training only, evaluation left out
  double comm_exposed_s = 0;         ///< seconds over the epoch, this rank; negative as above
  double seconds = 0;                ///< of the epoch, evaluation included
  std::int64_t skipped_updates = 0;  ///< Trainer::skipped_updates()
  bool best = false;                 ///< the best so far, by RunOptions::best
};

struct CheckpointEvent {
  std::string folder;
  std::int64_t step = 0;
};

struct RunResult {
  RunEnd end = RunEnd::finished;
  RunProgress progress;  ///< at the end
};

/// What follows a run: console, log, pictures, a metric of one's own. Called on every rank, between steps, in the order
/// in which things happen; a call that takes long holds up the host, and one that waits for the device holds up that.
/// What it throws ends the run on this rank.
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
  virtual void on_report(const ReportEvent&) {}
  virtual void on_evaluation_begin(const EvaluationBegin&) {}
  virtual void on_evaluation_batch(const EvaluationBatch&) {}
  virtual void on_evaluation_end(const EvaluationEvent&) {}
  virtual void on_epoch_end(const EpochEvent&) {}
  virtual void on_checkpoint_begin(const CheckpointEvent&) {}
  virtual void on_checkpoint_end(const CheckpointEvent&) {}  ///< it is complete
  virtual void on_run_end(const RunResult&) {}               ///< not after an error
};

/// Several observers as one, told in the order in which they were added. They outlive it.
class RunObservers final : public RunObserver {
 public:
  RunObservers& add(RunObserver& observer);
  void on_run_begin(const RunBegin& event) override;
  void on_epoch_begin(const EpochBegin& event) override;
  void on_step_begin(const StepEvent& event) override;
  void on_step_end(const StepEvent& event) override;
  void on_report(const ReportEvent& event) override;
  void on_evaluation_begin(const EvaluationBegin& event) override;
  void on_evaluation_batch(const EvaluationBatch& event) override;
  void on_evaluation_end(const EvaluationEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_checkpoint_begin(const CheckpointEvent& event) override;
  void on_checkpoint_end(const CheckpointEvent& event) override;
  void on_run_end(const RunResult& result) override;

 private:
  std::vector<RunObserver*> observers_;
};

/// A rank's part of a metric: a mean over something that ranks have different amounts of is given as sum and amount. A
/// number alone counts as one: over ranks that give equal numbers it is that number, else their mean.
struct MetricPart {
  double sum = 0;
  double amount = 1;
  MetricPart() = default;
  MetricPart(double number) : sum(number) {}  // NOLINT(google-explicit-constructor): `return loss / std::log(2);`
  MetricPart(double s, double a) : sum(s), amount(a) {}
};

/// A metric of one's own. It appears in the console, in metrics.jsonl and, of an evaluation, in checkpoints:
///
///   options.metrics = {{.name = "bits_per_byte", .of_evaluation = [](const auto& e) { return e.loss / M_LN2; }}};
///
/// The functions are called on every rank with what all ranks reached (events without `metrics`); what they return is
/// summed over the ranks, in rank order, and divided: sum of sums / sum of amounts. What an observer adds up for them
/// it has to add up on every rank.
struct RunMetric {
  std::string name{};  ///< small letters, digits and '_'; none of the names that metrics.jsonl has anyway
  std::function<MetricPart(const ReportEvent&)> of_report{};
  std::function<MetricPart(const EvaluationEvent&)> of_evaluation{};
};

}  // namespace lockstep::nn
