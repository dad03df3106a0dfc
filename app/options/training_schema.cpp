#include <lockstep/app/options/training_options.hpp>

#include <cstdint>
#include <string>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

namespace {

void describe_training(Schema& s, TrainingOptions& o) {
  s.group("Training");
  s.add(
       "recipe", o.recipe,
       "recipe, the options of a published run: a name or ./FILE.toml; names: resnet50-v1, resnet50-v2, resnet50-lars, "
       "cifar-resnet20, cifar-airbench94 (share/lockstep/recipes); options of the command line and of --config win")
      .path()
      .looks_like("NAME")
      .of_this_start()
      .is_common();
  s.add("batch_size", o.batch_size, "batch size: samples of one update, of all ranks together")
      .by_default(std::to_string(o.default_batch))
      .at_least(1)
      .instead_of("batch_per_rank")
      .is_common();
  s.add("batch_per_rank", o.batch_per_rank, "batch size of one rank in one micro-batch; replaces --batch-size")
      .at_least(1)
      .instead_of("batch_size");
  s.add("lr", o.lr, "learning rate, or auto: by optimizer, model and batch size").is_common();
  s.add("milestones", o.milestones,
        "with --schedule step: epochs at which the learning rate is multiplied by --gamma, e.g. 30,60,80; default: 1/2 "
        "and 3/4 of the run");
  s.add("warmup_steps", o.warmup_steps, "length of the warm-up in steps; -1: a twentieth of the run")
      .at_least(-1)
      .instead_of("warmup_epochs");
  s.add("warmup_epochs", o.warmup_epochs, "length of the warm-up in epochs; replaces --warmup-steps")
      .between(0, 1e9)
      .instead_of("warmup_steps");
  s.add("freeze", o.freeze,
        "layers or parameters that keep their values, e.g. conv1,bn1,layer1; no gradients are computed, sent or stored "
        "for frozen parameters, and backward ends at the first layer that trains; running statistics still change");
  s.add("workers", o.workers,
        "threads of each rank that read batches ahead; 0: the training thread reads; -1: the rank's processors - 1, at "
        "least 1, at most 8, but 0 where ranks outnumber processors")
      .at_least(-1)
      .at_most(Loader::kMaxWorkers);
}

void describe_ranks(Schema& s, TrainingOptions& o) {
  s.group("Ranks");
  s.add("threads", o.threads,
        "compute threads of each rank; 0: OMP_NUM_THREADS, otherwise the rank's share of the processors")
      .at_least(0)
      .at_most(comm::kMostComputeThreads);
  s.add("bucket_mb", o.bucket_mb, "size of gradient buckets in MB; 0: large buckets and a small last one")
      .by_default("0, or by --cost");
  s.add("cost", o.cost,
        "file cost.json that lockstep-cost wrote with these ranks; the measured time of an all-reduce decides the size "
        "of gradient buckets");
  s.add("reduce_dtype", o.reduce_dtype,
        "number format in which gradients are sent and added; bf16, fp16: half the bytes, less exact sums")
      .one_of({"fp32", "bf16", "fp16"});
  s.add("compress", o.compress, "gradient compression: " + comm::sum_names() + "; " + comm::sum_names_help())
      .looks_like("NAME")
      .is_common();
  s.add("strategy", o.strategy,
        "parallel strategy: ddp, zero1 or single; ddp: every rank keeps all of the optimizer's states; zero1: every "
        "rank keeps 1 / ranks of the states; single: a job of one rank")
      .looks_like("NAME")
      .is_common();
  s.add("reproducible", o.reproducible,
        "runs that give equal bits; run: equal runs; layout: also runs with other --bucket-mb, --strategy and "
        "--overlap, because gradients are added in rank order; world: also runs on another number of ranks "
        "(--virtual-ranks)")
      .one_of({"run", "layout", "world"});
  s.add("dependent_launches", o.dependent_launches,
        "on a GPU: let a kernel begin before the writes of the previous kernel can be seen; the later kernel itself "
        "waits for these writes");
  using Overlap = comm::RankContextOptions::Overlap;
  s.choice<Overlap>("overlap", o.overlap, {{"on", Overlap::on}, {"off", Overlap::off}, {"auto", Overlap::automatic}},
                    "all-reduce gradients during backward; auto: on GPUs, and on CPUs with a processor to spare");
  s.choice<Tune>(
      "tune", o.tune, {{"on", Tune::on}, {"fast", Tune::fast}, {"off", Tune::off}, {"auto", Tune::automatic}},
      "time the algorithms of libraries for each convolution and matrix product, and use the fastest; fast: without "
      "cuDNN's engines that are compiled at run time; auto: on for GPUs without --virtual-ranks, and with --choices");
  s.add("choices", o.choices, "JSON file that keeps the timings of --tune, by library version, device and shape");
  s.add("verify_choices", o.verify_choices,
        "compare each convolution and matrix product of a library with our own kernel before training, and refuse "
        "algorithms with wrong results; LOCKSTEP_VERIFY=1 does the same");
  s.add("workspace_limit", o.workspace_mb, "largest workspace in MB of one library call that --tune times")
      .at_least(0)
      .at_most(static_cast<double>(std::int64_t{1} << 40));
  s.add("watchdog", o.watchdog,
        "seconds without progress of a rank after which the job ends and says what each rank was doing; 0: never");
  s.add("stall_report", o.stall_report,
        "seconds without progress of a rank after which the job says what each rank is doing; default: a quarter of "
        "--watchdog; 0: never");
  s.add("stop_within", o.stop_within,
        "seconds from one check of the ranks for a stop (SIGTERM, SIGINT, SIGUSR1) to the next; default: 0.5; this "
        "option also warns of longer steps")
      .above(0);
}

void describe_results(Schema& s, TrainingOptions& o) {
  s.group("Results");
  s.add("out", o.out, "folder for results").path().of_this_start().is_common();
  s.add("tensorboard", o.tensorboard,
        "also write scalars for TensorBoard; shown by tensorboard --logdir OUT/tensorboard")
      .is_common();
  s.add(
       "report_waits", o.report_waits,
       "count the calls that made rank 0 wait for its device, in the first N steps and in later steps; 0: do not count")
      .at_least(0);
  s.add("trace", o.trace,
        "write a timeline of some steps on all ranks to this file; ui.perfetto.dev shows the timeline; the run also "
        "says what communication cost and which rank the others waited for")
      .path()
      .of_this_start()
      .is_common();
  s.add("trace_steps", o.trace_steps,
        "steps A:B of the timeline, counted from where this run begins; default: 10:20, earlier in a shorter run")
      .looks_like("A:B")
      .of_this_start();
  s.add("init", o.init,
        "start from the weights of this checkpoint, .safetensors or .pth; .pth: a file of torch.save; a folder of "
        "results: its best checkpoint; a file with another number of classes: all but the last layer's weights")
      .path()
      .is_common();
  s.add("resume", o.resume,
        "go on from this checkpoint, or auto: from OUT/last; without OUT/last, auto takes the newest checkpoint in "
        "OUT, else --init, else begins anew")
      .path()
      .of_this_start()
      .is_common();
  s.add("overwrite", o.overwrite,
        "delete the checkpoints in OUT; without this option a folder with checkpoints is refused")
      .of_this_start()
      .is_common();
  s.add("evaluate", o.evaluate,
        "only evaluate this checkpoint, .safetensors or .pth; the evaluation uses the test set; a folder of results: "
        "its best checkpoint")
      .path()
      .of_this_start()
      .is_common();
  s.add("dry_run", o.dry_run, "print the plan of a step, layer by layer, and stop").of_this_start().is_common();
  s.add("describe_gpu", o.describe_gpu,
        "with --dry-run on the CPU: plan for this GPU and predict the time of a step; GPUs: " + known_gpu_names() +
            "; --trace then writes a predicted timeline, which lockstep-scale reads")
      .path()
      .of_this_start();
  s.add("fused_norms", o.fused_norms,
        "with --describe-gpu: plan as if cuDNN's convolutions computed the sums of batch norms wherever possible")
      .of_this_start();
}

}  // namespace

void describe(Schema& schema, TrainingOptions& options) {
  describe_training(schema, options);
  describe(schema, options.run);
  describe(schema, options.trainer);
  describe_ranks(schema, options);
  describe_results(schema, options);
}

}  // namespace lockstep::nn
