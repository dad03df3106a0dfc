#include <lockstep/app/options/training_options.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/runtime/base/schema.hpp>

namespace lockstep::nn {

namespace {

const std::vector<std::pair<std::string, Switch>> kSwitch{
    {"on", Switch::on}, {"off", Switch::off}, {"auto", Switch::automatic}};

void describe_training(Schema& s, TrainingOptions& o) {
  s.group("Training");
  s.add("recipe", o.recipe,
        "options of a run that others have described, by name or ./FILE.toml; resnet50-v1, resnet50-v2, resnet50-lars, "
        "cifar-resnet20, cifar-airbench94 (share/lockstep/recipes); what is given here wins")
      .path()
      .looks_like("NAME")
      .of_this_start()
      .is_common();
  s.add("epochs", o.epochs, "passes over the training set").at_least(1).is_common();
  s.add("steps", o.steps, "end the run, and its schedule, after N updates; give --resume the same N; 0: no limit")
      .at_least(0)
      .is_common();
  s.add("batch_size", o.batch_size, "samples of one update, of all ranks together")
      .by_default(std::to_string(o.default_batch))
      .at_least(1)
      .instead_of("batch_per_rank")
      .is_common();
  s.add("batch_per_rank", o.batch_per_rank, "instead of --batch-size: samples of one rank in one micro-batch")
      .at_least(1)
      .instead_of("batch_size");
  s.add("accumulate", o.accumulate, "micro-batches of one update, whose gradients add up; takes the memory of one")
      .at_least(1)
      .is_common();
  s.add("recompute", o.recompute,
        "activations that are not kept from forward to backward but computed again, bit for bit, so that a larger "
        "batch fits; cheap: outputs of norms, activations, pools and dropout; blocks: also of convolutions and "
        "products, all but what lies between blocks")
      .one_of({"off", "cheap", "blocks"});
  s.add("dtype", o.dtype,
        "fp32 (or f32), tf32, bf16, fp16 or f64; tf32: fp32, on GPUs products round their factors; bf16, fp16: "
        "activations and weights in 16 bits, master weights and sums in fp32 (fp16 on GPUs only); f64: host only")
      .one_of({"fp32", "f32", "tf32", "bf16", "fp16", "f64"})
      .looks_like("NAME")
      .is_common();
  s.add("optimizer", o.optimizer,
        "sgd, adam, adamw, lars or muon; adamw: decoupled weight decay; muon: hidden "
        "matrices, adamw for the rest")
      .looks_like("NAME")
      .is_common();
  s.add("lr", o.lr, "learning rate, or auto: by optimizer and model").is_common();
  s.add("schedule", o.schedule, "constant, step, cosine or polynomial").looks_like("NAME").is_common();
  s.add("milestones", o.milestones,
        "step: epochs at which the rate is multiplied by --gamma, e.g. 30,60,80; none: 1/2 and 3/4 of the run");
  s.add("gamma", o.gamma, "step: factor at a milestone").above(0);
  s.add("power", o.power, "polynomial: the rate is what is left of the run to this power").above(0);
  s.add("lr_end", o.lr_end, "cosine, polynomial: rate at the end of the run").at_least(0);
  s.add("warmup", o.warmup, "linear, constant or exponential").looks_like("NAME");
  s.add("warmup_steps", o.warmup_steps, "steps of the warm-up; -1: a twentieth of the run")
      .at_least(-1)
      .instead_of("warmup_epochs");
  s.add("warmup_epochs", o.warmup_epochs, "the same in epochs").between(0, 1e9).instead_of("warmup_steps");
  s.add("warmup_factor", o.warmup_factor,
        "of the rate where the warm-up begins; linear without it: from 1 / its steps");
  s.add("momentum", o.momentum, "of sgd, lars and muon (0.95 with --nesterov is usual for muon)").fraction();
  s.add("nesterov", o.nesterov, "Nesterov momentum");
  s.add("beta1", o.beta1, "decay of the mean of gradients, adam, adamw and muon").fraction();
  s.add("beta2", o.beta2, "decay of the mean of their squares, adam, adamw and muon").fraction();
  s.add("epsilon", o.epsilon, "added to the denominator; lars: to the norm of the gradients").between(1e-30, 1e30);
  s.add("trust_coefficient", o.trust_coefficient, "lars: norm of an update relative to the norm of its tensor")
      .above(0);
  s.add("clip_value", o.clip_value, "bring each gradient into [-value, value], behind --clip-norm; 0: off").at_least(0);
  s.add("clip_norm", o.clip_norm,
        "scale gradients down to this norm; steps whose norm is not finite are skipped; 0: off")
      .at_least(0)
      .is_common();
  s.add("skip_non_finite", o.skip_non_finite, "leave out updates from gradients that are not finite");
  s.add("loss_scale", o.loss_scale,
        "factor of the loss in training: dynamic (halved when gradients are not finite, doubled after 2000 updates), a "
        "number, off; auto: dynamic for fp16");
  s.add("weight_decay", o.weight_decay, "L2 penalty; adamw: decoupled, parameters shrink by lr times this")
      .at_least(0)
      .is_common();
  s.add("no_decay_norm", o.no_decay_norm,
        std::string("no decay on biases and norm parameters") +
            (o.default_no_decay_norm ? ", as here without --decay-norm" : ""))
      .taken_back_by("decay_norm")
      .instead_of("norm_weight_decay")
      .instead_of("bias_weight_decay");
  s.add("norm_weight_decay", o.norm_weight_decay, "decay of norm parameters, instead of --weight-decay")
      .at_least(0)
      .instead_of("no_decay_norm");
  s.add("bias_weight_decay", o.bias_weight_decay, "decay of biases of other layers, instead of --weight-decay")
      .at_least(0)
      .instead_of("no_decay_norm");
  s.add("rate_scale", o.rate_scales,
        "factors of the learning rate by parameter name, e.g. 'layer4.*=0.1,fc.*=1'; the last that fits counts")
      .looks_like("PATTERN=FACTOR");
  s.add("freeze", o.freeze,
        "layers or parameters that keep their values, e.g. conv1,bn1,layer1; no gradients are computed, sent or "
        "stored for them, and backward ends behind the first ones; running statistics go on");
  s.add("ema", o.ema, "decay of a moving average of the weights; the average is evaluated and kept, too; 0: none")
      .fraction()
      .is_common();
  s.add("ema_every", o.ema_every, "updates from one averaging to the next, over the whole run").at_least(1);
  s.add("ema_warmup", o.ema_warmup,
        "updates whose averagings, and the first behind them, copy the weights; -1: those of the warm-up")
      .at_least(-1);
  s.add("ema_ramp", o.ema_ramp, "behind these the decay grows up to --ema, 1 - (1 + n)^(-2/3) at the n-th");
  s.add("label_smoothing", o.label_smoothing, "0 to 1").fraction().is_common();
  s.add("top_k", o.top_k, "test accuracy among the K largest outputs too; 0: no").at_least(0);
  s.add("keep_last", o.keep_last, "train on the partial last batch of an epoch too");
  s.add("shuffle_chunk", o.shuffle_chunk,
        "samples that lie side by side in a packed file or in token files and are read together; the order shuffles "
        "chunks of so many, then the samples of 16 chunks; a file that lies class by class is shuffled first "
        "(lockstep-pack --shuffle), or batches hold few classes; 0: any sample may follow any other")
      .at_least(0);
  s.add("seed", o.seed, "of all that is random: weights, order, augmentation").is_common();
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
  s.add("compress", o.compress, concat(comm::sum_names(), "; ", comm::sum_names_help())).looks_like("NAME").is_common();
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
  s.add("virtual_ranks", o.virtual_ranks,
        "of --reproducible world: a batch is divided over so many, a power of two that the ranks divide")
      .by_default("none");
  s.add("check_replicas", o.check_replicas,
        "steps after which the parameters of all ranks are compared bit by bit; a difference ends the job; 0: never")
      .at_least(0);
  s.add("check_gradients", o.check_gradients,
        "name the first gradient of each rank that is not finite before the ranks sum them; ends the job, unless a "
        "loss scale, --clip-norm or --skip-non-finite lets an update be skipped");
  s.add("sync_batch_norm", o.sync_batch_norm,
        "batch norm computes with the samples of all ranks in training, not with each rank's own");
  s.choice("cuda_graph", o.cuda_graph, kSwitch, "on a GPU: run each step as one CUDA graph; auto: where it can be");
  s.add("weights_beside", o.weights_beside,
        "on a GPU: weight gradients on a second stream, beside passes over memory; more memory, the same bits");
  s.add("dependent_launches", o.dependent_launches,
        "on a GPU: a kernel may begin before the writes of the one before it can be seen, and waits for them itself");
  s.choice("overlap", o.overlap, kSwitch,
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
        "given; 0: never")
      .at_least(0);
  s.add("stop_within", o.stop_within,
        "the ranks ask each other for a stop (SIGTERM, SIGINT, SIGUSR1) every so many seconds, 0.5 if not given; a "
        "warning when a step takes longer")
      .above(0);
}

void describe_results(Schema& s, TrainingOptions& o) {
  s.group("Results");
  s.add("out", o.out, "folder for results").path().of_this_start().is_common();
  s.add("log_every", o.log_every, "steps between reports").at_least(1);
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
  s.add("checkpoint_every", o.checkpoint_every, "steps between checkpoints within an epoch; 0: none")
      .at_least(0)
      .is_common();
  s.add("copy_every", o.copy_every,
        "steps between copies of the state in the memory of the nodes (/dev/shm), from which a job with --max-restarts "
        "goes on; 0: none")
      .at_least(0);
  s.add("patience", o.patience, "finish after so many epochs in a row without a new best; 0: never").at_least(0);
  s.add("max_time", o.max_time,
        "stop with a checkpoint after so many seconds of training; those of earlier starts of the job count, exit code "
        "75; 0: never")
      .at_least(0)
      .is_common();
  s.add("keep", o.keep, "earlier checkpoints that stay beside OUT/last, as OUT/last.1, OUT/last.2, ...").at_least(0);
  s.add("keep_best", o.keep_best, "the N best checkpoints stay as OUT/best-STEP; 1: the best alone, OUT/best")
      .at_least(1);
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
  describe_ranks(schema, options);
  describe_results(schema, options);
}

}  // namespace lockstep::nn
