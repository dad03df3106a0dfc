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
  s.add("recipe", o.recipe,
        "options of a run that others have described, by name or ./FILE.toml; resnet50-v1, resnet50-v2, resnet50-lars, "
        "cifar-resnet20, cifar-airbench94 (share/lockstep/recipes); what is given here wins")
      .path()
      .looks_like("NAME")
      .of_this_start()
      .is_common();
  s.add("batch_size", o.batch_size, "samples of one update, of all ranks together")
      .by_default(std::to_string(o.default_batch))
      .at_least(1)
      .instead_of("batch_per_rank")
      .is_common();
  s.add("batch_per_rank", o.batch_per_rank, "instead of --batch-size: samples of one rank in one micro-batch")
      .at_least(1)
      .instead_of("batch_size");
  s.add("lr", o.lr, "learning rate, or auto: by optimizer and model").is_common();
  s.add("milestones", o.milestones,
        "step: epochs at which the rate is multiplied by --gamma, e.g. 30,60,80; none: 1/2 and 3/4 of the run");
  s.add("warmup_steps", o.warmup_steps, "steps of the warm-up; -1: a twentieth of the run")
      .at_least(-1)
      .instead_of("warmup_epochs");
  s.add("warmup_epochs", o.warmup_epochs, "the same in epochs").between(0, 1e9).instead_of("warmup_steps");
  s.add("freeze", o.freeze,
        "layers or parameters that keep their values, e.g. conv1,bn1,layer1; no gradients are computed, sent or "
        "stored for them, and backward ends after the first ones; running statistics go on");
  s.add("workers", o.workers,
        "threads a rank that read ahead; 0: the training thread reads; -1: processors - 1, 1 to 8")
      .at_least(-1)
      .at_most(Loader::kMaxWorkers);
}

void describe_ranks(Schema& s, TrainingOptions& o) {
  s.group("Ranks");
  s.add("threads", o.threads, "compute threads a rank; 0: OMP_NUM_THREADS, else the rank's share")
      .at_least(0)
      .at_most(comm::kMostComputeThreads);
  s.add("bucket_mb", o.bucket_mb, "gradient bucket size in MB; 0: large buckets and a small last one")
      .by_default("0, or by --cost");
  s.add("cost", o.cost, "cost.json of lockstep-cost, run with these ranks: buckets by what an all-reduce costs");
  s.add("reduce_dtype", o.reduce_dtype,
        "gradients are sent and added as fp32, or rounded to bf16 or fp16: half the bytes, less exact sums")
      .one_of({"fp32", "bf16", "fp16"});
  s.add("compress", o.compress, comm::sum_names() + "; " + comm::sum_names_help()).looks_like("NAME").is_common();
  s.add(
       "strategy", o.strategy,
       "ddp, zero1 or single; ddp: every rank keeps all of the optimizer's states; zero1: 1 / ranks of them; single: a "
       "job of one rank")
      .looks_like("NAME")
      .is_common();
  s.add("reproducible", o.reproducible,
        "run: equal runs give equal bits; layout: bits do not depend on --bucket-mb, --strategy and --overlap, as "
        "gradients are added in rank order; world: nor on the number of ranks, by --virtual-ranks")
      .one_of({"run", "layout", "world"});
  s.add("dependent_launches", o.dependent_launches,
        "on a GPU: a kernel may begin before the writes of the one before it can be seen, and waits for them itself");
  using Overlap = comm::RankContextOptions::Overlap;
  s.choice<Overlap>("overlap", o.overlap, {{"on", Overlap::on}, {"off", Overlap::off}, {"auto", Overlap::automatic}},
                    "reduce gradients during backward; auto: on GPUs, and on hosts with a processor to spare");
  s.choice<Tune>("tune", o.tune,
                 {{"on", Tune::on}, {"fast", Tune::fast}, {"off", Tune::off}, {"auto", Tune::automatic}},
                 "time what libraries offer for each convolution and product, and take the fastest; fast: without "
                 "engines of cuDNN that are compiled at run time; auto: on for GPUs, or with --choices");
  s.add("choices", o.choices, "JSON file that keeps the timings, by library version, device and shape");
  s.add("verify_choices", o.verify_choices,
        "compare each convolution and product of a library with our own kernel before training, and refuse what is "
        "wrong; LOCKSTEP_VERIFY=1 does the same");
  s.add("workspace_limit", o.workspace_mb, "tuning: maximum workspace of one call, in MB")
      .at_least(0)
      .at_most(static_cast<double>(std::int64_t{1} << 40));
  s.add("watchdog", o.watchdog,
        "end the job when a rank makes no progress for so many seconds, and say what each was doing; 0: never");
  s.add("stall_report", o.stall_report,
        "say what the ranks are doing when one makes no progress for so many seconds, a quarter of --watchdog if not "
        "given; 0: never");
  s.add("stop_within", o.stop_within,
        "the ranks ask each other for a stop (SIGTERM, SIGINT, SIGUSR1) every so many seconds, 0.5 if not given; a "
        "warning when a step takes longer")
      .above(0);
}

void describe_results(Schema& s, TrainingOptions& o) {
  s.group("Results");
  s.add("out", o.out, "folder for results").path().of_this_start().is_common();
  s.add("tensorboard", o.tensorboard, "write scalars for TensorBoard too; tensorboard --logdir OUT/tensorboard")
      .is_common();
  s.add("report_waits", o.report_waits,
        "count the calls that made rank 0 wait for its device, in the first N steps and later; 0: do not")
      .at_least(0);
  s.add("trace", o.trace,
        "write a timeline of some steps on all ranks to this file; for ui.perfetto.dev; says what communication cost "
        "and "
        "which rank the others waited for")
      .path()
      .of_this_start()
      .is_common();
  s.add("trace_steps", o.trace_steps,
        "A:B, the steps of the timeline, counted from where this run begins; 10:20 if not given, earlier in a shorter "
        "run")
      .looks_like("A:B")
      .of_this_start();
  s.add("init", o.init,
        "start from the weights of this checkpoint, .safetensors or .pth; .pth: of torch.save; of a folder of results "
        "its best; of a file with another number of classes the last layer's are left out")
      .path()
      .is_common();
  s.add("resume", o.resume,
        "go on from this checkpoint, or auto: from OUT/last; else from the newest of OUT, else from --init, else anew")
      .path()
      .of_this_start()
      .is_common();
  s.add("overwrite", o.overwrite, "delete the checkpoints in OUT; without it such a folder is refused")
      .of_this_start()
      .is_common();
  s.add("evaluate", o.evaluate,
        "only evaluate this checkpoint, .safetensors or .pth; on the test set; of a folder of results its best")
      .path()
      .of_this_start()
      .is_common();
  s.add("dry_run", o.dry_run, "print the plan, layer by layer, and stop").of_this_start().is_common();
  s.add("describe_gpu", o.describe_gpu,
        "with --dry-run on the CPU: plan for this GPU and predict the time of a step; " + known_gpu_names() +
            ". --trace then takes a predicted timeline, which lockstep-scale reads")
      .path()
      .of_this_start();
  s.add("fused_norms", o.fused_norms,
        "with --describe-gpu: plan as if cuDNN's convolutions took the sums of batch norms wherever they can")
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
