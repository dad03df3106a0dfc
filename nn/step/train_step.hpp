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

/// Returns the gradients of a parameter set as ranges of its arena, in the order in which they become ready, for
/// plan_buckets(). Frozen parameters have no gradients.
[[nodiscard]] std::vector<comm::GradientRange> gradient_ranges(const ParameterSet& set);

/// Thrown for gradients that are not finite where no update may be skipped.
class GradientError : public Error {
  using Error::Error;
};

/// The loss of a step: the mean over this rank's samples, weighted if they have weights; NaN if the rank had no
/// samples.
struct StepLoss {
  double value = 0;
  std::int64_t step = 0;  ///< number of the step, 1 for the first; 0: there is no loss yet
};

/// One step of training: forward, loss, backward, sum over ranks, update. Owns the parameters, the optimizer's state,
/// the plans and their workspace. A step minimises the mean of the loss over the samples of all its micro-batches on
/// all ranks. With weights of the loss (PlanOptions::weights) this is
///   sum_nj w_nj l_nj / sum_nj w_nj
/// over all positions or elements j of these samples n, so the weight of a sample is the mean of its weights. Ranks may
/// have different kinds of weights: on a rank without weights a sample weighs 1. The sum of the weights is reduced with
/// the gradients; it may be far from 1, and single weights may be 0 or negative. When the sum is not a positive, finite
/// number (also when no rank had a sample that counts), the step changes neither parameters nor states of the optimizer
/// nor the loss scale; the forward pass has still updated the running statistics.
///
///   nn::TrainStep step(context, model, {.max_batch = 128});
///   step.update({{StateField::values, x}, {StateField::labels, y}}, /*rate=*/1e-3);      // a step of one micro-batch
///   step.add(first); step.add(second); step.update(1e-3);                                // a step of two
///
/// update(batch, rate) reduces gradients while backward still computes; update(rate) after add() starts to reduce when
/// it is called. After the first step (after the second, which captures, if steps are captured) nothing is allocated,
/// and the only wait is for the micro-batch two steps back (with microbatches 0: two micro-batches back); so loss()
/// lags behind. ingest() says where batches may lie and how long their memory must not change; on a GPU, page-locked
/// memory is read until the step after the next begins.
///
/// With several ranks update, broadcast, check_replicas and require_same_state are collective, and add with
/// sync_batch_norm; everything else is local. A batch is refused only on the rank that gives it. The other ranks then
/// wait in update() or add() until that rank ends the job, as comm::run_program() does for an error that nobody
/// catches. A program that continues after a refused batch first asks the other ranks (Session::agree()) and calls
/// abandon() on all ranks. One thread at a time may use a step.
class TrainStep {
 public:
  /// Makes a step for one rank, or for several (`ranks`): plans, allocates and initialises from the seed. UsageError
  /// for options out of range.
  TrainStep(Context& context, const Model& model, const TrainStepOptions& options);
  TrainStep(Context& context, const StepRanks& ranks, const Model& model, const TrainStepOptions& options);
  ~TrainStep();  ///< waits for the streams, because queued work uses the memory
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// Adds the gradients of a micro-batch. ShapeError and UsageError, before anything is enqueued, when the batch does
  /// not fit the model (nn/step/ingest.hpp) or has more than max_batch samples; UsageError when the batch has no
  /// global_valid and count_samples is off, or has one and count_samples is on. DataError when a label of an earlier
  /// step was out of range, or when an earlier step changed nothing because the weights of its samples had no positive,
  /// finite sum; the micro-batches added before are then discarded.
  void add(const Batch& batch);
  void add(std::initializer_list<FieldView> fields);
  /// Throws what add() would throw for this batch or for earlier steps, and waits for these; changes nothing. For ranks
  /// that add together (sync_batch_norm) and agree before.
  void check(const Batch& batch);
  /// Ends the step: sums the gradients over the ranks and updates the parameters. StateError without an add() before;
  /// with virtual ranks, without one add() for each virtual rank of this rank.
  void update(double rate);
  /// add() and update() in one call: gradients are reduced while backward still computes.
  void update(const Batch& batch, double rate);
  void update(std::initializer_list<FieldView> fields, double rate);
  /// Discards the micro-batches added since the last update. Call on all ranks or on none.
  void abandon();
  /// Returns the newest loss that has arrived; does not wait. Throws as add() for errors of earlier steps.
  [[nodiscard]] StepLoss loss();
  /// Waits for all steps, then returns loss().
  [[nodiscard]] StepLoss wait_loss();
  [[nodiscard]] std::int64_t steps() const;  ///< number of updates made
  [[nodiscard]] std::int64_t added() const;  ///< number of micro-batches since the last update
  /// Micro-batches of all steps on this rank; with virtual ranks, on one of them. Samples without ids are numbered by
  /// this.
  [[nodiscard]] std::int64_t microbatches() const;
  [[nodiscard]] int ranks() const;  ///< number of ranks that train together
  /// Additional arenas of gradients that the tree of virtual ranks takes, and their bytes.
  [[nodiscard]] std::int64_t tree_arenas() const;
  [[nodiscard]] std::size_t tree_bytes() const;
  /// Continues the counts of a saved state (nn/step/state_file.hpp). StateError between add() and update().
  void continue_from(std::int64_t steps, std::int64_t microbatches);
  /// Tells the moving average that `updates` updates of the run came before the next one, and `scheduled` updates of
  /// its schedule (MovingAverageOptions::weight()); without this call both are steps().
  void average_behind(std::int64_t updates, std::int64_t scheduled);

  /// Computes loss and accuracy of a batch; take_evaluated() returns their sums. Batch norm uses the evaluation
  /// statistics, which average_statistics() and save_state() write (nn/step/state_file.hpp): call one of them before.
  /// With virtual ranks, calls belong to this rank's virtual ranks in turn, beginning with the first one after
  /// take_evaluated().
  void evaluate(const Batch& batch);
  /// From begin_average() on, evaluate() computes with the moving average and its statistics. Until end_average() they
  /// take the place of the parameters and of the averaged statistics, which are kept in the memory of the gradients and
  /// on the host. Both calls wait for the device; with zero1 begin_average() is collective. StateError without an
  /// average, between add() and update(), and for a step, broadcast(), or saving or loading a state in between. If
  /// begin_average() throws, all is as before, except after an error of the communicator.
  void begin_average();
  void end_average();
  void require_not_averaged(const char* call) const;  ///< throws StateError, naming the call, until end_average()
  [[nodiscard]] Metrics take_evaluated();             ///< this rank's sums since the last call; waits
  [[nodiscard]] Metrics take_trained();  ///< this rank's sums over training steps since the last call; waits
  /// Returns this rank's sums over one of the last eight steps: one element, or one for each virtual rank; empty when
  /// they have not arrived. Does not wait. Valid until the next call of the step; throws as loss().
  [[nodiscard]] std::span<const Metrics> metrics_of(std::int64_t step);
  /// Steps that may be enqueued but not complete when update() returns: 0 when steps run in the calling thread, else 2.
  /// metrics_of() has the steps before these.
  [[nodiscard]] int steps_under_way() const;

  /// Adds a state of the program's own: from then on the step broadcasts, compares, saves and loads the state
  /// (ParameterSet::register_state()). Call alike on all ranks: saving compares the lists of states, a broadcast does
  /// not, because it has no communicator for texts. Before the first broadcast compare parameters().states().text()
  /// (comm::require_same_on_all_ranks()), as Trainer::start() does; a rank that lacks a state would leave the others
  /// waiting.
  TensorView register_state(const StateSpec& spec);
  /// Sends one rank's parameters, optimizer state (with zero1 each rank keeps its own) and statistics to all ranks.
  /// Gradients that a compression has not sent stay each rank's own.
  void broadcast(int root = 0);
  /// Compares parameters, optimizer state (not with zero1) and averaged statistics over the ranks of `control`, a
  /// communicator for host tensors. UsageError on every rank, naming what differs. `more`: further lines that must be
  /// equal.
  void require_same_state(comm::Communicator& control, const std::string& more = {});
  /// Compares the bits of the parameters over the ranks of `control`, after waiting for the device; each rank sends 8
  /// bytes. Collective. comm::ReplicaError on every rank, naming the first parameter that differs and the ranks.
  void check_replicas(comm::Communicator& control);
  /// With check_gradients: describes a step whose metrics_of() have arrived; empty when the sum of its gradients was
  /// finite. Else names the first tensor of each rank, in the order in which backward writes them, that was not finite
  /// before the sum: "rank 3: conv2.weight and 12 written after it". Collective over `control` (for host tensors)
  /// unless empty, which the text is on all ranks or on none; does not wait for the device. StateError for another
  /// step, and without the option.
  [[nodiscard]] std::string non_finite_gradients(std::int64_t step, comm::Communicator& control);
  /// Waits for the device and checks the communicator meanwhile (comm/wait.hpp).
  void synchronize();

  /// From now on records when batches arrive, layers compute, buckets are sent and the optimizer updates. A captured
  /// step is one span. Call between steps; adds names to the recorder. The recorder must outlive the step. nullptr:
  /// records nothing more, as at the beginning, except the ranges of an attached tool
  /// (runtime/stream/span_recorder.hpp).
  void record_into(SpanRecorder* recorder);
  [[nodiscard]] SpanRecorder* recorder() const;  ///< set by record_into(), or the step's own for a tool; or nullptr
  [[nodiscard]] std::size_t spans_of_a_step() const;  ///< upper limit

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
  /// Returns why steps are not captured; empty when they are.
  [[nodiscard]] const std::string& graph_obstacle() const;
  /// The memory in which batches should lie for fast copies: page-locked memory for a GPU.
  [[nodiscard]] MemoryResource& host_memory();
  /// Waits for the copies of batches: afterwards the caller may free the memory of batches.
  void wait_for_copies();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
