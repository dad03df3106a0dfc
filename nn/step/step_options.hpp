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

/// The ranks that train together, and their communicators for a step. `grad` sums gradients on `comm_stream`. If this
/// stream is inline, the sums do not overlap with computation. All objects must outlive the step. The step reports its
/// progress to `watchdog`, unless this is nullptr.
///
/// `statistics` exchanges batch norm statistics on the context's stream (TrainStepOptions::sync_batch_norm). If
/// `statistics` is nullptr, `grad` exchanges them, after all buckets that have started. On a host, pass a second
/// communicator of the same ranks, which nothing else uses during steps (Session::inline_ops(), or a split). The
/// exchanges then need not wait for the buckets in progress. On a GPU, the context's stream always waits for the
/// started buckets, so that collectives have the same order on all ranks. Without this order, the kernels of two
/// communicators could wait for each other and hang.
struct StepRanks {
  comm::Communicator& grad;
  Stream& comm_stream;
  comm::Watchdog* watchdog = nullptr;
  comm::Communicator* statistics = nullptr;
};

/// Selects which part of the training state each rank keeps.
enum class Strategy : unsigned char {
  /// Each rank keeps the whole state. Gradients are summed on all ranks, and each rank updates all parameters.
  ddp,
  /// Each rank keeps 1 / ranks of the optimizer's states. The sum of a gradient goes only to the rank that updates its
  /// parameters (reduce-scatter). This rank then sends the new parameters to all other ranks (all-gather). This is
  /// stage 1 of ZeRO (Rajbhandari et al. 2020, section 5.1). Checkpoints consist of the same files as with ddp.
  /// Clipping and LARS add up their norms in a different order than with ddp, so the last bits can differ.
  zero1
};
[[nodiscard]] std::string_view name_of(Strategy strategy);  ///< "ddp", "zero1"
/// Inverse of name_of(); throws UsageError for an unknown name.
[[nodiscard]] Strategy parse_strategy(std::string_view name);

/// Selects whether the second step is captured into a CUDA graph, which all following steps launch. Captured steps give
/// the same numbers as steps without a graph. `automatic` captures steps if possible.
enum class CudaGraph : unsigned char { automatic, on, off };
/// Returns the reason why steps with this device and communicator cannot be captured, or an empty text if they can.
/// With CudaGraph::on, throws a UsageError with the reason instead of returning it.
[[nodiscard]] std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted);

struct TrainStepOptions {
  std::int64_t max_batch = 0;  ///< largest number of samples in one micro-batch; memory is planned for this number
  /// Number of micro-batches per step; 0 allows a different number in each step. If `microbatches` is not 1, TrainStep
  /// makes two training plans. The plan of the first micro-batch overwrites the gradients, and the plan of all
  /// following ones adds to the gradients.
  std::int64_t microbatches = 0;
  /// true: the step sums the number of samples over all ranks, together with the gradients. false: each batch must give
  /// this sum (Batch::global_valid), and the loss must have no weights (PlanOptions::weights).
  bool count_samples = true;
  /// Decides what happens if the sample weights of a step sum to 0, for example because no rank had a sample. Such a
  /// step never changes anything. false: a later call throws DataError for this step. true: no call throws.
  bool empty_steps = false;
  /// true: batch norm computes its statistics over the micro-batches that all ranks run at the same time, as if they
  /// were one batch (PlanOptions::sync_batch_norm). add() is then collective, and all ranks must give a step the same
  /// number of micro-batches. A micro-batch may be without samples that count. The option has no effect with one rank,
  /// in evaluation, or without batch norm.
  bool sync_batch_norm = false;
  /// Number V of virtual ranks; 0: none. With V > 0, P ranks compute the same numbers that V ranks would compute. V
  /// must be a power of two, and P must divide V. Each rank does the work of V / P consecutive virtual ranks, one after
  /// the other. The caller must call add() V / P times in each step, once per virtual rank, and then update(). Each
  /// virtual rank has its own running statistics.
  ///
  /// Gradients and metrics are summed in one binary tree over all virtual ranks: within a rank by comm::GradientTree,
  /// then over the ranks by comm::SumOrder::tree (sums.order is ignored). Results have the same bits for every P if all
  /// contexts have the same number of threads. The tree needs memory for log2(V / P) more gradient arenas. Steps are
  /// not captured. With V > 0, TrainStep throws UsageError for sync_batch_norm, a 16-bit sums.dtype, several
  /// microbatches, and zero1 with clip_norm or LARS.
  std::int64_t virtual_ranks = 0;
  std::uint64_t seed = 1;  ///< seed of the parameters' initial values
  ParameterArenas lent{};  ///< memory of the caller, in which the step keeps the parameters; must outlive the step
  PlanOptions plan{};
  OptimizerOptions optimizer{};
  double weight_decay = 0;
  bool decay_all = true;     ///< false: biases and norm parameters have no weight decay
  ParameterGroups groups{};  ///< parameter groups, as in ParameterSetOptions::groups
  /// Moving average of the weights. The step updates the average on the context's stream, without waiting. This work is
  /// not part of a captured step, because the weight of the new parameters in the average depends on the number of the
  /// update. With zero1, each rank averages its own part.
  MovingAverageOptions average{};
  comm::BucketOptions buckets{};  ///< rules for the size of buckets; the step sets element_bytes
  /// How the ranks' gradients are summed (comm/gradients/bucket_sum.hpp). A 16-bit dtype requires count_samples =
  /// false. With SumOrder::ranks and a fixed number of ranks, the sums have the same bits for all buckets and
  /// strategies (but the norm of clipping may differ). With `compress`, gradients that a rank has not sent yet are
  /// kept, and are saved in checkpoints. With `hook`, a function of the program computes the sum. TrainStep throws
  /// UsageError if these SumOptions cannot be combined with another option (comm::misfit()).
  comm::SumOptions sums{};
  Strategy strategy = Strategy::ddp;
  CudaGraph cuda_graph = CudaGraph::automatic;  ///< automatic: steps are captured if possible
  /// true: the gradients of weights are computed on a side stream of the step, so that a GPU can compute them at the
  /// same time as other calls. PlanOptions::beside must then be empty. The option needs more memory and does not change
  /// results. On a host, both streams run at the same time only if the context's stream has a worker; the step then
  /// uses twice as many threads.
  bool weights_beside = false;
  /// true: the device checks each gradient of each rank before the ranks sum the gradients, so that
  /// non_finite_gradients() can name gradients that are not finite. The optimizer then skips updates with such
  /// gradients (OptimizerOptions::skip_non_finite): parameters and optimizer states do not change. The running
  /// statistics of batch norm still change in channels with finite values, because forward computes them. The check
  /// does not change the results of steps with finite gradients.
  bool check_gradients = false;
};
/// Adds to `schema` the options that a program may offer its users. The program itself must add options for `sums`,
/// `buckets` and `strategy`.
void describe(Schema& schema, TrainStepOptions& options);
/// Returns `options`. Throws UsageError if an option is out of range, or if options exclude each other with this number
/// of ranks.
[[nodiscard]] const TrainStepOptions& checked_options(const TrainStepOptions& options, int ranks);

}  // namespace lockstep::nn
