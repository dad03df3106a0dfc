#include <lockstep/nn/step/step_options.hpp>

#include <bit>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

namespace {

template <class... Text>
void expect(bool holds, const Text&... text) {
  require<UsageError>(holds, "train step: ", text...);
}

}  // namespace

std::string_view name_of(Strategy strategy) {
  return strategy == Strategy::zero1 ? "zero1" : "ddp";
}

Strategy parse_strategy(std::string_view name) {
  require<UsageError>(name == "ddp" || name == "zero1", "strategy is '", name, "', expected ddp or zero1");
  return name == "zero1" ? Strategy::zero1 : Strategy::ddp;
}

std::string graph_obstacle(Device device, const comm::Communicator& gradients, CudaGraph wanted) {
  std::string obstacle = wanted == CudaGraph::off          ? "switched off"
                         : device.kind != DeviceKind::cuda ? concat("the device is ", device)
                         : gradients.can_be_captured()
                             ? ""
                             : concat("the ", gradients.backend(), " communicator cannot be captured");
  require<UsageError>(wanted != CudaGraph::on || obstacle.empty(), "cuda graph is on, expected off: ", obstacle);
  return obstacle;
}

const TrainStepOptions& checked_options(const TrainStepOptions& o, int ranks) {
  if (const std::int64_t all = o.virtual_ranks; all != 0) {
    expect(all > 0 && std::has_single_bit(static_cast<std::uint64_t>(all)) && all % ranks == 0, all,
           " virtual ranks on ", ranks, ranks == 1 ? " rank" : " ranks",
           ", expected a power of two that the ranks divide");
    expect(o.microbatches <= 1, o.microbatches,
           " micro-batches with virtual ranks, expected 1: each virtual rank is one");
    expect(!o.sync_batch_norm,
           "sync_batch_norm is on with virtual ranks, expected it off: each of them has statistics of its own");
    expect(size_of(o.sums.dtype) != 2, "gradients travel as ", o.sums.dtype,
           " with virtual ranks, expected f32: the sums would be rounded where ranks meet");
    expect(o.strategy != Strategy::zero1 || o.optimizer.clip_norm == 0,
           "the strategy is zero1 with virtual ranks and a clip_norm of ", o.optimizer.clip_norm,
           ", expected ddp: zero1 adds the norm by rank");
    const RuleTraits& rule = traits_of(o.optimizer);
    expect(o.strategy != Strategy::zero1 || !rule.layer_norms, "the strategy is zero1 with virtual ranks and ",
           rule.name, ", expected ddp: zero1 adds norms by rank");
  }
  if (o.plan.loss == Loss::given) {
    expect(o.plan.weights == LossWeights::none, "the loss is given and has weights, expected none: the caller weighs");
    expect(o.virtual_ranks == 0, "the loss is given with ", o.virtual_ranks, " virtual ranks, expected 0");
  }
  expect(o.max_batch >= 1, "max_batch is ", o.max_batch, ", expected at least 1");
  require_moving_average(o.average);
  expect(o.microbatches >= 0, "microbatches is ", o.microbatches, ", expected at least 0");
  expect(o.plan.weights == LossWeights::none || o.sums.dtype == DType::f32, "gradients travel as ", o.sums.dtype,
         " (sums.dtype), which would round the sum of the weights of the loss (PlanOptions::weights), too; "
         "expected f32");
  expect(!o.count_samples || o.sums.dtype == DType::f32, "gradients travel as ", o.sums.dtype,
         ", which would round the number of samples, too; expected f32, or count_samples off and "
         "Batch::global_valid");
  expect(o.count_samples || o.plan.weights == LossWeights::none,
         "count_samples is off with weights of the loss, expected it on: their sum is the divisor");
  expect(!o.plan.accumulate, "PlanOptions::accumulate is on, expected TrainStepOptions::microbatches");
  expect(o.plan.beside == nullptr, "PlanOptions::beside is given, expected TrainStepOptions::weights_beside");
  expect(!o.plan.exchange.given(), "PlanOptions::exchange is given, expected the ranks of StepRanks");
  expect(!o.plan.sync_batch_norm, "PlanOptions::sync_batch_norm is on, expected TrainStepOptions::sync_batch_norm");
  return o;
}

void describe(Schema& schema, TrainStepOptions& options) {
  schema.group("Training");
  describe(schema, options.plan);
  describe(schema, options.optimizer);
  schema
      .add("weight_decay", options.weight_decay,
           concat("weight decay, as an L2 penalty; ", rules_with(&RuleTraits::decoupled, ", "),
                  ": decoupled, an update shrinks parameters by learning rate x weight decay"))
      .at_least(0)
      .is_common();
  schema
      .choice<bool>("no_decay_norm", options.decay_all, {{"false", true}, {"true", false}},
                    concat("apply no weight decay to biases and norm parameters",
                           options.decay_all ? "" : "; the default here, unless --decay-norm is given"))
      .looks_like("")
      .taken_back_by("decay_norm")
      .instead_of("norm_weight_decay")
      .instead_of("bias_weight_decay");
  describe(schema, options.groups);
  describe(schema, options.average);
  schema.add("seed", options.seed, "seed of all random numbers: weights, order, augmentation").is_common();
  schema.group("Ranks");
  schema
      .add("virtual_ranks", options.virtual_ranks,
           "with --reproducible world: number of parts of a batch, a power of two that the number of ranks divides")
      .by_default("none")
      .decides_numbers();
  schema
      .add("check_gradients", options.check_gradients,
           "name the first gradient of each rank that is not finite before the ranks sum gradients; such a gradient "
           "ends the job, unless a loss scale, --clip-norm or --skip-non-finite lets an update be skipped")
      .equal_on_ranks();
  schema.add("sync_batch_norm", options.sync_batch_norm,
             "compute batch norm in training from the samples of all ranks, not from each rank's own samples");
  schema.choice<CudaGraph>("cuda_graph", options.cuda_graph,
                           {{"on", CudaGraph::on}, {"off", CudaGraph::off}, {"auto", CudaGraph::automatic}},
                           "on a GPU: run each step as one CUDA graph; auto: wherever a step can be captured");
  schema.add("weights_beside", options.weights_beside,
             "on a GPU: compute weight gradients on a second stream, at the same time as passes over memory; more "
             "memory, equal bits");
}

}  // namespace lockstep::nn
