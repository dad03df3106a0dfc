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

/// The ranks that train together. `grad` carries gradient buckets on `comm_stream`, `control` small host values.
/// Everything outlives the trainer. comm_stream may be an inline stream: then nothing overlaps. The watchdog, if there
/// is one, is told what the trainer is doing. statistics: as in StepRanks.
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
  std::int64_t global_batch = 128;  ///< samples of one update, of all ranks and micro-batches
  /// A step runs a rank's share in so many micro-batches, whose gradients add up; memory is planned for one of them.
  /// Batch norm sees one at a time; without it the gradient is that of the whole share at once, up to rounding.
  std::int64_t accumulate = 1;
  /// The step, but for max_batch, microbatches, count_samples and empty_steps, which follow from the fields here: these
  /// keep their defaults, else UsageError.
  TrainStepOptions step{.weight_decay = 1e-4};
  Schedule schedule{};
  /// The schedule goes by updates, for a run that ends after a number of them; false: by epochs. The same unless a run
  /// goes on with batches of another size (Trainer::learning_rate()).
  bool schedule_by_updates = false;
  bool keep_last = false;          ///< train on the partial last batch of an epoch too
  std::int64_t shuffle_chunk = 0;  ///< SamplerOptions::chunk, of the training set
  int loader_workers = 1;
  int prefetch = 3;  ///< batches that wait ready
  /// UsageError for a training set that leaves nothing to a device (Dataset::device_preprocessing()), UnsupportedError
  /// in start() where the device cannot do it. Evaluations read on the host.
  PicturesOn pictures = PicturesOn::host;
  /// Of u8 images that a classifier with one label a sample reads: evaluations take the mean of its outputs for several
  /// views of an image. UsageError for other models and losses, and beside weights of the loss.
  TestTimeAugmentation test_time_augmentation = TestTimeAugmentation::none;
};

/// One rank of a data-parallel training run: owns a TrainStep and the loader that feeds it. The
/// compute stream may be asynchronous. After the first step a step allocates nothing; after the second where steps are
/// captured. On a GPU batches lie in page-locked memory. Whatever waits for steps there looks after `grad` meanwhile
/// (comm/wait.hpp): a rank that is gone is that communicator's error, and no wait without end.
///
/// Collective, to be called by all ranks in the same order: start, require_same_state, step, take_metrics, evaluate,
/// evaluate_average, non_finite_gradients, sum_over_ranks, reduce_buffers, samples_seen. Everything else is local.
class Trainer {
 public:
  /// Plans, allocates and initialises. Local: it may fail on one rank alone. UsageError, before anything is allocated,
  /// when the batch does not fit the ranks or the data.
  Trainer(Context& context, const Ranks& ranks, const Model& model, const TrainingData& data,
          const TrainerOptions& options);
  ~Trainer();  ///< waits for the streams: queued work uses the memory that goes

  /// Compares what must be equal on all ranks (parameter names, shapes, types, options, seed, data, library choices;
  /// UsageError on every rank that names the item and the ranks), then sends rank 0's parameters to all and makes the
  /// loader.
  void start();
  /// Compares position, parameters, optimizer state and averaged statistics over the ranks; UsageError on every rank
  /// that names what differs. For what each rank has read from files of its own.
  void require_same_state();

  /// One step: batch, forward, backward (reduced in its last micro-batch), update. DataError when a label of two steps
  /// before was out of range, StateError before start(). Waits for the device only until the step before the last one
  /// is done. After an error the next call takes the same batch anew, where all ranks failed alike (as when steps
  /// cannot be captured); running statistics may have seen it already. Not after an error of the communicator.
  void step();
  [[nodiscard]] const Position& position() const;
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  /// Steps from the current position to the end of epoch `epochs`.
  [[nodiscard]] std::int64_t steps_until(std::int64_t epochs) const;
  /// Where a run goes on that had come to `saved` with batches of `global_batch` samples: behind the same samples. With
  /// batches of this trainer's size that is `saved`. Less than a batch that is left of an epoch is left out, as at any
  /// epoch's end (TrainerOptions::keep_last). global_batch 0: not known, taken for the same. DataError for a position
  /// that no such run on this data set can have.
  [[nodiscard]] Position continued(const Position& saved, std::int64_t global_batch) const;
  /// Of the next step. A schedule by epochs is where the samples are, with batches of another size than before, too.
  [[nodiscard]] double learning_rate() const;
  /// Updates that this trainer has left out because gradients were not finite; 0 when the optimizer does not look.
  /// Waits for the last step; the same on every rank.
  [[nodiscard]] std::int64_t skipped_updates();

  /// TrainStep::non_finite_gradients() of a step (1: the first of the run) that metrics_of() has, over `control`.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step);

  /// Sums over all ranks since the last call; waits for the last step.
  [[nodiscard]] Metrics take_metrics();
  /// This rank's sums over a step (1: the first of the run) that this trainer has done, one for each of its virtual
  /// ranks, else one; empty until they have come from the device. Does not wait. They come at most steps_under_way()
  /// steps later; the last eight are kept. Until the next call of the trainer.
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  [[nodiscard]] int steps_under_way() const { return train_step().steps_under_way(); }
  /// Adds up in rank order, with virtual ranks in their tree, so that every rank has the same bits. own: as
  /// metrics_of() gives them, over any steps. Collective.
  [[nodiscard]] Metrics sum_over_ranks(std::span<const Metrics> own);
  /// The test set with running statistics averaged over the ranks; every sample counts exactly once. `each`, if there
  /// is one, is called after each micro-batch is enqueued: the batch, and the output on the device.
  using EvaluationHook = std::function<void(const Batch& batch, const TensorView& output)>;
  [[nodiscard]] Metrics evaluate(const EvaluationHook& each = {});
  /// The same of the moving average (TrainStepOptions::average), with the average of its statistics. The parameters are
  /// as before when it returns. StateError without one.
  [[nodiscard]] Metrics evaluate_average(const EvaluationHook& each = {});
  /// Averages the running statistics over the ranks, weighted by the samples that each has seen, in rank order, into
  /// the evaluation buffers. The ranks' own buffers stay as they are.
  void reduce_buffers();

  /// Once the parameters are those of a checkpoint: where the run stands, and the samples that this rank has seen; of
  /// virtual ranks each has a number, here and in samples_seen(). Local; UsageError for a position that is none of this
  /// run.
  void restore(const Position& position, const std::vector<double>& samples_seen);
  [[nodiscard]] std::vector<double> samples_seen();  ///< per rank

  [[nodiscard]] TrainStep& train_step();
  [[nodiscard]] const TrainStep& train_step() const;
  [[nodiscard]] const TrainerOptions& options() const;
  [[nodiscard]] const TrainingData& data() const;
  [[nodiscard]] const std::map<std::string, std::string>& layers() const;  ///< Model::layer_texts()
  [[nodiscard]] int ranks() const;
  /// TrainStep::record_into(), and on the host steps, waits for the loader, evaluations and checkpoints.
  void record_into(SpanRecorder* recorder);
  [[nodiscard]] SpanRecorder::Scope checkpoint_span();  ///< for who writes one: to be ended when it is written
  [[nodiscard]] ParameterSet& parameters() { return train_step().parameters(); }
  [[nodiscard]] const Plan& train_plan() const { return train_step().train_plan(); }
  [[nodiscard]] const Plan& evaluation_plan() const { return train_step().evaluation_plan(); }
  [[nodiscard]] const comm::GradientReducer& reducer() const;
  /// Bytes that the run needs: parameters, gradients, optimizer, workspace, step state and what it is sent from, 16-bit
  /// gradients that travel, batches (those of the training and of the test set, both there during an evaluation).
  [[nodiscard]] std::size_t planned_bytes() const;
  /// Why steps are not captured; empty: they are.
  [[nodiscard]] const std::string& graph_obstacle() const { return train_step().graph_obstacle(); }
  [[nodiscard]] Context& context() { return train_step().context(); }
  /// Tells the ranks' watchdog, if there is one, what the caller is about to do between steps: "writing a checkpoint
  /// after step", to which the number is added. A string literal.
  void doing(const char* what) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What in options and data decides the numbers of a run, as text by name: what ranks have to agree on, and what a
/// checkpoint keeps to tell whether it is continued exactly. Seed and batch size are kept elsewhere.
[[nodiscard]] std::map<std::string, std::string> option_texts(const TrainerOptions& options, const TrainingData& data);
/// All that a program may choose of a trainer; what depends on data and ranks (batches, steps, workers) is its maker's.
void describe(Schema& schema, TrainerOptions& options);

}  // namespace lockstep::nn
