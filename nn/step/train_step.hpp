#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/nn/step/step_options.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

/// Returns the gradients of the parameter set as ranges of its gradient arena, in the order in which backward completes
/// them. plan_buckets() takes these ranges. Frozen parameters have no gradients.
[[nodiscard]] std::vector<comm::GradientRange> gradient_ranges(const ParameterSet& set);

/// Error for gradients that are not finite, in a run that does not allow a skipped update.
class GradientError : public Error {
  using Error::Error;
};

/// Loss of a step: the mean over this rank's samples (weighted if the loss has weights), or NaN if this rank had no
/// samples.
struct StepLoss {
  double value = 0;
  std::int64_t step = 0;  ///< number of the step, from 1 on; 0: no loss has arrived yet
};

/// One step of training: forward, loss, backward, sum over ranks, update. Owns the parameters, the optimizer's state,
/// the plans and their workspace.
///
///   nn::TrainStep step(context, model, {.max_batch = 128});
///   step.update({{StateField::values, x}, {StateField::labels, y}}, /*rate=*/1e-3);      // a step of one micro-batch
///   step.add(first); step.add(second); step.update(1e-3);                                // a step of two
///
/// A step minimises the mean of the loss over the samples of all its micro-batches on all ranks. With weights of the
/// loss (PlanOptions::weights), this mean is
///   sum_nj w_nj l_nj / sum_nj w_nj
/// over all positions or elements j of all samples n. On a rank whose loss has no weights, each sample has weight 1.
/// Single weights may be 0 or negative. If the sum of the weights is not a positive, finite number (for example because
/// no rank had a sample that counts), the step changes neither parameters nor optimizer states nor the loss scale. The
/// running statistics still change, because forward updates them.
///
/// update(batch, rate) sums gradients over the ranks while backward still computes. update(rate) after add() sums only
/// when all gradients are complete. After the first step, no memory is allocated. If steps are captured, this holds
/// after the second step. From then on, a call waits only for the micro-batch two steps earlier, or, if
/// TrainStepOptions::microbatches is 0, two micro-batches earlier. So loss() may return the loss of an earlier step.
/// ingest() describes how long the caller must not change the memory of a batch. On a GPU, the caller must not change
/// page-locked memory until the step after the next begins.
///
/// With several ranks, update, broadcast, check_replicas and require_same_state are collective. With sync_batch_norm,
/// add is collective, too. All other calls are local unless their comment says otherwise. For a bad batch, only the
/// rank that gives this batch throws. The other ranks then wait in update() or add() until that rank ends the job, as
/// comm::run_program() does for an uncaught error. To continue after such an error, a program must first exchange the
/// error with all ranks (Session::agree()) and then call abandon() on all ranks. Only one thread at a time may use a
/// step.
class TrainStep {
 public:
  /// Makes a step for one rank, or for several ranks (`ranks`). Makes the plans, allocates memory, and initialises the
  /// parameters from the seed. Throws UsageError for options out of range.
  TrainStep(Context& context, const Model& model, const TrainStepOptions& options);
  TrainStep(Context& context, const StepRanks& ranks, const Model& model, const TrainStepOptions& options);
  ~TrainStep();  ///< waits for the streams, because queued work uses memory of the step
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// Computes the gradients of a micro-batch and adds them to the step's gradients. Checks the batch before anything is
  /// enqueued. Throws ShapeError or UsageError if the batch does not fit the model (nn/step/ingest.hpp) or has more
  /// than max_batch samples. Throws UsageError unless exactly one of these holds: the batch has a global_valid, or
  /// TrainStepOptions::count_samples is true. Throws DataError if an earlier step had a label out of range, or changed
  /// nothing because the sum of its sample weights was not a positive, finite number. After a DataError, the
  /// micro-batches since the last update are discarded.
  void add(const Batch& batch);
  void add(std::initializer_list<FieldView> fields);
  /// Throws the errors that add() would throw for this batch or for earlier steps. Waits for earlier steps, and changes
  /// nothing. If add() is collective (sync_batch_norm), ranks can call check() first and exchange the result, so that
  /// either all ranks call add() or none.
  void check(const Batch& batch);
  /// Ends the step: sums the gradients over the ranks and updates the parameters. Throws StateError without an earlier
  /// add() in this step. With virtual ranks, throws StateError unless add() was called once for each virtual rank of
  /// this rank.
  void update(double rate);
  /// Runs add() and update() in one call. Gradients are reduced while backward is still computing.
  void update(const Batch& batch, double rate);
  void update(std::initializer_list<FieldView> fields, double rate);
  /// reduce() and apply() are the two halves of update(rate), and together compute the same bits. Between them, a
  /// program can change the gradients. reduce() sums the gradients over the ranks and ends the computation of the step;
  /// loss() and metrics_of(steps() + 1) are then available as after update(). apply() updates the parameters. To end
  /// the step without an update, call abandon() instead of apply(). With several ranks, reduce() is collective; with
  /// zero1, apply() is collective, too. Throws StateError for a second reduce(), for apply() without reduce(), and for
  /// add() between reduce() and apply().
  void reduce();
  void apply(double rate);
  [[nodiscard]] bool reduced() const;  ///< true between reduce() and apply()
  /// read_gradients() copies the gradients to a flat vector, and write_gradients() copies them from a flat vector
  /// (nn/model/flat_vector.hpp, FlatPart::gradients).
  ///
  /// Between add() and reduce(), the vector holds the gradients of sum(w l) over this rank's samples, with weights w
  /// and losses l. If batches give global_valid, this sum is divided by global_valid. After reduce(), the vector holds
  /// the gradients of the mean over all ranks. write_gradients() after reduce() must be given the same numbers on every
  /// rank. If the sum of a step's weights is not positive, all gradients read as 0. With zero1, only this rank's part
  /// is defined after reduce(). Throws StateError without an earlier add() in this step.
  void read_gradients(const TensorView& vector);
  void write_gradients(const TensorView& vector);
  /// Only for Loss::given: begins a step unless a step is in progress, and returns the arena of the gradients. The call
  /// that begins a step sets the arena to zero. The caller must add this rank's gradients to the arena (for example
  /// with a Tape). The step sums the gradients over the ranks and does not divide the sum. A rank that adds no
  /// gradients must still call update() or reduce(). Throws StateError after reduce(), and for all other losses.
  TensorView given_gradients();
  /// Discards the micro-batches added since the last update. Must be called on all ranks or on none.
  void abandon();
  /// Returns the newest loss that has arrived on the host. Does not wait. Throws the errors of add() for earlier steps.
  [[nodiscard]] StepLoss loss();
  /// Waits for all steps, then returns loss().
  [[nodiscard]] StepLoss wait_loss();
  [[nodiscard]] std::int64_t steps() const;  ///< number of updates made
  [[nodiscard]] std::int64_t added() const;  ///< number of micro-batches since the last update
  /// Returns the number of micro-batches of all steps on this rank (with virtual ranks, on one virtual rank). Samples
  /// without ids get ids that are computed from this number.
  [[nodiscard]] std::int64_t microbatches() const;
  [[nodiscard]] int ranks() const;  ///< number of ranks that train together
  /// tree_arenas() and tree_bytes() return the number and the bytes of the additional gradient arenas for the tree of
  /// virtual ranks.
  [[nodiscard]] std::int64_t tree_arenas() const;
  [[nodiscard]] std::size_t tree_bytes() const;
  /// Sets the numbers of steps and micro-batches to those of a saved state (nn/step/state_file.hpp). Throws StateError
  /// between add() and update().
  void continue_from(std::int64_t steps, std::int64_t microbatches);
  /// Sets two numbers of updates done so far, on which the moving average depends: `updates` in the whole run, and
  /// `scheduled` in the learning rate schedule (MovingAverageOptions::weight()). Without this call, both numbers are
  /// steps().
  void average_behind(std::int64_t updates, std::int64_t scheduled);

  /// Computes the loss and the accuracy of a batch, and adds them to the sums that take_evaluated() returns. Batch norm
  /// uses the evaluation statistics. The caller must therefore have called average_statistics() or save_state() before
  /// (nn/step/state_file.hpp). With virtual ranks, successive calls belong to this rank's virtual ranks in turn. The
  /// first call after take_evaluated() belongs to the first of these virtual ranks.
  void evaluate(const Batch& batch);
  /// Between begin_average() and end_average(), evaluate() uses the moving averages of the weights and of the running
  /// statistics. During this time, the parameters are saved in the memory of the gradients, and the evaluation
  /// statistics are saved on the host. Steps, broadcast(), and saving and loading of states throw StateError during
  /// this time.
  ///
  /// Both functions wait for the device. With zero1, begin_average() is collective. begin_average() throws StateError
  /// without a moving average, and between add() and update(). If begin_average() throws, the step is unchanged, except
  /// after an error of the communicator.
  void begin_average();
  void end_average();
  void require_not_averaged(const char* call) const;  ///< throws StateError between begin_average() and end_average()
  [[nodiscard]] Metrics take_evaluated();  ///< returns the sums of evaluate() since the last call; waits for the device
  /// Returns the sums of this rank's training metrics since the last call. Waits for the device.
  [[nodiscard]] Metrics take_trained();
  /// Returns the sums of this rank's metrics over step `step`, one of the last eight steps: one element, or one for
  /// each virtual rank. Returns an empty span if the sums have not arrived. Does not wait. The span is valid until the
  /// next call of this object. Throws the errors of loss().
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  /// Returns the largest number of steps that are enqueued but not complete when update() returns: 0 if steps run in
  /// the calling thread, otherwise 2. metrics_of() has the sums of all earlier steps.
  [[nodiscard]] int steps_under_way() const;

  /// Adds a state of the program's own. After this call, the step broadcasts, compares, saves and loads this state, too
  /// (ParameterSet::register_state()). All ranks must register the same states. save_state() checks this, but
  /// broadcast() does not: if a rank lacks a state, broadcast() hangs on all other ranks. Before the first broadcast(),
  /// a program should therefore compare parameters().states().text() on all ranks with
  /// comm::require_same_on_all_ranks(), as Trainer::start() does.
  TensorView register_state(const StateSpec& spec);
  /// Sends the parameters, optimizer state and statistics of rank `root` to all ranks. With zero1, each rank keeps its
  /// own optimizer state. With compression, each rank also keeps its own gradients that are not sent yet.
  void broadcast(int root = 0);
  /// Compares parameters, optimizer state (not with zero1) and averaged statistics over the ranks of `control`, a
  /// communicator for host tensors. `more` is a text that must also be equal on all ranks. If anything differs, throws
  /// UsageError on every rank, with a text that names the difference.
  void require_same_state(comm::Communicator& control, const std::string& more = {});
  /// Compares the bits of the parameters over the ranks of `control`. First waits for the device. Each rank sends a
  /// hash of 8 bytes. If a parameter differs, throws comm::ReplicaError on every rank. The error names the first such
  /// parameter and the ranks. Collective.
  void check_replicas(comm::Communicator& control);
  /// Describes the gradients of step `step` that are not finite. If the sum of the gradients was finite, the text is
  /// empty on all ranks, and the call is local. Otherwise the call is collective over `control`, which must accept host
  /// tensors. The text then names, for each rank, the first gradient in backward that was not finite before the sum,
  /// for example "rank 3: conv2.weight and 12 written after it". Throws StateError without
  /// TrainStepOptions::check_gradients, and if metrics_of(step) is still empty. Does not wait for the device.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step, comm::Communicator& control);
  /// Waits for the device, and checks the communicator while waiting (comm/wait.hpp).
  void synchronize();

  /// After this call, the step records spans in `recorder`: for the arrival of batches, each layer, each bucket and the
  /// update. A captured step is recorded as one span. Must be called between steps. Adds names to the recorder, which
  /// must outlive the step. nullptr ends the recording. An attached profiling tool gets ranges in any case
  /// (runtime/stream/span_recorder.hpp).
  void record_into(SpanRecorder* recorder);
  /// Returns the recorder of record_into() or of an attached profiling tool, or nullptr if there is none.
  [[nodiscard]] SpanRecorder* recorder() const;
  [[nodiscard]] std::size_t spans_of_a_step() const;  ///< returns an upper bound of the number of spans per step

  [[nodiscard]] ParameterSet& parameters();
  [[nodiscard]] const Plan& train_plan() const;
  [[nodiscard]] const Plan& evaluation_plan() const;
  [[nodiscard]] const StepLayout& layout() const;
  /// Returns the library choices of all plans, for PlanOptions::choices of a later run (nn/plan/microbatch_plans.hpp).
  [[nodiscard]] const Choices& choices() const;
  [[nodiscard]] comm::GradientReducer& reducer();
  [[nodiscard]] Optimizer& optimizer();
  [[nodiscard]] Context& context();
  [[nodiscard]] std::size_t planned_bytes() const;  ///< bytes that the constructor has allocated
  /// Returns the reason why steps are not captured as a CUDA graph, or an empty text if they are captured.
  [[nodiscard]] const std::string& graph_obstacle() const;
  /// Returns a resource of host memory from which copies to the device are fast: page-locked memory for a GPU.
  [[nodiscard]] MemoryResource& host_memory();
  /// Waits for the copies of batches. The caller may then free or change the memory of batches.
  void wait_for_copies();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
