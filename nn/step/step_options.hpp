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

/// The ranks that train together, for a step: `grad` sums gradients on `comm_stream` (with an inline stream nothing
/// overlaps). Both must outlive the step. The watchdog, if given, is told what the step is doing.
///
/// `statistics` carries those of batch norm (TrainStepOptions::sync_batch_norm) on the context's stream, in forward and
/// between the layers of backward, where `grad` may be under way on comm_stream: on a host, give one of the same ranks
/// beside `grad` (Session::inline_ops(), a split), which nothing else uses during steps. Without it `grad` carries
/// them, after the buckets that have started. On a GPU the stream waits for those in any case: two communicators whose
/// kernels wait for each other's place on the device would hang, and the order of one stream is the same on all ranks.
struct StepRanks {
  comm::Communicator& grad;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
};

/// What each rank keeps of the training state.
enum class Strategy : unsigned char {
  ddp,   ///< everything: gradients are summed on all ranks, and all ranks make the same update
  zero1  ///< of the optimizer's states its share, 1 / ranks: gradients are summed on the rank that updates them
         ///< (reduce-scatter), which sends the new parameters to the others (all-gather). ZeRO's stage 1,
         ///< Rajbhandari et al. 2020, section 5.1. Checkpoints are the same files; clipping and lars sum norms in
         ///< another order
};
[[nodiscard]] std::string_view name_of(Strategy strategy);     ///< "ddp", "zero1"
[[nodiscard]] Strategy parse_strategy(std::string_view name);  ///< inverse of name_of; UsageError otherwise

/// Whether a step is captured once into a CUDA graph and launched from then on. The numbers are the same.
enum class CudaGraph : unsigned char { automatic, on, off };
/// Why steps of this device and communicator are not captured; empty when they are. With `on`, UsageError naming the
/// reason.
[[nodiscard]] std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted);

struct TrainStepOptions {
  std::int64_t max_batch = 0;  ///< largest number of samples of one micro-batch; memory is planned for it
  /// Micro-batches per step: 1, or the number that the caller will give (two plans are then made: the first micro-batch
  /// overwrites the gradients, the others add to them); 0: any number.
  std::int64_t microbatches = 0;
  /// true: the step counts its samples over all ranks; the count is reduced with the gradients. false: each batch gives
  /// the number (Batch::global_valid), and there are no weights of the loss (PlanOptions::weights).
  bool count_samples = true;
  /// A step whose samples weigh nothing together, such as one without samples on any rank, is no DataError of a later
  /// call. It changes nothing either way.
  bool empty_steps = false;
  /// Batch norm takes its statistics over the micro-batches that all ranks run at a time, as if these were one batch of
  /// one rank (PlanOptions::sync_batch_norm). add() is collective then, and all ranks give a step equally many
  /// micro-batches, of which some may have no sample that counts. Nothing changes with one rank, in evaluation, or
  /// without batch norm.
  bool sync_batch_norm = false;
  /// V > 0: the numbers are those of V ranks, whatever the number P of ranks is: a power of two of which P is a
  /// divisor. A rank is virtual ranks V / P * rank, ..., one after the other: a step is V / P calls of add(), one for
  /// each, and update(). Each has running statistics of its own, and overwrites the gradients, which are added in one
  /// tree over all of them (comm::GradientTree, then comm::SumOrder::tree, whatever sums.order says); so are metrics.
  /// The bits are equal where contexts have equally many threads. Takes log2(V / P) more arenas of gradients.
  /// UsageError beside sync_batch_norm, a 16-bit sums.dtype, several microbatches, and zero1 with a clip_norm or
  /// lars. Steps are not captured.
  std::int64_t virtual_ranks = 0;
  std::uint64_t seed = 1;  ///< of the parameters
  ParameterArenas lent{};  ///< memory for the parameters, which must outlive the step and is overwritten
  PlanOptions plan{};
  OptimizerOptions optimizer{};
  double weight_decay = 0;
  bool decay_all = true;     ///< false: biases and norm parameters are not decayed
  ParameterGroups groups{};  ///< ParameterSetOptions::groups
  /// Of the weights, one pass behind each update that it takes, on the context's stream. It is not part of a captured
  /// step, as its share follows from the number of the update; nothing waits. With zero1 each rank averages its share.
  MovingAverageOptions average{};
  comm::BucketOptions buckets{};  ///< element_bytes follows from the arena
  /// How the ranks' gradients are summed (comm/gradients/bucket_sum.hpp): with a 16-bit dtype count_samples is off;
  /// with SumOrder::ranks and equal ranks the bits depend neither on buckets nor on the strategy (the norm of clipping
  /// aside); with `compress` what a rank has not sent yet is kept and goes into the checkpoint; with a hook the sum is
  /// the program's own. UsageError for a sum that does not go with another option (comm::misfit()).
  comm::SumOptions sums{};
  Strategy strategy = Strategy::ddp;
  CudaGraph cuda_graph = CudaGraph::automatic;  ///< automatic: where possible
  /// The gradients of weights are computed on a second stream of the step's own (PlanOptions::beside, which stays
  /// empty here): beside passes over memory, which leave a GPU's arithmetic idle. Takes more memory; changes no number.
  /// On a host nothing runs at once unless the context's stream has a worker; then there are twice as many threads.
  bool weights_beside = false;
  /// Looks at each gradient of each rank before the ranks sum them, on the device, so that non_finite_gradients() can
  /// name those that are not finite. The optimizer then skips such updates (OptimizerOptions::skip_non_finite):
  /// parameters and its states stay. Running statistics of batch norms are forward's and have moved, in channels that
  /// were finite. Reads the gradients once or twice more; changes no number of other steps.
  bool check_gradients = false;
};
/// What a program may choose of them; `sums`, `buckets` and `strategy` follow from words of its own.
void describe(Schema& schema, TrainStepOptions& options);
/// The same options. UsageError for those that are out of range, or do not go together in a step of so many ranks.
[[nodiscard]] const TrainStepOptions& checked_options(const TrainStepOptions& options, int ranks);

}  // namespace lockstep::nn
