#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/optim/optimizer.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/nn/step/batch.hpp>
#include <lockstep/nn/step/metrics.hpp>

namespace lockstep::nn {

/// The gradients of a parameter set as ranges of its arena, in the order in which they become ready: what
/// plan_buckets() cuts into buckets. Frozen parameters have none.
[[nodiscard]] std::vector<comm::GradientRange> gradient_ranges(const ParameterSet& set);

/// The ranks that train together, as a step sees them: `grad` sums gradients on `comm_stream` (an inline stream: then
/// nothing overlaps). Both outlive the step. The watchdog, if there is one, is told what the step is doing.
struct StepRanks {
  comm::Communicator& grad;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
};

/// Whether a step is captured into a CUDA graph once and launched from then on; the numbers are the same.
enum class CudaGraph : unsigned char { automatic, on, off };
/// Why steps of this device and communicator are not captured; empty: they are. UsageError naming the reason with `on`.
[[nodiscard]] std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted);

struct TrainStepOptions {
  std::int64_t max_batch = 0;  ///< most samples of one micro-batch; memory is planned for it
  /// Micro-batches of a step: 1, or so many as the caller will give (2 micro-batches are planned for: the first, which
  /// overwrites the gradients, and the others, which add to them); 0: any number.
  std::int64_t microbatches = 0;
  /// true: the step counts its samples over all ranks, the count being reduced with the gradients. false: each batch
  /// says how many there are (Batch::global_valid), and there are no weights of the loss (PlanOptions::weights).
  bool count_samples = true;
  std::uint64_t seed = 1;  ///< of the parameters
  ParameterArenas lent{};  ///< memory for the parameters that outlives the step; it is overwritten
  PlanOptions plan{};
  OptimizerOptions optimizer{};
  double weight_decay = 0;
  bool decay_all = true;          ///< false: biases and norm parameters are not decayed
  comm::BucketOptions buckets{};  ///< element_bytes follows from the arena
  DType reduce_dtype =
      DType::f32;  ///< comm::ReducerOptions: gradients travel rounded to bf16 or f16; count_samples is off then
  CudaGraph cuda_graph = CudaGraph::automatic;  ///< automatic: where it can be
};

/// The loss of a step: the mean over this rank's samples, weighted where they have weights; NaN where it had none.
struct StepLoss {
  double value = 0;
  std::int64_t step = 0;  ///< 1 for the first; 0: there is none yet
};

/// One step of training: forward, loss, backward, sum over ranks, update. Owns the parameters, the optimizer's state,
/// the plans and their workspace. What a step minimises is the mean of the loss over the samples of all its
/// micro-batches on all ranks. With weights of the loss (PlanOptions::weights) it is
///   sum_nj w_nj l_nj / sum_nj w_nj
/// over all positions or elements j of these samples n, so that the weight of a sample is the mean of its own. Ranks
/// may have different kinds of weights: a rank without any weighs a sample 1. Their sum is reduced with the gradients;
/// it may be far from 1, and single weights may be 0 or negative. Where it is not a positive, finite number, also where
/// no rank had a sample that counts, the step changes nothing: neither parameters nor states of the optimizer nor the
/// loss scale (running statistics are what the forward pass made of them).
///
///   nn::TrainStep step(context, model, {.max_batch = 128});
///   step.update({{StateField::values, x}, {StateField::labels, y}}, /*rate=*/1e-3);      // a step of one micro-batch
///   step.add(first); step.add(second); step.update(1e-3);                                // a step of two
///
/// The first form reduces gradients while backward still computes; update(rate) after add() begins to reduce then.
/// Nothing is allocated and nothing waited for after the first step (after the second where steps are captured: the
/// second captures) but for the micro-batch that is two steps back (with microbatches 0: two micro-batches), so that
/// loss() lags behind. Where batches lie, and how long their memory stays as it is, is what ingest() says; on a GPU
/// page-locked memory is read until the step after the next begins.
///
/// Collective with several ranks: update, broadcast, require_same_state. Everything else is local. A batch is refused
/// on the rank that gives it; the others then wait in update() until that rank ends the job, as comm::run_program()
/// does for an error that nobody catches. A program that goes on after a refused batch asks the others before update()
/// (Session::agree()) and calls abandon() on all ranks. One thread at a time.
class TrainStep {
 public:
  /// One rank. Plans, allocates and initialises from the seed. UsageError for options out of range.
  TrainStep(Context& context, const Model& model, const TrainStepOptions& options);
  TrainStep(Context& context, const StepRanks& ranks, const Model& model, const TrainStepOptions& options);
  ~TrainStep();  ///< waits for the streams: queued work uses the memory that goes
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// Adds the gradients of a micro-batch. ShapeError and UsageError, before anything is enqueued, when the batch does
  /// not fit the model (nn/step/ingest.hpp) or has more than max_batch samples; UsageError where it says no
  /// global_valid and count_samples is off, or says one and it is on. DataError when a label of an earlier step was out
  /// of range, or when an earlier step changed nothing, as the weights of its samples had no positive, finite sum. It
  /// gives up the micro-batches that were added before.
  void add(const Batch& batch);
  void add(std::initializer_list<FieldView> fields);
  /// Ends the step: sums the gradients over the ranks and updates the parameters. StateError without an add() before.
  void update(double rate);
  /// add() and update() in one: gradients travel while backward still computes.
  void update(const Batch& batch, double rate);
  void update(std::initializer_list<FieldView> fields, double rate);
  /// Forgets the micro-batches that were added since the last update. All ranks abandon, or none.
  void abandon();
  /// The newest loss that is there; does not wait. Throws as add() does for what came with an earlier step.
  [[nodiscard]] StepLoss loss();
  /// The same after a wait for all steps.
  [[nodiscard]] StepLoss wait_loss();
  [[nodiscard]] std::int64_t steps() const;         ///< updates made
  [[nodiscard]] std::int64_t added() const;         ///< micro-batches since the last update
  [[nodiscard]] std::int64_t microbatches() const;  ///< of all steps, on this rank; they number samples without ids
  [[nodiscard]] int ranks() const;                  ///< that train together
  /// Counts on from a saved state (nn/step/state_file.hpp). StateError between add() and update().
  void continue_from(std::int64_t steps, std::int64_t microbatches);

  /// Loss and accuracy of a batch; the sums are added to those of take_evaluated(). Batch norm takes the statistics of
  /// evaluation, which average_statistics() and save_state() write (nn/step/state_file.hpp): call one of them before.
  void evaluate(const Batch& batch);
  [[nodiscard]] Metrics take_evaluated();  ///< of this rank, since the last call; waits
  [[nodiscard]] Metrics take_trained();    ///< likewise of the steps
  /// This rank's sums over one step, where they are there; does not wait. Of the last eight steps. Throws as loss().
  [[nodiscard]] std::optional<Metrics> metrics_of(std::int64_t step);
  /// Steps that may be enqueued and not done when update() returns: 0 where they run in the calling thread, else 2.
  /// metrics_of() has those before.
  [[nodiscard]] int steps_under_way() const;

  /// Sends a rank's parameters, optimizer state and statistics to all.
  void broadcast(int root = 0);
  /// Compares parameters, optimizer state and averaged statistics over the ranks of `control`, a communicator for host
  /// tensors; UsageError on every rank that names what differs. `more`: further lines that have to be equal.
  void require_same_state(comm::Communicator& control, const std::string& more = {});
  /// Waits for the device; looks after the communicator meanwhile (comm/wait.hpp).
  void synchronize();

  [[nodiscard]] ParameterSet& parameters();
  [[nodiscard]] const Plan& train_plan() const;
  [[nodiscard]] const Plan& evaluation_plan() const;
  [[nodiscard]] const StepLayout& layout() const;
  /// Library choices of all plans, for PlanOptions::choices of a later run (nn/plan/microbatch_plans.hpp).
  [[nodiscard]] const Choices& choices() const;
  [[nodiscard]] comm::GradientReducer& reducer();
  [[nodiscard]] Optimizer& optimizer();
  [[nodiscard]] Context& context();
  [[nodiscard]] std::size_t planned_bytes() const;          ///< that the step allocates, all of it in its constructor
  [[nodiscard]] const std::string& graph_obstacle() const;  ///< why steps are not captured; empty: they are
  /// Where batches should lie to be copied from: page-locked for a GPU.
  [[nodiscard]] MemoryResource& host_memory();
  /// Waits for the copies of batches: their memory may go.
  void wait_for_copies();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::nn
