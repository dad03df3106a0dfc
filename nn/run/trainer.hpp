#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/nn/optim/schedule.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/nn/run/checkpoints/checkpoint_state.hpp>
#include <lockstep/nn/run/test_time_augmentation.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// The ranks that train together. `grad` sums gradient buckets on `comm_stream`; if that stream is inline, the sums do
/// not overlap computation. `control` exchanges small host values. `statistics` is as in StepRanks. All of these must
/// outlive the trainer. The trainer tells `watchdog`, if given, what it is doing.
struct Ranks {
  comm::Communicator& grad;
  comm::Communicator& control;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
  /// Tells the watchdog what this rank is doing now: `what` (a string literal), followed by `number`.
  void doing(const char* what, std::int64_t number) const noexcept {
    if (watchdog != nullptr) {
      watchdog->begin(what, number);
    }
  }
};

struct TrainerOptions {
  std::int64_t global_batch = 128;  ///< number of samples in one update, over all ranks and micro-batches
  /// Number of micro-batches into which a step divides a rank's share. Their gradients are added, and memory is planned
  /// for one micro-batch. Batch norm sees one micro-batch at a time. Without batch norm the gradient equals that of the
  /// undivided share, up to rounding.
  std::int64_t accumulate = 1;
  /// Options of the step. The trainer sets max_batch, microbatches and count_samples, so they must keep their defaults;
  /// otherwise UsageError.
  TrainStepOptions step{.weight_decay = 1e-4};
  Schedule schedule{};
  /// true: the schedule counts updates, for a run that ends after a number of updates. false: it counts epochs. Both
  /// give the same rates unless a run continues with another batch size (Trainer::learning_rate()).
  bool schedule_by_updates = false;
  bool keep_last = false;          ///< true: also trains on the partial last batch of an epoch
  std::int64_t shuffle_chunk = 0;  ///< SamplerOptions::chunk of the training set
  int loader_workers = 1;
  int prefetch = 3;  ///< number of batches that the loader keeps ready
  /// Where encoded pictures of the training set become images. Evaluations always read on the host. Other values than
  /// `host` cause UsageError if the training set leaves no work to a device (Dataset::device_preprocessing()), and
  /// UnsupportedError in start() if the device cannot decode pictures.
  PicturesOn pictures = PicturesOn::host;
  /// Makes evaluations take the mean output over several views of an image. Only for classifiers of u8 images with one
  /// label per sample: UsageError for other models and losses, and with weights of the loss.
  TestTimeAugmentation test_time_augmentation = TestTimeAugmentation::none;
};

/// One rank of a data-parallel training run. Owns a TrainStep and the loader that feeds it. The compute stream may be
/// asynchronous. After the first step (if steps are captured, after the second) a step allocates nothing. On a GPU
/// batches lie in page-locked memory. Every wait for steps checks `grad` meanwhile (comm/wait.hpp), so a lost rank
/// causes an error of that communicator instead of an endless wait.
///
/// Collective, to be called by all ranks in the same order: start, require_same_state, step, take_metrics, evaluate,
/// evaluate_average, non_finite_gradients, sum_over_ranks, reduce_buffers, samples_seen. All other functions are local.
class Trainer {
 public:
  /// Plans, allocates and initialises what a run needs. Local, so it may fail on one rank alone. UsageError, before
  /// anything is allocated, if the batch does not fit the ranks or the data.
  Trainer(Context& context, const Ranks& ranks, const Model& model, const TrainingData& data,
          const TrainerOptions& options);
  ~Trainer();  ///< waits for the streams, because queued work uses the trainer's memory

  /// Compares the items that must be equal on all ranks: parameter names, shapes, types, options, seed, data, library
  /// choices. Throws UsageError on every rank, with the item and the ranks, if an item differs. Otherwise sends rank
  /// 0's parameters to all ranks and makes the loader.
  void start();
  /// Compares position, parameters, optimizer state and averaged statistics over the ranks. Throws UsageError on every
  /// rank, with the state that differs, unless all are equal. Call it after each rank has read its state from files.
  void require_same_state();

  /// Makes one step: batch, forward, backward (gradients are reduced in the last micro-batch), update. DataError if a
  /// label of two steps before was out of range. StateError before start(). Waits for the device only until the step
  /// before the last one is done. If all ranks failed alike (for example because steps cannot be captured), the next
  /// call takes the batch of the failed step again; the running statistics may then count this batch twice. After an
  /// error of the communicator no further step is possible.
  void step();
  [[nodiscard]] const Position& position() const;
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  /// Returns the number of steps from the current position to the end of epoch `epochs`.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs) const;
  /// Returns the position at which this trainer continues a run that reached `saved` with batches of `global_batch`
  /// samples: the position after equally many samples. If global_batch is this trainer's batch size, that is `saved`.
  /// If less than a batch of an epoch is left, these samples are left out, as at any epoch's end
  /// (TrainerOptions::keep_last). 0, for unknown, counts as this trainer's size. DataError for a position that such a
  /// run cannot have.
  [[nodiscard]] Position continued(const Position& saved, std::int64_t global_batch) const;
  /// Returns the next step's learning rate. A schedule by epochs counts samples, also after a change of the batch size.
  [[nodiscard]] double learning_rate() const;
  /// Returns the number of updates that this trainer has skipped because gradients were not finite, or 0 if the
  /// optimizer does not check gradients. The number is the same on every rank. Waits for the last step.
  [[nodiscard]] std::int64_t skipped_updates();

  /// Returns TrainStep::non_finite_gradients() over Ranks::control, for a step that metrics_of() has; 1 is the first.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step);

  /// Returns the training metrics since the last call of this function, summed over all ranks. Waits for the last step.
  [[nodiscard]] Metrics take_metrics();
  /// Returns the sums of this rank's metrics over step `step`, which this trainer has done (1 is the run's first step):
  /// one element, or one for each virtual rank; none until the sums have come from the device, at most
  /// steps_under_way() steps later. The last eight steps are kept. Does not wait. Valid until the next call of the
  /// trainer.
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  [[nodiscard]] int steps_under_way() const { return train_step().steps_under_way(); }
  /// Adds up the metrics `own` of all ranks in rank order (with virtual ranks in a tree), so that every rank gets the
  /// same bits. `own` has the elements that metrics_of() returns, each summed over any steps. Collective.
  [[nodiscard]] Metrics sum_over_ranks(std::span<const Metrics> own);
  /// Evaluates the test set with running statistics averaged over the ranks. Every sample counts exactly once. After
  /// each micro-batch is enqueued, calls `each`, if given, with the batch and the output on the device.
  using EvaluationHook = std::function<void(const Batch& batch, const TensorView& output)>;
  [[nodiscard]] Metrics evaluate(const EvaluationHook& each = {});
  /// Runs evaluate() with the moving average (TrainStepOptions::average) and the average of its statistics. Afterwards
  /// the parameters are as before. StateError without a moving average.
  [[nodiscard]] Metrics evaluate_average(const EvaluationHook& each = {});
  /// Averages the running statistics over the ranks in rank order, weighted by the samples that each rank has seen.
  /// Writes the averages to the evaluation buffers. The ranks' own buffers do not change.
  void reduce_buffers();

  /// Sets the position of the run and the number of samples that this rank has seen. Call it after the parameters of a
  /// checkpoint were loaded. With virtual ranks there is a number for each virtual rank, here and in the function
  /// samples_seen(). Local. UsageError for a position that this run cannot have.
  void restore(const Position& position, const std::vector<double>& samples_seen);
  [[nodiscard]] std::vector<double> samples_seen();  ///< returns the numbers of samples that the ranks have seen

  [[nodiscard]] TrainStep& train_step();
  [[nodiscard]] const TrainStep& train_step() const;
  [[nodiscard]] const TrainerOptions& options() const;
  [[nodiscard]] const TrainingData& data() const;
  [[nodiscard]] const std::map<std::string, std::string>& layers() const;  ///< Model::layer_texts() of the model
  [[nodiscard]] int ranks() const;
  /// Calls TrainStep::record_into(). From then on also records, as spans of the host, steps, time spent waiting for the
  /// loader, evaluations and checkpoints.
  void record_into(SpanRecorder* recorder);
  [[nodiscard]] SpanRecorder::Scope checkpoint_span();  ///< begins the span that a writer of a checkpoint ends
  [[nodiscard]] ParameterSet& parameters() { return train_step().parameters(); }
  [[nodiscard]] const Plan& train_plan() const { return train_step().train_plan(); }
  [[nodiscard]] const Plan& evaluation_plan() const { return train_step().evaluation_plan(); }
  [[nodiscard]] const comm::GradientReducer& reducer() const;
  /// Returns the bytes that the run needs: parameters, gradients, optimizer, workspace, step state and its source in
  /// host memory, 16-bit gradients that are sent, and the batches of training and test set (an evaluation needs both).
  [[nodiscard]] std::size_t planned_bytes() const;
  /// Returns why steps are not captured, or an empty text if they are.
  [[nodiscard]] const std::string& graph_obstacle() const { return train_step().graph_obstacle(); }
  [[nodiscard]] Context& context() { return train_step().context(); }
  /// Tells the ranks' watchdog, if there is one, what the caller will do next between steps, such as "writing a
  /// checkpoint after step"; the step's number is added. `what` must be a string literal.
  void doing(const char* what) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns, by name, texts of the options and data that decide a run's numbers, except seed and batch size. Ranks must
/// agree on them. A checkpoint keeps them, so that a resume can tell whether the run continues exactly.
[[nodiscard]] std::map<std::string, std::string> option_texts(const TrainerOptions& options, const TrainingData& data);
/// Adds to `schema` the options that a user may choose. The program itself sets the options that depend on data and
/// ranks (batches, steps, workers).
void describe(Schema& schema, TrainerOptions& options);

}  // namespace lockstep::nn
