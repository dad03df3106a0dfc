#include "training_options.hpp"

#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>

namespace lockstep::cli {

void add_switch(CLI::App& app, const std::string& name, nn::Switch& value, const std::string& text,
                const std::string& group) {
  static const std::map<std::string, nn::Switch> kSwitches{
      {"on", nn::Switch::on}, {"off", nn::Switch::off}, {"auto", nn::Switch::automatic}};
  app.add_option_function<std::string>(
         name, [&value](const std::string& given) { value = kSwitches.at(given); }, text)
      ->check(CLI::IsMember({"on", "off", "auto"}))
      ->type_name("on|off|auto")
      ->default_str("auto")
      ->group(group);
}

namespace {

template <class T>
CLI::Option* add_list(CLI::App& app, const char* name, std::vector<T>& values, const char* text) {
  return app.add_option(name, values, text)
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Training");
}

void add_schedule(CLI::App& app, nn::TrainingOptions& o) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->group("Training");
  };
  add("--schedule", o.schedule, "constant, step, cosine or polynomial");
  add_list(app, "--milestones", o.milestones,
           "step: epochs at which the rate is multiplied by --gamma, e.g. 30,60,80; none: 1/2 and 3/4 of the run");
  add("--gamma", o.gamma, "step: factor at a milestone");
  add("--power", o.power, "polynomial: the rate is what is left of the run to this power");
  add("--lr-end", o.lr_end, "cosine, polynomial: rate at the end of the run");
  add("--warmup", o.warmup, "linear, constant or exponential");
  add("--warmup-steps", o.warmup_steps, "steps of the warm-up; -1: a twentieth of the run");
  add("--warmup-epochs", o.warmup_epochs, "the same in epochs");
  add("--warmup-factor", o.warmup_factor,
      "of the rate where the warm-up begins; linear without it: from 1 / its steps");
}

void add_average(CLI::App& app, nn::TrainingOptions& o) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->group("Training");
  };
  add("--ema", o.ema, "decay of a moving average of the weights, which is evaluated and kept too; 0: none");
  add("--ema-every", o.ema_every, "updates from one averaging to the next, over the whole run");
  add("--ema-warmup", o.ema_warmup,
      "updates whose averagings, and the first behind them, copy the weights; -1: those of the warm-up");
  app.add_flag("--ema-ramp", o.ema_ramp, "behind these the decay grows up to --ema, 1 - (1 + n)^(-2/3) at the n-th")
      ->group("Training");
}

void add_numbers(CLI::App& app, nn::TrainingOptions& o) {
  const auto add = [&](const char* name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->group("Training");
  };
  add("--epochs", o.epochs, "passes over the training set");
  add("--steps", o.steps, "end the run, and its schedule, after N updates; give --resume the same N; 0: no limit");
  add("--batch-size", o.batch_size,
      "samples of one update, of all ranks together; " + std::to_string(o.default_batch) + " if neither is given");
  add("--batch-per-rank", o.batch_per_rank, "instead of --batch-size: samples of one rank in one micro-batch");
  add("--accumulate", o.accumulate, "micro-batches of one update, whose gradients add up; takes the memory of one");
  add("--recompute", o.recompute,
      "activations that are not kept from forward to backward but computed again, bit for bit, so that a larger batch "
      "fits; cheap: outputs of norms, activations, pools and dropout; blocks: also of convolutions and products, all "
      "but "
      "what lies between blocks")
      ->check(CLI::IsMember({"off", "cheap", "blocks"}));
  add("--dtype", o.dtype,
      "fp32 (or f32); tf32: fp32, on GPUs products round their factors; bf16, fp16: activations and weights in 16 "
      "bits, master weights and sums in fp32 (fp16 on GPUs only); f64 (host only)")
      ->check(CLI::IsMember({"fp32", "f32", "tf32", "bf16", "fp16", "f64"}));
  add("--optimizer", o.optimizer,
      "sgd, adam, adamw (decoupled weight decay), lars, or muon (hidden matrices; adamw for the rest)");
  add("--lr", o.lr, "learning rate, or auto: by optimizer and model");
  add_schedule(app, o);
  add("--momentum", o.momentum, "of sgd, lars and muon (0.95 with --nesterov is usual for muon)");
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum")->group("Training");
  add("--beta1", o.beta1, "decay of the mean of gradients, adam, adamw and muon");
  add("--beta2", o.beta2, "decay of the mean of their squares, adam, adamw and muon");
  add("--epsilon", o.epsilon, "added to the denominator; lars: to the norm of the gradients");
  add("--trust-coefficient", o.trust_coefficient, "lars: norm of an update relative to the norm of its tensor");
  add("--clip-value", o.clip_value, "bring each gradient into [-value, value], behind --clip-norm; 0: off");
  add("--clip-norm", o.clip_norm, "scale gradients down to this norm, skip steps whose norm is not finite; 0: off");
  app.add_flag("--skip-non-finite", o.skip_non_finite, "leave out updates from gradients that are not finite")
      ->group("Training");
  add("--loss-scale", o.loss_scale,
      "factor of the loss in training: dynamic (halved when gradients are not finite, doubled after 2000 updates), a "
      "number, off; auto: dynamic for fp16");
  add("--weight-decay", o.weight_decay, "L2 penalty; adamw: decoupled, parameters shrink by lr times this");
  app.add_flag_function(
         "--no-decay-norm,!--decay-norm", [&o](std::int64_t given) { o.no_decay_norm = given > 0; },
         std::string("no decay on biases and norm parameters") +
             (o.default_no_decay_norm ? ", as here without --decay-norm" : ""))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group("Training");
  add("--norm-weight-decay", o.norm_weight_decay, "decay of norm parameters, instead of --weight-decay");
  add("--bias-weight-decay", o.bias_weight_decay, "decay of biases of other layers, instead of --weight-decay");
  add_list(app, "--rate-scale", o.rate_scales,
           "factors of the learning rate by parameter name, e.g. 'layer4.*=0.1,fc.*=1'; the last that fits counts")
      ->type_name("PATTERN=FACTOR");
  add_list(app, "--freeze", o.freeze,
           "layers or parameters that keep their values, e.g. conv1,bn1,layer1: no gradients are computed, sent or "
           "stored for them, and backward ends behind the first ones; running statistics go on");
  add_average(app, o);
  add("--label-smoothing", o.label_smoothing, "0 to 1");
  add("--top-k", o.top_k, "test accuracy among the K largest outputs too; 0: no");
  app.add_flag("--keep-last", o.keep_last, "train on the partial last batch of an epoch too")->group("Training");
  add("--shuffle-chunk", o.shuffle_chunk,
      "samples that lie side by side in a packed file or in token files and are read together: the order shuffles "
      "chunks of so many, then the samples of 16 chunks; a file that lies class by class is shuffled first "
      "(lockstep-pack --shuffle), or batches hold few classes; 0: any sample may follow any other");
  add("--seed", o.seed, "of all that is random: weights, order, augmentation")->check([](const std::string& text) {
    // The parser takes -1 for 2^64 - 1.
    return text.find('-') == std::string::npos ? std::string() : "is " + text + ", expected at least 0";
  });
  add("--workers", o.workers,
      "threads a rank that read ahead; 0: the training thread reads; -1: processors - 1, 1 to 8");
}

void add_ranks(CLI::App& app, nn::TrainingOptions& o) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->group("Ranks");
  };
  add("--threads", o.threads, "compute threads a rank; 0: OMP_NUM_THREADS, else the rank's share");
  add("--bucket-mb", o.bucket_mb, "gradient bucket size in MB; 0: large buckets and a small last one")
      ->default_str("0, or by --cost");
  add("--cost", o.cost, "cost.json of lockstep-cost, run with these ranks: buckets by what an all-reduce costs");
  add("--reduce-dtype", o.reduce_dtype,
      "gradients are sent and added as fp32, or rounded to bf16 or fp16: half the bytes, less exact sums")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  add("--compress", o.compress, comm::sum_names_help().c_str())->type_name(comm::sum_names());
  add("--strategy", o.strategy,
      "ddp: every rank keeps all of the optimizer's states; zero1: 1 / ranks of them; single: a job of one rank")
      ->type_name("NAME");
  add("--reproducible", o.reproducible,
      "run: equal runs give equal bits; layout: bits do not depend on --bucket-mb, --strategy and --overlap, as "
      "gradients are added in rank order; world: nor on the number of ranks, by --virtual-ranks")
      ->check(CLI::IsMember({"run", "layout", "world"}));
  add("--virtual-ranks", o.virtual_ranks,
      "of --reproducible world: a batch is divided over so many, a power of two that the ranks divide")
      ->default_str("none");
  add("--check-replicas", o.check_replicas,
      "steps after which the parameters of all ranks are compared bit by bit; a difference ends the job; 0: never");
  app.add_flag(
         "--check-gradients", o.check_gradients,
         "name the first gradient of each rank that is not finite before the ranks sum them; ends the job, unless a "
         "loss scale, --clip-norm or --skip-non-finite lets an update be skipped")
      ->group("Ranks");
  app.add_flag("--sync-batch-norm", o.sync_batch_norm,
               "batch norm computes with the samples of all ranks in training, not with each rank's own")
      ->group("Ranks");
  add_switch(app, "--cuda-graph", o.cuda_graph, "on a GPU: run each step as one CUDA graph; auto: where it can be",
             "Ranks");
  app.add_flag("--weights-beside", o.weights_beside,
               "on a GPU: weight gradients on a second stream, beside passes over memory; more memory, the same bits")
      ->group("Ranks");
  app.add_flag(
         "--dependent-launches", o.dependent_launches,
         "on a GPU: a kernel may begin before the writes of the one before it can be seen, and waits for them itself")
      ->group("Ranks");
  add_switch(app, "--overlap", o.overlap,
             "reduce gradients during backward; auto: on GPUs, and on hosts with a processor to spare", "Ranks");
  static const std::map<std::string, nn::Tune> kTunes{
      {"on", nn::Tune::on}, {"fast", nn::Tune::fast}, {"off", nn::Tune::off}, {"auto", nn::Tune::automatic}};
  app.add_option_function<std::string>(
         "--tune", [&o](const std::string& given) { o.tune = kTunes.at(given); },
         "time what libraries offer for each convolution and product, and take the fastest; fast: without engines of "
         "cuDNN that are compiled at run time; auto: on for GPUs, or with --choices")
      ->check(CLI::IsMember({"on", "fast", "off", "auto"}))
      ->type_name("on|fast|off|auto")
      ->default_str("auto")
      ->group("Ranks");
  add("--choices", o.choices, "JSON file that keeps the timings, by library version, device and shape");
  app.add_flag("--verify-choices", o.verify_choices,
               "compare each convolution and product of a library with our own kernel before training, and refuse what "
               "is wrong; LOCKSTEP_VERIFY=1 does the same")
      ->group("Ranks");
  add("--workspace-limit", o.workspace_mb, "tuning: maximum workspace of one call, in MB");
  add("--watchdog", o.watchdog,
      "end the job when a rank makes no progress for so many seconds, and say what each was doing; 0: never");
  add("--stall-report", o.stall_report,
      "say what the ranks are doing when one makes no progress for so many seconds, a quarter of --watchdog if not "
      "given; 0: never");
  add("--stop-within", o.stop_within,
      "the ranks ask each other for a stop (SIGTERM, SIGINT, SIGUSR1) every so many seconds, 0.5 if not given; a "
      "warning when a step takes longer");
}

/// A check for CLI11: an unset variable in a script must not start a run from scratch.
std::string not_empty(const std::string& text) {
  return text.empty() ? "is empty, expected a path" : "";
}

void add_results(CLI::App& app, nn::TrainingOptions& o) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->group("Results");
  };
  add("--out", o.out, "folder for results");
  add("--log-every", o.log_every, "steps between reports");
  app.add_flag("--tensorboard", o.tensorboard,
               "write scalars for TensorBoard too: tensorboard --logdir OUT/tensorboard")
      ->group("Results");
  add("--report-waits", o.report_waits,
      "count the calls that made rank 0 wait for its device, in the first N steps and later; 0: do not");
  add("--trace", o.trace,
      "write a timeline of some steps on all ranks to this file, for ui.perfetto.dev, and say what communication cost "
      "and which rank the others waited for")
      ->check(not_empty);
  add("--trace-steps", o.trace_steps,
      "A:B, the steps of the timeline, counted from where this run begins; 10:20 if not given, earlier in a shorter "
      "run")
      ->type_name("A:B");
  add("--checkpoint-every", o.checkpoint_every, "steps between checkpoints within an epoch; 0: none");
  add("--copy-every", o.copy_every,
      "steps between copies of the state in the memory of the nodes (/dev/shm), from which a job with --max-restarts "
      "goes on; 0: none");
  add("--patience", o.patience, "finish after so many epochs in a row without a new best; 0: never");
  add("--max-time", o.max_time,
      "stop with a checkpoint after so many seconds of training, those of earlier starts of the job too, exit code 75; "
      "0: never");
  add("--keep", o.keep, "earlier checkpoints that stay beside OUT/last, as OUT/last.1, OUT/last.2, ...");
  add("--keep-best", o.keep_best, "the N best checkpoints stay as OUT/best-STEP; 1: the best alone, OUT/best");
  add("--init", o.init,
      "start from the weights of this checkpoint, .safetensors file or .pth of torch.save; of a folder of results its "
      "best; of one with another number of classes the last layer's are left out")
      ->check(not_empty);
  add("--resume", o.resume,
      "go on from this checkpoint; auto: from OUT/last, else from the newest of OUT, else from --init, else anew")
      ->check(not_empty);
  app.add_flag("--overwrite", o.overwrite, "delete the checkpoints in OUT; without it such a folder is refused")
      ->group("Results");
  add("--evaluate", o.evaluate,
      "only evaluate this checkpoint, .safetensors file or .pth on the test set; of a folder of results its best")
      ->check(not_empty);
  app.add_flag("--dry-run", o.dry_run, "print the plan, layer by layer, and stop")->group("Results");
  add("--describe-gpu", o.describe_gpu,
      ("with --dry-run on the CPU: plan for this GPU and predict the time of a step; " + nn::known_gpu_names() +
       ". --trace then takes a predicted timeline, which lockstep-scale reads")
          .c_str())
      ->check(not_empty);
  app.add_flag("--fused-norms", o.fused_norms,
               "with --describe-gpu: plan as if cuDNN's convolutions took the sums of batch norms wherever they can")
      ->group("Results");
}

}  // namespace

void add_training_options(CLI::App& app, nn::TrainingOptions& options) {
  app.add_option("--recipe", options.recipe,
                 "options of a run that others have described: resnet50-v1, resnet50-v2, resnet50-lars, "
                 "cifar-resnet20 or cifar-airbench94 (share/lockstep/recipes), or ./FILE.toml; what is given here wins")
      ->check([](const std::string& name) { return name.empty() ? "is empty, expected a name or a path" : ""; })
      ->type_name("NAME")
      ->group("Training");
  add_numbers(app, options);
  add_ranks(app, options);
  add_results(app, options);
}

}  // namespace lockstep::cli
