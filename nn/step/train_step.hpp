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

/// Returns the gradients of the parameter set as ranges of its gradient arena, for plan_buckets(), in the order in
/// which backward completes them. Frozen parameters have no gradients.
[[nodiscard]] std::vector<comm::GradientRange> gradient_ranges(const ParameterSet& set);

/// Error for gradients that are not finite in a run that must not skip an update.
class GradientError : public Error {
  using Error::Error;
};

/// Loss of a step: the mean over this rank's samples (weighted if the loss has weights), or NaN if the rank had none.
struct StepLoss {
  double value = 0;
  std::int64_t step = 0;  ///< number of the step, 1 for the first; 0: no loss has arrived yet
};

/// One step of training: forward, loss, backward, sum over ranks, update. Owns the parameters, the optimizer's state,
/// the plans and their workspace. A step minimises the mean of the loss over the samples of all its micro-batches on
/// all ranks. With weights of the loss (PlanOptions::weights) the mean is
///   sum_nj w_nj l_nj / sum_nj w_nj
/// over all positions or elements j of all samples n, so the weight of a sample is the mean of its weights. Ranks may
/// have different kinds of weights; on a rank without weights a sample weighs 1. The sum of the weights is reduced with
/// the gradients. The sum may be far from 1, and single weights may be 0 or negative. If the sum is not a positive,
/// finite number (for example because no rank had a sample that counts), the step changes neither parameters nor
/// optimizer states nor the loss scale; the forward pass has still updated the running statistics.
///
///   nn::TrainStep step(context, model, {.max_batch = 128});
///   step.update({{StateField::values, x}, {StateField::labels, y}}, /*rate=*/1e-3);      // a step of one micro-batch
///   step.add(first); step.add(second); step.update(1e-3);                                // a step of two
///
/// update(batch, rate) reduces gradients while backward still computes; update(rate) after add() starts to reduce when
/// it is called. After the first step (if steps are captured, after the second, which captures) nothing is allocated.
/// From then on a call waits only for the micro-batch two steps earlier (with microbatches 0: two micro-batches
/// earlier), so loss() lags behind. ingest() says where batches may lie and how long their memory must not change. On a
/// GPU, page-locked memory is read until the step after the next begins.
///
/// With several ranks update, broadcast, check_replicas and require_same_state are collective, and so is add with
/// sync_batch_norm; all other calls are local. Only the rank that gives a bad batch throws. The other ranks then wait
/// in update() or add() until that rank ends the job, as comm::run_program() does for an error that nobody catches. A
/// program that continues after such an error first asks the other ranks (Session::agree()) and calls abandon() on all
/// ranks. One thread at a time may use a step.
class TrainStep {
 public:
  /// Makes a step for one rank, or for several ranks (`ranks`). Plans, allocates, and initialises the parameters from
  /// the seed. UsageError for options out of range.
  TrainStep(Context& context, const Model& model, const TrainStepOptions& options);
  TrainStep(Context& context, const StepRanks& ranks, const Model& model, const TrainStepOptions& options);
  ~TrainStep();  ///< waits for the streams, because queued work uses the step's memory
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// Adds the gradients of a micro-batch. Checks the batch before anything is enqueued: ShapeError or UsageError if the
  /// batch does not fit the model (nn/step/ingest.hpp) or has more than max_batch samples; UsageError if the batch has
  /// a global_valid with count_samples on, or none with count_samples off. DataError if a label of an earlier step was
  /// out of range, or if the sample weights of an earlier step had no positive, finite sum, so that the step changed
  /// nothing. After a DataError, the micro-batches added since the last update are discarded.
  void add(const Batch& batch);
  void add(std::initializer_list<FieldView> fields);
  /// Throws the errors of add() for this batch or for earlier steps. Waits for earlier steps and changes nothing. For
  /// ranks whose add() is collective (sync_batch_norm): they call check() and agree on its result before add().
  void check(const Batch& batch);
  /// Ends the step: sums the gradients over the ranks and updates the parameters. StateError without an add() before
  /// or, with virtual ranks, without one add() for each virtual rank of this rank.
  void update(double rate);
  /// Runs add() and update() in one call. Gradients are reduced while backward still computes.
  void update(const Batch& batch, double rate);
  void update(std::initializer_list<FieldView> fields, double rate);
  /// The two halves of update(rate), for an optimizer or a penalty of the caller between them. reduce() sums the
  /// gradients over the ranks and ends the computation of the step: loss() and metrics_of(steps() + 1) then arrive.
  /// apply() updates the parameters. abandon() instead of apply() ends the step without an update. Both together
  /// compute the bits of update(rate). With several ranks reduce() is collective, and with zero1 apply() is, too.
  /// StateError for reduce() twice, for apply() without reduce(), and for add() between them.
  void reduce();
  void apply(double rate);
  [[nodiscard]] bool reduced() const;  ///< true between reduce() and apply()
  /// Copy the gradients to or from a flat vector (nn/model/flat_vector.hpp, FlatPart::gradients). Between add() and
  /// reduce() these are the gradients of the sum of w l over this rank's samples, with weights w and losses l; if the
  /// batches give global_valid, of that sum divided by it. After reduce() they are the gradients of the mean over all
  /// ranks. A write after reduce() must write the same numbers on every rank. A step whose weights have no positive sum
  /// reads as 0. With zero1 only this rank's part is defined after reduce(). StateError without an add() before.
  void read_gradients(const TensorView& vector);
  void write_gradients(const TensorView& vector);
  /// For PlanOptions::loss given: begins a step unless one has begun, and returns the arena of the gradients, zero at
  /// the begin of a step, to which the caller adds (Tape). The step sums the gradients over the ranks and divides them
  /// by nothing. A rank that adds nothing still calls update() or reduce(). StateError after reduce() and for other
  /// losses.
  TensorView given_gradients();
  /// Discards the micro-batches added since the last update. Call it on all ranks or on none.
  void abandon();
  /// Returns the newest loss that has arrived. Does not wait. Throws as add() does for errors of earlier steps.
  [[nodiscard]] StepLoss loss();
  /// Waits for all steps, then returns loss().
  [[nodiscard]] StepLoss wait_loss();
  [[nodiscard]] std::int64_t steps() const;  ///< number of updates made
  [[nodiscard]] std::int64_t added() const;  ///< number of micro-batches since the last update
  /// Returns the number of micro-batches of all steps on this rank (with virtual ranks, on one virtual rank). Samples
  /// without ids get ids that are computed from this number.
  [[nodiscard]] std::int64_t microbatches() const;
  [[nodiscard]] int ranks() const;  ///< number of ranks that train together
  /// Return the number and the bytes of the additional gradient arenas that the tree of virtual ranks takes.
  [[nodiscard]] std::int64_t tree_arenas() const;
  [[nodiscard]] std::size_t tree_bytes() const;
  /// Continues from the numbers of steps and micro-batches of a saved state (nn/step/state_file.hpp). StateError
  /// between add() and update().
  void continue_from(std::int64_t steps, std::int64_t microbatches);
  /// Tells the moving average that `updates` updates of the run and `scheduled` updates of its schedule
  /// (MovingAverageOptions::weight()) came before the next update. Without this call both numbers are steps().
  void average_behind(std::int64_t updates, std::int64_t scheduled);

  /// Computes loss and accuracy of a batch; take_evaluated() returns the sums. Batch norm uses the evaluation
  /// statistics, which average_statistics() and save_state() write (nn/step/state_file.hpp): call one of them before.
  /// With virtual ranks, successive calls belong to successive virtual ranks of this rank; the first call after
  /// take_evaluated() belongs to the first.
  void evaluate(const Batch& batch);
  /// Makes evaluate() compute with the moving average and its statistics until end_average(). Until then the average
  /// replaces the parameters, which are kept in the memory of the gradients, and its statistics replace the evaluation
  /// statistics, which are kept on the host. Both calls wait for the device; with zero1 begin_average() is collective.
  /// begin_average() throws StateError without a moving average and between add() and update(). Before end_average(), a
  /// step, a broadcast(), a save and a load throw StateError. If begin_average() throws, the state is as before, except
  /// after an error of the communicator.
  void begin_average();
  void end_average();
  void require_not_averaged(const char* call) const;  ///< throws StateError, which names `call`, until end_average()
  [[nodiscard]] Metrics take_evaluated();             ///< returns this rank's sums since the last call; waits
  [[nodiscard]] Metrics take_trained();  ///< returns this rank's sums over training since the last call; waits
  /// Returns the sums of this rank's metrics over step `step`, one of the last eight: one element, or one for each
  /// virtual rank. Returns an empty span if the sums have not arrived. Does not wait. The span is valid until the next
  /// call of this object. Throws as loss() does.
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  /// Returns the number of steps that may be enqueued but not complete when update() returns: 0 if steps run in the
  /// calling thread, otherwise 2. metrics_of() has the sums of all steps before these.
  [[nodiscard]] int steps_under_way() const;

  /// Adds a state of the program's own. The step then broadcasts, compares, saves and loads the state
  /// (ParameterSet::register_state()). Call it alike on all ranks. A save compares the ranks' lists of states. A
  /// broadcast cannot compare the lists, because it has no communicator for texts, and a rank that lacks a state would
  /// make the others wait forever. Compare parameters().states().text() before the first broadcast
  /// (comm::require_same_on_all_ranks()), as Trainer::start() does.
  TensorView register_state(const StateSpec& spec);
  /// Sends one rank's parameters, optimizer state and statistics to all ranks. With zero1 each rank keeps its own
  /// optimizer state. Each rank also keeps its own gradients that a compression has not sent.
  void broadcast(int root = 0);
  /// Compares parameters, optimizer state (not with zero1) and averaged statistics over the ranks of `control`, a
  /// communicator for host tensors. `more` holds further lines that must be equal. Throws UsageError on every rank,
  /// with the state that differs, unless all are equal.
  void require_same_state(comm::Communicator& control, const std::string& more = {});
  /// Compares the bits of the parameters over the ranks of `control`. Waits for the device first; each rank sends 8
  /// bytes. Collective. If a parameter differs, throws comm::ReplicaError on every rank, with the first such parameter
  /// and the ranks.
  void check_replicas(comm::Communicator& control);
  /// Describes step `step`, whose metrics_of() must have arrived, if TrainStepOptions::check_gradients is set. If the
  /// sum of the gradients was finite, the text is empty on all ranks, and the call is local. Otherwise the text names,
  /// for each rank, the first tensor in the order of backward's writes that was not finite before the sum ("rank 3:
  /// conv2.weight and 12 written after it"), and the call is collective over `control`, which takes host tensors. Does
  /// not wait for the device. StateError for any other step, and without check_gradients.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step, comm::Communicator& control);
  /// Waits for the device and checks the communicator meanwhile (comm/wait.hpp).
  void synchronize();

  /// Records from now on when batches arrive, layers compute, buckets are sent and the optimizer updates. A captured
  /// step is one span. Call it between steps. The call adds names to the recorder, which must outlive the step. A
  /// recorder of nullptr ends the recording; an attached tool still gets its ranges (runtime/stream/span_recorder.hpp).
  void record_into(SpanRecorder* recorder);
  [[nodiscard]] SpanRecorder* recorder() const;       ///< recorder of record_into(), or one for a tool, or nullptr
  [[nodiscard]] std::size_t spans_of_a_step() const;  ///< returns an upper limit for the number of spans

  [[nodiscard]] ParameterSet& parameters();
  [[nodiscard]] const Plan& train_plan() const;
  [[nodiscard]] const Plan& evaluation_plan() const;
  [[nodiscard]] const StepLayout& layout() const;
  /// Returns the library choices of all plans, for PlanOptions::choices of a later run (nn/plan/microbatch_plans.hpp).
  [[nodiscard]] const Choices& choices() const;
  [[nodiscard]] comm::GradientReducer& reducer();
  [[nodiscard]] Optimizer& optimizer();
  [[nodiscard]] Context& context();
  [[nodiscard]] std::size_t planned_bytes() const;  ///< bytes of the step, all allocated by its constructor
  /// Returns why steps are not captured, or an empty text if they are.
  [[nodiscard]] const std::string& graph_obstacle() const;
  /// Memory for the caller's batches that makes their copies fast: page-locked memory on a GPU.
  [[nodiscard]] MemoryResource& host_memory();
  /// Waits for the copies of batches. The caller may then free the memory of batches.
  void wait_for_copies();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
