#include <lockstep/nn/step/train_step.hpp>

#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

void describe(Schema& schema, TrainStepOptions& options) {
  schema.group("Training");
  describe(schema, options.plan);
  describe(schema, options.optimizer);
  schema
      .add("weight_decay", options.weight_decay,
           concat("L2 penalty; ", rules_with(&RuleTraits::decoupled, ", "),
                  ": decoupled, parameters shrink by lr times this"))
      .at_least(0)
      .is_common();
  schema
      .choice<bool>("no_decay_norm", options.decay_all, {{"false", true}, {"true", false}},
                    concat("no decay on biases and norm parameters",
                           options.decay_all ? "" : ", as here without --decay-norm"))
      .looks_like("")  // a flag
      .taken_back_by("decay_norm")
      .instead_of("norm_weight_decay")
      .instead_of("bias_weight_decay");
  describe(schema, options.groups);
  describe(schema, options.average);
  schema.add("seed", options.seed, "of all that is random: weights, order, augmentation").is_common();
  schema.group("Ranks");
  schema
      .add("virtual_ranks", options.virtual_ranks,
           "of --reproducible world: a batch is divided over so many, a power of two that the ranks divide")
      .by_default("none")
      .decides_numbers();
  schema
      .add("check_gradients", options.check_gradients,
           "name the first gradient of each rank that is not finite before the ranks sum them; ends the job, unless "
           "a loss scale, --clip-norm or --skip-non-finite lets an update be skipped")
      .equal_on_ranks();
  schema.add("sync_batch_norm", options.sync_batch_norm,
             "batch norm computes with the samples of all ranks in training, not with each rank's own");
  schema.choice<CudaGraph>("cuda_graph", options.cuda_graph,
                           {{"on", CudaGraph::on}, {"off", CudaGraph::off}, {"auto", CudaGraph::automatic}},
                           "on a GPU: run each step as one CUDA graph; auto: where it can be");
  schema.add("weights_beside", options.weights_beside,
             "on a GPU: weight gradients on a second stream, beside passes over memory; more memory, the same bits");
}

}  // namespace lockstep::nn
