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

/// The ranks that train together. `grad` sums gradient buckets on `comm_stream`, `control` exchanges small host values.
/// All must outlive the trainer. With an inline comm_stream nothing overlaps. The trainer tells the watchdog, if there
/// is one, what it is doing. statistics: as in StepRanks.
struct Ranks {
  comm::Communicator& grad;
  comm::Communicator& control;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
  /// Tells the watchdog what this rank does now. what: a string literal.
  void doing(const char* what, std::int64_t number) const noexcept {
    if (watchdog != nullptr) {
      watchdog->begin(what, number);
    }
  }
};

struct TrainerOptions {
  std::int64_t global_batch = 128;  ///< samples of one update, over all ranks and micro-batches
  /// Number of micro-batches in which a step runs a rank's share. Their gradients add up; memory is planned for one of
  /// them. Batch norm sees one micro-batch at a time; without batch norm the gradient is that of the whole share at
  /// once, up to rounding.
  std::int64_t accumulate = 1;
  /// Options of the step. max_batch, microbatches, count_samples and empty_steps follow from the fields here: they must
  /// keep their defaults, else UsageError.
  TrainStepOptions step{.weight_decay = 1e-4};
  Schedule schedule{};
  /// true: the schedule goes by updates, for a run that ends after a number of updates; false: by epochs. The same
  /// unless a run continues with another batch size (Trainer::learning_rate()).
  bool schedule_by_updates = false;
  bool keep_last = false;          ///< true: trains on the partial last batch of an epoch, too
  std::int64_t shuffle_chunk = 0;  ///< SamplerOptions::chunk, of the training set
  int loader_workers = 1;
  int prefetch = 3;  ///< batches that are kept ready
  /// Where pictures of the training set become images. UsageError for a training set that leaves nothing to a device
  /// (Dataset::device_preprocessing()), UnsupportedError in start() if the device cannot do it. Evaluations read on the
  /// host.
  PicturesOn pictures = PicturesOn::host;
  /// For classifiers of u8 images with one label a sample: evaluations take the mean of the outputs for several views
  /// of an image. UsageError for other models and losses, and with weights of the loss.
  TestTimeAugmentation test_time_augmentation = TestTimeAugmentation::none;
};

/// One rank of a data-parallel training run: owns a TrainStep and the loader that feeds it. The compute stream may be
/// asynchronous. After the first step (after the second, if steps are captured) a step allocates nothing. On a GPU
/// batches lie in page-locked memory, and every wait for steps checks `grad` meanwhile (comm/wait.hpp): a lost rank
/// becomes an error of that communicator, not an endless wait.
///
/// Collective, to be called by all ranks in the same order: start, require_same_state, step, take_metrics, evaluate,
/// evaluate_average, non_finite_gradients, sum_over_ranks, reduce_buffers, samples_seen. Everything else is local.
class Trainer {
 public:
  /// Plans, allocates and initialises. Local: it may fail on one rank alone. UsageError, before anything is allocated,
  /// when the batch does not fit the ranks or the data.
  Trainer(Context& context, const Ranks& ranks, const Model& model, const TrainingData& data,
          const TrainerOptions& options);
  ~Trainer();  ///< waits for the streams, because queued work uses the memory

  /// Compares what must be equal on all ranks (parameter names, shapes, types, options, seed, data, library choices;
  /// UsageError on every rank that names the item and the ranks). Then sends rank 0's parameters to all ranks and makes
  /// the loader.
  void start();
  /// Compares position, parameters, optimizer state and averaged statistics over the ranks; UsageError on every rank
  /// that names what differs. For states that each rank has read from files of its own.
  void require_same_state();

  /// Makes one step: batch, forward, backward (reduced in its last micro-batch), update. DataError when a label of two
  /// steps before was out of range, StateError before start(). Waits for the device only until the step before the last
  /// one is done. After an error the next call takes the same batch again, if all ranks failed alike (as when steps
  /// cannot be captured); running statistics may have seen the batch already. Not after an error of the communicator.
  void step();
  [[nodiscard]] const Position& position() const;
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  /// Returns the steps from the current position to the end of epoch `epochs`.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs) const;
  /// Returns where a run continues that had reached `saved` with batches of `global_batch` samples: after the same
  /// samples. With batches of this trainer's size that is `saved`. If less than a batch of an epoch is left, these
  /// samples are left out, as at any epoch's end (TrainerOptions::keep_last). global_batch 0: not known, taken for the
  /// same. DataError for a position that no such run on this data set can have.
  [[nodiscard]] Position continued(const Position& saved, std::int64_t global_batch) const;
  /// Returns the rate of the next step. A schedule by epochs follows the samples, also after a change of the batch
  /// size.
  [[nodiscard]] double learning_rate() const;
  /// Returns the number of updates that this trainer has skipped because gradients were not finite; 0 when the
  /// optimizer does not check. Waits for the last step; the same on every rank.
  [[nodiscard]] std::int64_t skipped_updates();

  /// TrainStep::non_finite_gradients() of a step (1: the first of the run) that metrics_of() has, over `control`.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step);

  /// Returns the sums over all ranks since the last call; waits for the last step.
  [[nodiscard]] Metrics take_metrics();
  /// Returns this rank's sums over a step (1: the first of the run) that this trainer has done: one element, or one for
  /// each of its virtual ranks; empty until they have come from the device. Does not wait. They come at most
  /// steps_under_way() steps later; the last eight are kept. Valid until the next call of the trainer.
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  [[nodiscard]] int steps_under_way() const { return train_step().steps_under_way(); }
  /// Adds up `own` of all ranks in rank order, with virtual ranks in their tree, so that every rank has the same bits.
  /// own: as metrics_of() gives them, over any steps. Collective.
  [[nodiscard]] Metrics sum_over_ranks(std::span<const Metrics> own);
  /// Evaluates the test set with running statistics averaged over the ranks; every sample counts exactly once. `each`,
  /// if given, is called after each micro-batch is enqueued, with the batch and the output on the device.
  using EvaluationHook = std::function<void(const Batch& batch, const TensorView& output)>;
  [[nodiscard]] Metrics evaluate(const EvaluationHook& each = {});
  /// evaluate() with the moving average (TrainStepOptions::average) and the average of its statistics. Afterwards the
  /// parameters are as before. StateError without a moving average.
  [[nodiscard]] Metrics evaluate_average(const EvaluationHook& each = {});
  /// Averages the running statistics over the ranks in rank order, weighted by the samples that each rank has seen,
  /// into the evaluation buffers. The ranks' own buffers stay as they are.
  void reduce_buffers();

  /// Sets where the run stands and how many samples this rank has seen, after the parameters of a checkpoint were
  /// loaded. Each virtual rank has a number of its own, here and in samples_seen(). Local; UsageError for a position
  /// that this run cannot have.
  void restore(const Position& position, const std::vector<double>& samples_seen);
  [[nodiscard]] std::vector<double> samples_seen();  ///< samples seen, per rank

  [[nodiscard]] TrainStep& train_step();
  [[nodiscard]] const TrainStep& train_step() const;
  [[nodiscard]] const TrainerOptions& options() const;
  [[nodiscard]] const TrainingData& data() const;
  [[nodiscard]] const std::map<std::string, std::string>& layers() const;  ///< Model::layer_texts()
  [[nodiscard]] int ranks() const;
  /// Calls TrainStep::record_into(), and records on the host steps, waits for the loader, evaluations and checkpoints.
  void record_into(SpanRecorder* recorder);
  [[nodiscard]] SpanRecorder::Scope checkpoint_span();  ///< the writer of a checkpoint ends this span
  [[nodiscard]] ParameterSet& parameters() { return train_step().parameters(); }
  [[nodiscard]] const Plan& train_plan() const { return train_step().train_plan(); }
  [[nodiscard]] const Plan& evaluation_plan() const { return train_step().evaluation_plan(); }
  [[nodiscard]] const comm::GradientReducer& reducer() const;
  /// Bytes that the run needs: parameters, gradients, optimizer, workspace, step state and its source in host memory,
  /// 16-bit gradients that are sent, batches (of the training and of the test set, both there during an evaluation).
  [[nodiscard]] std::size_t planned_bytes() const;
  /// Returns why steps are not captured; empty when they are.
  [[nodiscard]] const std::string& graph_obstacle() const { return train_step().graph_obstacle(); }
  [[nodiscard]] Context& context() { return train_step().context(); }
  /// Tells the ranks' watchdog, if there is one, what the caller is about to do between steps: "writing a checkpoint
  /// after step"; the step's number is added. what: a string literal.
  void doing(const char* what) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the options and data that decide the numbers of a run, as text by name. Ranks must agree on them, and a
/// checkpoint keeps them to tell whether it is continued exactly. Seed and batch size are kept elsewhere.
[[nodiscard]] std::map<std::string, std::string> option_texts(const TrainerOptions& options, const TrainingData& data);
/// Adds the options that a program's user may choose. The program sets what depends on data and ranks (batches, steps,
/// workers).
void describe(Schema& schema, TrainerOptions& options);

}  // namespace lockstep::nn
