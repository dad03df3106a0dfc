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

/// The ranks that train together. `grad` sums gradient buckets on `comm_stream`. If comm_stream is inline, the sums do
/// not overlap with computation. `control` exchanges small host values. `statistics` is as in StepRanks. All members
/// must outlive the trainer. The trainer reports its activity to `watchdog`, unless this is nullptr.
struct Ranks {
  comm::Communicator& grad;
  comm::Communicator& control;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
  /// Reports to the watchdog what this rank does now: `what` (a string literal), followed by `number`.
  void doing(const char* what, std::int64_t number) const noexcept {
    if (watchdog != nullptr) {
      watchdog->begin(what, number);
    }
  }
};

struct TrainerOptions {
  std::int64_t global_batch = 128;  ///< number of samples per update, over all ranks and micro-batches
  /// Number of micro-batches into which a step divides a rank's share of the batch. The gradients of the micro-batches
  /// are added. Memory is planned for one micro-batch. Batch norm computes its statistics over one micro-batch. Without
  /// batch norm, the gradient equals the gradient of the undivided share, up to rounding.
  std::int64_t accumulate = 1;
  /// Options of the step. max_batch, microbatches and count_samples must keep their defaults, because the trainer sets
  /// them; otherwise throws UsageError.
  TrainStepOptions step{.weight_decay = 1e-4};
  Schedule schedule{};
  /// true: the schedule counts updates, for a run that ends after a number of updates. false: the schedule counts
  /// epochs. Both settings give the same rates unless a run continues with another batch size
  /// (Trainer::learning_rate()).
  bool schedule_by_updates = false;
  bool keep_last = false;          ///< true: the run also trains on the last, smaller batch of an epoch
  std::int64_t shuffle_chunk = 0;  ///< SamplerOptions::chunk of the training set
  int loader_workers = 1;
  int prefetch = 3;  ///< number of batches that the loader keeps ready
  /// Device on which encoded pictures of the training set are decoded. Evaluations always decode on the host. For
  /// values other than `host`, throws UsageError if the training set has no work for a device
  /// (Dataset::device_preprocessing()). For these values, start() throws UnsupportedError if the device cannot decode
  /// pictures.
  PicturesOn pictures = PicturesOn::host;
  /// Test-time augmentation: evaluations take the mean output over several views of an image. Only for classifiers of
  /// u8 images with one label per sample. Throws UsageError for other models and losses, and with weights of the loss.
  TestTimeAugmentation test_time_augmentation = TestTimeAugmentation::none;
};

/// One rank of a data-parallel training run. Owns a TrainStep, and the loader that supplies its batches. The compute
/// stream may be asynchronous. After the first step, a step allocates no memory (after the second step if steps are
/// captured as a CUDA graph). On a GPU, batches are in page-locked memory. While the host waits for steps, it checks
/// the communicator Ranks::grad (comm/wait.hpp). So a lost rank causes an error of this communicator instead of an
/// endless wait.
///
/// Collective functions, which all ranks must call in the same order: start, require_same_state, step, take_metrics,
/// evaluate, evaluate_average, non_finite_gradients, sum_over_ranks, reduce_buffers, samples_seen. All other functions
/// are local.
class Trainer {
 public:
  /// Plans, allocates and initialises everything that a run needs. Is local, so it may fail on one rank alone. Throws
  /// UsageError, before anything is allocated, if global_batch is too small for the ranks or too large for the data.
  Trainer(Context& context, const Ranks& ranks, const Model& model, const TrainingData& data,
          const TrainerOptions& options);
  ~Trainer();  ///< waits for the streams, because queued work uses memory of this object

  /// Compares the items that must be equal on all ranks: parameter names, shapes, types, options, seed, data, library
  /// choices. If an item differs, throws UsageError on every rank, with a text that names the item and the ranks.
  /// Otherwise sends rank 0's parameters to all ranks, and makes the loader.
  void start();
  /// Compares position, parameters, optimizer state and averaged running statistics of all ranks. If one of these
  /// differs, throws UsageError on every rank, with a text that names the difference. Must be called after each rank
  /// has read its state from files.
  void require_same_state();

  /// Makes one training step: reads a batch, runs forward and backward of each micro-batch, sums the gradients over the
  /// ranks during the last micro-batch, and updates the parameters. Throws StateError before start(). Waits only until
  /// the device has done the step two steps earlier. Throws DataError if a label of that earlier step was out of range.
  ///
  /// If all ranks have failed in the same way (for example because steps cannot be captured), the next call uses the
  /// batch of the failed step again. The running statistics may then count this batch twice. After an error of the
  /// communicator, no further step is possible.
  void step();
  [[nodiscard]] const Position& position() const;
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  /// Returns the number of steps from the current position to the end of epoch `epochs`.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs) const;
  /// Returns the position at which this trainer continues a run that reached `saved` with batches of `global_batch`
  /// samples: the position after the same number of samples. If global_batch is this trainer's batch size, the result
  /// is `saved`. A global_batch of 0 means unknown, and counts as this trainer's size. If the epoch has fewer samples
  /// left than a batch, the remaining samples are skipped, as at the end of every epoch (TrainerOptions::keep_last).
  /// Throws DataError for a position that such a run cannot have.
  [[nodiscard]] Position continued(const Position& saved, std::int64_t global_batch) const;
  /// Returns the learning rate of the next step. If the schedule counts epochs, the rate follows from the number of
  /// samples trained on so far, also after a change of the batch size.
  [[nodiscard]] double learning_rate() const;
  /// Returns the number of updates that this trainer has skipped because gradients were not finite, or 0 if the
  /// optimizer does not check gradients. The number is the same on every rank. Waits for the last step.
  [[nodiscard]] std::int64_t skipped_updates();

  /// Returns TrainStep::non_finite_gradients() over Ranks::control. May be called only after metrics_of(step) has
  /// returned the metrics. Step 1 is the first step of the run.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step);

  /// Returns the training metrics since the last call, summed over all ranks. Waits for the last step.
  [[nodiscard]] Metrics take_metrics();
  /// Returns the sums of this rank's metrics over step `step`: one element, or one for each virtual rank. Step 1 is the
  /// run's first step, and this trainer must have enqueued `step`. Returns no element until the sums have come from the
  /// device, at most steps_under_way() steps later. Only the last eight steps are kept. Does not wait. The result is
  /// valid until the next call of this object.
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  [[nodiscard]] int steps_under_way() const { return train_step().steps_under_way(); }
  /// Sums the metrics `own` over all ranks in rank order (with virtual ranks in a tree), so that every rank gets the
  /// same bits. `own` has the elements of metrics_of(), each summed over any number of steps. Collective.
  [[nodiscard]] Metrics sum_over_ranks(std::span<const Metrics> own);
  /// Evaluates the test set with running statistics averaged over the ranks. Every sample counts exactly once. After
  /// each micro-batch is enqueued, calls `each`, unless it is empty, with the batch and the output on the device.
  using EvaluationHook = std::function<void(const Batch& batch, const TensorView& output)>;
  [[nodiscard]] Metrics evaluate(const EvaluationHook& each = {});
  /// Runs evaluate() with the moving average of the weights (TrainStepOptions::average) and of the running statistics.
  /// Restores the parameters afterwards. Throws StateError without a moving average.
  [[nodiscard]] Metrics evaluate_average(const EvaluationHook& each = {});
  /// Averages the running statistics over the ranks in rank order, weighted by the number of samples that each rank has
  /// trained on. Writes the averages to the evaluation buffers. Each rank's own running statistics do not change.
  void reduce_buffers();

  /// Sets the position of the run and the numbers of samples on which this rank has trained. Must be called after the
  /// parameters of a checkpoint were loaded. `samples_seen` has one element, or with virtual ranks one for each virtual
  /// rank of this rank. Local. Throws UsageError for a position that this run cannot have.
  void restore(const Position& position, const std::vector<double>& samples_seen);
  [[nodiscard]] std::vector<double> samples_seen();  ///< returns the numbers of all ranks, as in restore()

  [[nodiscard]] TrainStep& train_step();
  [[nodiscard]] const TrainStep& train_step() const;
  [[nodiscard]] const TrainerOptions& options() const;
  [[nodiscard]] const TrainingData& data() const;
  [[nodiscard]] const std::map<std::string, std::string>& layers() const;  ///< Model::layer_texts() of the model
  [[nodiscard]] int ranks() const;
  /// Calls TrainStep::record_into(). From then on, the recorder also gets host spans: steps, waits for the loader,
  /// evaluations and checkpoints.
  void record_into(SpanRecorder* recorder);
  [[nodiscard]] SpanRecorder::Scope checkpoint_span();  ///< begins a span, which ends with the returned Scope
  [[nodiscard]] ParameterSet& parameters() { return train_step().parameters(); }
  [[nodiscard]] const Plan& train_plan() const { return train_step().train_plan(); }
  [[nodiscard]] const Plan& evaluation_plan() const { return train_step().evaluation_plan(); }
  [[nodiscard]] const comm::GradientReducer& reducer() const;
  /// Returns the number of bytes that the run needs: parameters, gradients, optimizer state, workspace, StepState and
  /// its copy in host memory, 16-bit copies of gradients, and the batches of training and test set (an evaluation needs
  /// both).
  [[nodiscard]] std::size_t planned_bytes() const;
  /// Returns why steps are not captured as a CUDA graph, or an empty text if they are.
  [[nodiscard]] const std::string& graph_obstacle() const { return train_step().graph_obstacle(); }
  [[nodiscard]] Context& context() const;
  /// Reports to the ranks' watchdog, if there is one, what the caller will do next between steps, such as "writing a
  /// checkpoint after step". The function adds the step's number. `what` must be a string literal.
  void doing(const char* what) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns, by name, the texts of all options and data that decide a run's numbers, except seed and batch size. These
/// texts must be equal on all ranks. A checkpoint stores them, so that a resumed run can report whether it continues
/// exactly.
[[nodiscard]] std::map<std::string, std::string> option_texts(const TrainerOptions& options, const TrainingData& data);
/// Returns the same texts, and on a host also "cpu_variant": chosen_variant(), if the build has several variants.
[[nodiscard]] std::map<std::string, std::string> option_texts(Device device, const TrainerOptions& options,
                                                              const TrainingData& data);
/// Adds to `schema` the options that a program may offer its users. The program itself sets the options that depend on
/// data and ranks (batches, steps, workers).
void describe(Schema& schema, TrainerOptions& options);

}  // namespace lockstep::nn
