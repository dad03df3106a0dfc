#pragma once

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/optim/moving_average.hpp>
#include <lockstep/nn/optim/optimizer_options.hpp>
#include <lockstep/nn/plan/plan_options.hpp>

namespace lockstep {
class Schema;
}

namespace lockstep::nn {

/// The ranks that train together, as a step sees them. `grad` sums gradients on `comm_stream` (with an inline stream
/// nothing overlaps). Both must outlive the step. The step tells the watchdog, if given, what it is doing.
///
/// `statistics` exchanges the statistics of batch norm (TrainStepOptions::sync_batch_norm) on the context's stream, in
/// forward and between the layers of backward, when `grad` may be under way on comm_stream. On a host, give a second
/// communicator of the same ranks (Session::inline_ops(), a split) that nothing else uses during steps. Without it
/// `grad` exchanges the statistics, after the buckets that have started. On a GPU the stream waits for those buckets in
/// any case: two communicators whose kernels wait for each other's place on the device would hang, and the order of one
/// stream is the same on all ranks.
struct StepRanks {
  comm::Communicator& grad;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
};

/// What each rank keeps of the training state.
enum class Strategy : unsigned char {
  /// Each rank keeps everything: gradients are summed on all ranks, and all ranks make the same update.
  ddp,
  /// Each rank keeps 1 / ranks of the optimizer's states: gradients are summed on the rank that updates them
  /// (reduce-scatter), which sends the new parameters to the others (all-gather). ZeRO's stage 1, Rajbhandari et al.
  /// 2020, section 5.1. Checkpoints are the same files; clipping and lars sum norms in another order.
  zero1
};
[[nodiscard]] std::string_view name_of(Strategy strategy);     ///< "ddp", "zero1"
[[nodiscard]] Strategy parse_strategy(std::string_view name);  ///< inverse of name_of; UsageError otherwise

/// Whether a step is captured once into a CUDA graph, which later steps launch. The numbers are the same.
enum class CudaGraph : unsigned char { automatic, on, off };
/// Returns why steps on this device with this communicator are not captured; empty when they are. With `on` throws
/// UsageError naming the reason.
[[nodiscard]] std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted);

struct TrainStepOptions {
  std::int64_t max_batch = 0;  ///< largest number of samples of one micro-batch; memory is planned for it
  /// Micro-batches per step: 1, or the number that the caller will give; 0: any number. Except for 1, two plans are
  /// made: the first micro-batch overwrites the gradients, the others add to them.
  std::int64_t microbatches = 0;
  /// true: the step counts its samples over all ranks; the count is reduced with the gradients. false: each batch gives
  /// the count (Batch::global_valid), and the loss has no weights (PlanOptions::weights).
  bool count_samples = true;
  /// true: a step whose samples weigh nothing together, such as one without samples on any rank, causes no DataError in
  /// a later call. The step changes nothing either way.
  bool empty_steps = false;
  /// Batch norm takes its statistics over the micro-batches that all ranks run at a time, as if these were one batch of
  /// one rank (PlanOptions::sync_batch_norm). add() is collective then, and all ranks give a step equally many
  /// micro-batches; some of these may have no sample that counts. Nothing changes with one rank, in evaluation, or
  /// without batch norm.
  bool sync_batch_norm = false;
  /// V > 0: the numbers are those of V ranks, whatever the number P of ranks is. V must be a power of two, and P a
  /// divisor of V. A rank computes virtual ranks V / P * rank, ..., one after the other: a step is V / P calls of
  /// add(), one for each, and update(). Each virtual rank has running statistics of its own and overwrites the
  /// gradients. Gradients are added in one tree over all virtual ranks (comm::GradientTree, then comm::SumOrder::tree,
  /// whatever sums.order says); so are metrics. The bits are equal if contexts have equally many threads. Takes
  /// log2(V / P) more arenas of gradients. UsageError with sync_batch_norm, a 16-bit sums.dtype, several microbatches,
  /// and zero1 with a clip_norm or lars. Steps are not captured.
  std::int64_t virtual_ranks = 0;
  std::uint64_t seed = 1;  ///< seed of the parameters' initial values
  ParameterArenas lent{};  ///< memory for the parameters; must outlive the step and is overwritten
  PlanOptions plan{};
  OptimizerOptions optimizer{};
  double weight_decay = 0;
  bool decay_all = true;     ///< false: biases and norm parameters are not decayed
  ParameterGroups groups{};  ///< ParameterSetOptions::groups
  /// Moving average of the weights: one pass after each update that is averaged, on the context's stream. The pass is
  /// not part of a captured step, because its weight follows from the number of the update; nothing waits. With zero1
  /// each rank averages its share.
  MovingAverageOptions average{};
  comm::BucketOptions buckets{};  ///< the step sets element_bytes
  /// How the ranks' gradients are summed (comm/gradients/bucket_sum.hpp). A 16-bit dtype needs count_samples off. With
  /// SumOrder::ranks and equally many ranks the bits depend neither on buckets nor on the strategy (except the norm of
  /// clipping). With `compress`, gradients that a rank has not sent yet are kept and go into the checkpoint. With a
  /// hook the program computes the sum. UsageError for a sum that does not go with another option (comm::misfit()).
  comm::SumOptions sums{};
  Strategy strategy = Strategy::ddp;
  CudaGraph cuda_graph = CudaGraph::automatic;  ///< automatic: captures if possible
  /// Computes the gradients of weights on a side stream of the step's own (PlanOptions::beside, which stays empty
  /// here), while passes over memory leave a GPU's arithmetic idle. Takes more memory; changes no number. On a host the
  /// two run at once only if the context's stream has a worker; then there are twice as many threads.
  bool weights_beside = false;
  /// Checks each gradient of each rank on the device before the ranks sum them, so that non_finite_gradients() can name
  /// gradients that are not finite. The optimizer then skips such updates (OptimizerOptions::skip_non_finite):
  /// parameters and optimizer states stay. Running statistics of batch norms come from forward and have moved, in
  /// channels that were finite. Reads the gradients once or twice more; changes no number of other steps.
  bool check_gradients = false;
};
/// Adds the options that a program's user may choose; the program has options of its own for `sums`, `buckets` and
/// `strategy`.
void describe(Schema& schema, TrainStepOptions& options);
/// Returns the options. UsageError for options out of range, or that do not go together in a step of `ranks` ranks.
[[nodiscard]] const TrainStepOptions& checked_options(const TrainStepOptions& options, int ranks);

}  // namespace lockstep::nn
