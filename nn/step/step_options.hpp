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

/// The ranks that train together, as a step uses them. `grad` sums gradients on `comm_stream`; if that stream is
/// inline, the sums do not overlap computation. All objects must outlive the step. The step tells `watchdog`, if given,
/// what it is doing.
///
/// `statistics` exchanges batch norm statistics (TrainStepOptions::sync_batch_norm) on the context's stream: in
/// forward, and between the layers of backward while `grad` may be under way on comm_stream. On a host, give a second
/// communicator of the same ranks (Session::inline_ops(), a split) that nothing else uses during steps. Without
/// `statistics`, `grad` exchanges the statistics, after the buckets that have started. On a GPU the context's stream
/// always waits for the started buckets, so that all ranks have one order. Otherwise the kernels of two communicators
/// could wait for each other's place on the device and hang.
struct StepRanks {
  comm::Communicator& grad;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
};

/// Which part of the training state each rank keeps.
enum class Strategy : unsigned char {
  /// Each rank keeps everything. Gradients are summed on all ranks, and all ranks make the same update.
  ddp,
  /// Each rank keeps 1 / ranks of the optimizer's states. Gradients are summed on the rank that updates their
  /// parameters (reduce-scatter), and that rank sends the new parameters to all other ranks (all-gather): stage 1 of
  /// ZeRO (Rajbhandari et al. 2020, section 5.1). Checkpoints are the same files as with ddp; clipping and lars sum
  /// norms in another order than with ddp.
  zero1
};
[[nodiscard]] std::string_view name_of(Strategy strategy);     ///< "ddp", "zero1"
[[nodiscard]] Strategy parse_strategy(std::string_view name);  ///< inverse of name_of(); UsageError for an unknown name

/// Whether a step is captured once into a CUDA graph that later steps launch. Captured steps give the same numbers as
/// steps that are not captured.
enum class CudaGraph : unsigned char { automatic, on, off };
/// Returns why steps on this device with this communicator are not captured, or an empty text if they are. With
/// CudaGraph::on throws UsageError that names the reason.
[[nodiscard]] std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted);

struct TrainStepOptions {
  std::int64_t max_batch = 0;  ///< largest number of samples in one micro-batch, for which memory is planned
  /// Number of micro-batches that the caller will give per step; 0 allows any number. Unless the number is 1, two plans
  /// are made: one overwrites the gradients, for the first micro-batch, and one adds to them, for all others.
  std::int64_t microbatches = 0;
  /// true: the step counts its samples over all ranks and reduces the count with the gradients. false: each batch gives
  /// the count (Batch::global_valid), and the loss has no weights (PlanOptions::weights).
  bool count_samples = true;
  /// true: if the sample weights of a step sum to 0 (for example because no rank had a sample), no later call throws
  /// DataError for that step. With true and with false such a step changes nothing.
  bool empty_steps = false;
  /// true: batch norm takes its statistics over the micro-batches that all ranks run at the same time, as if they were
  /// one batch on one rank (PlanOptions::sync_batch_norm). add() is then collective. All ranks must give a step equally
  /// many micro-batches; some of these may have no sample that counts. The option changes nothing with one rank, in
  /// evaluation, or without batch norm.
  bool sync_batch_norm = false;
  /// Number V of virtual ranks; 0: none. With V > 0, P ranks compute the numbers that V ranks would compute. V must be
  /// a power of two, and P a divisor of V. Each rank does the work of V / P virtual ranks, from number rank * V / P on,
  /// one after the other: a step is V / P calls of add(), one per virtual rank, then update(). Each virtual rank has
  /// its own running statistics; each add() overwrites the gradients. Gradients and metrics are added in one tree
  /// over all virtual ranks: gradients in comm::GradientTree within a rank, then in comm::SumOrder::tree over the
  /// ranks, whatever sums.order says. Results have the same bits for every P if all contexts have equally many threads.
  /// The tree takes log2(V / P) more arenas of gradients. Steps are not captured. TrainStep throws UsageError
  /// for V > 0 with sync_batch_norm, a 16-bit sums.dtype, several microbatches, or zero1 with clip_norm or lars.
  std::int64_t virtual_ranks = 0;
  std::uint64_t seed = 1;  ///< seed of the parameters' initial values
  ParameterArenas lent{};  ///< memory for the parameters; must outlive the step, which overwrites it
  PlanOptions plan{};
  OptimizerOptions optimizer{};
  double weight_decay = 0;
  bool decay_all = true;     ///< false: biases and norm parameters have no weight decay
  ParameterGroups groups{};  ///< groups for ParameterSetOptions::groups
  /// Moving average of the weights: one pass on the context's stream after each update that is averaged. A captured
  /// step does not contain the pass, because the weight of the new values depends on the number of the update. Nothing
  /// waits. With zero1 each rank averages its own part.
  MovingAverageOptions average{};
  comm::BucketOptions buckets{};  ///< size rules of the buckets; the step sets element_bytes
  /// How the gradients of the ranks are summed (comm/gradients/bucket_sum.hpp). A 16-bit dtype needs count_samples off.
  /// With SumOrder::ranks and equally many ranks, the bits depend neither on buckets nor on the strategy (except the
  /// norm of clipping). With `compress`, gradients that a rank has not sent yet are kept and saved in checkpoints. With
  /// a hook the program computes the sum. UsageError if the sum excludes another option (comm::misfit()).
  comm::SumOptions sums{};
  Strategy strategy = Strategy::ddp;
  CudaGraph cuda_graph = CudaGraph::automatic;  ///< automatic: steps are captured if possible
  /// Computes the gradients of weights on a side stream of the step (PlanOptions::beside; leave that option empty),
  /// while other passes leave a GPU's arithmetic idle. Takes more memory; changes no number. On a host both streams run
  /// at once only if the context's stream has a worker; the step then uses twice as many threads.
  bool weights_beside = false;
  /// Checks each gradient of each rank on the device before the ranks sum the gradients, so that non_finite_gradients()
  /// can name gradients that are not finite. The optimizer skips updates with gradients that are not finite
  /// (OptimizerOptions::skip_non_finite): parameters and optimizer states do not change. The running statistics of
  /// batch norm still change in channels that were finite, because forward computes them. The check reads the gradients
  /// once or twice more; changes no number of other steps.
  bool check_gradients = false;
};
/// Adds to `schema` the options that a user may choose. A program itself adds options for `sums`, `buckets` and
/// `strategy`.
void describe(Schema& schema, TrainStepOptions& options);
/// Returns `options`. UsageError if an option is out of range, or if options exclude each other with `ranks` ranks.
[[nodiscard]] const TrainStepOptions& checked_options(const TrainStepOptions& options, int ranks);

}  // namespace lockstep::nn
