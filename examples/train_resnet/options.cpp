#include "options.hpp"

#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "cli/command_line.hpp"

namespace train_resnet {

using lockstep::require;
using lockstep::UsageError;

namespace {

constexpr const char* kAbout =
    "Trains an image classifier with synchronous data parallelism: every rank computes the gradient of its share of\n"
    "the batch, the gradients are summed over the ranks, and all ranks make the same update.\n"
    "\n"
    "  train_resnet                                          synthetic images on all GPUs, one rank each; without\n"
    "                                                        GPUs one rank on the CPU\n"
    "  train_resnet --devices cpu:2                          two ranks on this machine's CPU\n"
    "  mpirun -np 2 train_resnet --data idx:DIR --epochs 2   two ranks, MNIST-like files\n";

constexpr const char* kFooter =
    "Files in --out DIR: config.json (as resolved), metrics.jsonl (one object a line: step, epoch, end), the\n"
    "checkpoints last/ and best/ (model.safetensors, optimizer.safetensors, state.json), and\n"
    "run.lock, which keeps other runs out.\n"
    "Exit codes: 0 finished, 2 bad input, 3 failure in the run, 75 stopped by a signal with a checkpoint\n"
    "(--resume auto goes on from there), 76 no progress (--watchdog).\n"
    "As root, with few slots or in a container mpirun wants OMPI_ALLOW_RUN_AS_ROOT=1,\n"
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 and --oversubscribe (scripts/train.sh does this).";

double megabytes(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<UsageError>(error == std::errc() && stop == text.data() + text.size() &&
                          (value == 0 || (value * (1 << 20) >= 1 && value <= 1e6)),
                      "--bucket-mb is '", text, "', expected 0, a byte (1e-6) to 1000000, or auto");
  return value;
}

constexpr int kMaxThreads = 1024;  // a rank; libgomp ends the program when the system refuses it a thread

}  // namespace

Parsed parse(int argc, const char* const* argv, const lockstep::cli::ConfigFile& config) {
  Parsed parsed;
  Options& o = parsed.options;
  std::optional<std::string> bucket_mb;
  CLI::App app(kAbout, "train_resnet");
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // what is given last counts
  app.get_formatter()->column_width(32);
  const std::map<std::string, Switch> switches{{"on", Switch::on}, {"off", Switch::off}, {"auto", Switch::automatic}};
  const auto add_switch = [&](const char* name, Switch& value, const char* text, const char* group) {
    app.add_option_function<std::string>(
           name, [&value, switches](const std::string& given) { value = switches.at(given); }, text)
        ->check(CLI::IsMember({"on", "off", "auto"}))
        ->type_name("on|off|auto")
        ->default_str("auto")
        ->group(group);
  };

  app.add_option("--model", o.model, "resnet20, 32, 44, 56, 110 (small images), resnet18, 34, 50, 101, 152, mlp")
      ->group("Model");
  app.add_option("--hidden", o.hidden, "hidden layer sizes of mlp, e.g. 256,128; none: a linear classifier")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Model");
  app.add_option("--dtype", o.dtype,
                 "fp32 (or f32); tf32: fp32, on GPUs products round their factors; bf16, fp16: activations and weights "
                 "in 16 bits, master weights and sums in fp32 (fp16 on GPUs only); f64 (host only)")
      ->check(CLI::IsMember({"fp32", "f32", "tf32", "bf16", "fp16", "f64"}))
      ->group("Model");

  app.add_option("--data", o.data.spec, "synthetic, cifar10:DIR (binary files) or idx:DIR (MNIST-like files)")
      ->group("Data");
  app.add_option("--train-images", o.data.synthetic.train_size, "synthetic: training images")->group("Data");
  app.add_option("--test-images", o.data.synthetic.test_size, "synthetic: test images")->group("Data");
  app.add_option_function<std::int64_t>(
         "--image-size", [&o](std::int64_t size) { o.data.synthetic.height = o.data.synthetic.width = size; },
         "synthetic: side of the images")
      ->default_str("32")
      ->group("Data");
  app.add_option("--classes", o.data.synthetic.classes, "synthetic: number of classes, 2 to 1120")->group("Data");
  app.add_option("--pad", o.pad, "random crops after padding by N pixels; -1: 4, for idx 0")->group("Data");
  add_switch("--flip", o.flip, "mirror images at random; auto: not for idx", "Data");
  app.add_option("--workers", o.workers,
                 "threads a rank that read ahead; 0: the training thread reads; -1: processors - 1, 1 to 8")
      ->group("Data");

  app.add_option("--epochs", o.epochs, "passes over the training set; 0: 6")->group("Training");
  app.add_option("--steps", o.steps, "stop after N steps; 0: no limit")->group("Training");
  app.add_option("--batch-size", o.batch_size, "samples of one update, of all ranks together; 128 if neither is given")
      ->group("Training");
  app.add_option("--batch-per-rank", o.batch_per_rank, "the same by the samples of one rank in one pass")
      ->group("Training");
  app.add_option("--accumulate", o.accumulate, "passes an update: gradients add up, memory is that of one pass")
      ->group("Training");
  app.add_option("--optimizer", o.optimizer, "sgd, adam, adamw (decoupled weight decay) or lars")->group("Training");
  app.add_option("--lr", o.lr, "learning rate, or auto: by optimizer and model, linear in the global batch")
      ->group("Training");
  app.add_option("--schedule", o.schedule, "constant, step (a tenth at 1/2 and 3/4 of the run) or cosine")
      ->group("Training");
  app.add_option("--warmup-steps", o.warmup_steps, "linear warm-up; -1: a twentieth of the run")->group("Training");
  app.add_option("--momentum", o.momentum, "of sgd and lars")->group("Training");
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum")->group("Training");
  app.add_option("--beta1", o.beta1, "decay of the mean of gradients, adam and adamw")->group("Training");
  app.add_option("--beta2", o.beta2, "decay of the mean of their squares, adam and adamw")->group("Training");
  app.add_option("--epsilon", o.epsilon, "added to the root of the latter; lars: to the norm of gradients")
      ->group("Training");
  app.add_option("--trust-coefficient", o.trust_coefficient, "of lars: length of an update in those of its tensor")
      ->group("Training");
  app.add_option("--clip-norm", o.clip_norm, "scale gradients down to this norm, skip steps without one; 0: no")
      ->group("Training");
  app.add_flag("--skip-non-finite", o.skip_non_finite, "leave out updates from gradients that are not finite")
      ->group("Training");
  app.add_option("--loss-scale", o.loss_scale,
                 "factor of the loss in training: dynamic (halved when gradients are not finite, doubled after 2000 "
                 "updates), a number, off; auto: dynamic for fp16")
      ->group("Training");
  app.add_option("--weight-decay", o.weight_decay, "L2 penalty; adamw: share of the parameters that goes, times lr")
      ->group("Training");
  app.add_flag("--no-decay-norm", o.no_decay_norm, "no decay on biases and batch norm")->group("Training");
  app.add_option("--label-smoothing", o.label_smoothing, "0 to 1")->group("Training");
  app.add_option("--top-k", o.top_k, "test accuracy among the K largest outputs too; 0: no")->group("Training");
  app.add_flag("--keep-last", o.keep_last, "train on the partial last batch of an epoch too")->group("Training");
  app.add_option("--seed", o.seed, "of weights, order, augmentation and synthetic images")
      ->check([](const std::string& text) {  // the parser takes -1 for 2^64 - 1
        return text.find('-') == std::string::npos ? std::string() : "is " + text + ", expected at least 0";
      })
      ->group("Training");

  lockstep::cli::add_launch_options(app, o.launch, "Ranks");
  app.add_option("--threads", o.threads, "compute threads a rank; 0: OMP_NUM_THREADS, else the rank's share")
      ->group("Ranks");
  app.add_option("--bucket-mb", bucket_mb,
                 "gradient bucket size in MB, or auto: by --cost; 0: large ones and a small last")
      ->default_str("0, with --cost auto")
      ->group("Ranks");
  app.add_option("--cost", o.cost,
                 "cost.json of lockstep-cost, run with these ranks: buckets by what an all-reduce costs")
      ->group("Ranks");
  app.add_option("--reduce-dtype", o.reduce_dtype,
                 "gradients are sent and added as fp32, or rounded to bf16 or fp16: half the bytes, less exact sums")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->group("Ranks");
  add_switch("--cuda-graph", o.cuda_graph, "on a GPU: run each step as one CUDA graph; auto: where it can be", "Ranks");
  add_switch("--overlap", o.overlap,
             "reduce gradients during backward; auto: on GPUs, and when a processor is left for it", "Ranks");
  add_switch("--tune", o.tune,
             "time what libraries offer for each convolution and product, and take the fastest; auto: on GPUs, or with "
             "--choices",
             "Ranks");
  app.add_option("--choices", o.choices, "JSON file that keeps what was timed, by library version, device and shape")
      ->group("Ranks");
  app.add_option("--workspace-limit", o.workspace_mb, "tuning: most MB of workspace for one call")->group("Ranks");

  app.add_option("--watchdog", o.watchdog,
                 "end the job when a rank makes no progress for so many seconds, and say what each was doing; 0: never")
      ->group("Ranks");

  app.add_option("--out", o.out, "folder for results")->group("Results");
  app.add_option("--log-every", o.log_every, "steps between reports")->group("Results");
  app.add_option("--report-waits", o.report_waits,
                 "count the calls that made rank 0 wait for its device, in the first N steps and later; 0: do not")
      ->group("Results");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints within an epoch; 0: none")
      ->group("Results");
  app.add_option(
         "--init", o.init,
         "start from the weights of this checkpoint or model.safetensors; of one with another number of classes "
         "the last layer's are left out")
      ->group("Results");
  app.add_option("--resume", o.resume, "go on from this checkpoint; auto: OUT/last if it is there")->group("Results");
  app.add_option("--evaluate", o.evaluate,
                 "only evaluate this checkpoint on the test set, or a model.safetensors of the model that --model says")
      ->group("Results");
  app.add_flag("--dry-run", o.dry_run, "print the plan, layer by layer, and stop")->group("Results");

  parsed.text = lockstep::cli::parse_command_line(app, argc, argv, config);
  if (!parsed.text.empty()) {
    return parsed;
  }

  const auto at_least = [](const char* name, auto value, auto least) {
    require<UsageError>(value >= least, name, " is ", value, ", expected at least ", least);
  };
  at_least("--epochs", o.epochs, 0);
  at_least("--steps", o.steps, 0);
  at_least("--batch-size", o.batch_size.value_or(1), 1);
  at_least("--batch-per-rank", o.batch_per_rank.value_or(1), 1);
  at_least("--accumulate", o.accumulate, 1);
  at_least("--workers", o.workers, -1);
  at_least("--threads", o.threads, 0);
  const auto at_most = [](const char* name, auto value, auto most) {
    require<UsageError>(value <= most, name, " is ", value, ", expected at most ", most);
  };
  at_most("--workers", o.workers, lockstep::nn::Loader::kMaxWorkers);
  at_most("--threads", o.threads, kMaxThreads);
  at_least("--top-k", o.top_k, 0);
  at_least("--log-every", o.log_every, 1);
  at_least("--checkpoint-every", o.checkpoint_every, 0);
  at_least("--pad", o.pad, -1);
  at_least("--warmup-steps", o.warmup_steps, -1);
  require<UsageError>(o.label_smoothing >= 0 && o.label_smoothing < 1, "--label-smoothing is ", o.label_smoothing,
                      ", expected 0 <= value < 1");
  require<UsageError>(std::isfinite(o.weight_decay) && o.weight_decay >= 0, "--weight-decay is ", o.weight_decay,
                      ", expected a number of at least 0");
  const std::string buckets = bucket_mb.value_or(o.cost.empty() ? "0" : "auto");
  o.bucket_auto = buckets == "auto";
  o.bucket_mb = o.bucket_auto ? 0 : megabytes(buckets);
  require<UsageError>(o.bucket_auto == !o.cost.empty(), "--bucket-mb is '", buckets, "' and --cost is '", o.cost,
                      "', expected a file of lockstep-cost with auto, and none with a size");
  at_least("--report-waits", o.report_waits, 0);
  require<UsageError>(o.watchdog == 0 || (std::isfinite(o.watchdog) && o.watchdog >= 1), "--watchdog is ", o.watchdog,
                      ", expected seconds, at least 1, or 0 for none");
  at_least("--workspace-limit", o.workspace_mb, 0);
  at_most("--workspace-limit", o.workspace_mb, std::int64_t{1} << 40);
  require<UsageError>(o.choices.empty() || o.tune != Switch::off, "--choices is '", o.choices,
                      "', expected none with --tune off");
  (void)lockstep::cli::ranks_request(o.launch);
  require<UsageError>(!o.out.empty(), "--out is empty, expected a folder");
  const int sources = (o.init.empty() ? 0 : 1) + (o.resume.empty() ? 0 : 1) + (o.evaluate.empty() ? 0 : 1);
  require<UsageError>(sources <= 1, "--init, --resume and --evaluate exclude each other");
  const auto optimizer = lockstep::nn::parse_optimizer(o.optimizer);
  require<UsageError>(o.momentum >= 0 && o.momentum < 1, "--momentum is ", o.momentum, ", expected 0 <= value < 1");
  using lockstep::nn::OptimizerKind;
  require<UsageError>(
      !o.nesterov || ((optimizer == OptimizerKind::sgd || optimizer == OptimizerKind::lars) && o.momentum > 0),
      "--nesterov needs --optimizer sgd or lars and a --momentum above 0");
  require<UsageError>(std::isfinite(o.trust_coefficient) && o.trust_coefficient > 0, "--trust-coefficient is ",
                      o.trust_coefficient, ", expected above 0");
  require<UsageError>(o.beta1 >= 0 && o.beta1 < 1, "--beta1 is ", o.beta1, ", expected 0 <= value < 1");
  require<UsageError>(o.beta2 >= 0 && o.beta2 < 1, "--beta2 is ", o.beta2, ", expected 0 <= value < 1");
  require<UsageError>(o.epsilon >= 1e-30 && o.epsilon <= 1e30, "--epsilon is ", o.epsilon, ", expected 1e-30 to 1e30");
  require<UsageError>(std::isfinite(o.clip_norm) && o.clip_norm >= 0, "--clip-norm is ", o.clip_norm,
                      ", expected at least 0");
  (void)given_learning_rate(o);
  (void)lockstep::nn::parse_loss_scale(o.loss_scale);
  require<UsageError>(o.dtype != "f64" || o.reduce_dtype == "fp32", "--reduce-dtype is ", o.reduce_dtype,
                      " beside --dtype f64, expected none: gradients are f64 and sent as they are");
  (void)lockstep::nn::parse_schedule(o.schedule);
  o.data.seed = o.seed;
  return parsed;
}

std::optional<double> given_learning_rate(const Options& options) {
  if (options.lr == "auto") {
    return std::nullopt;
  }
  double value = 0;
  const char* end = options.lr.data() + options.lr.size();
  const auto [stop, error] = std::from_chars(options.lr.data(), end, value);
  require<UsageError>(error == std::errc() && stop == end && value > 0 && std::isfinite(value), "--lr is '", options.lr,
                      "', expected a positive number or auto");
  return value;
}

BaseRate base_learning_rate(const Options& options) {
  if (options.optimizer.starts_with("adam")) {
    return {1e-3, 0};
  }
  const double scale = options.optimizer == "lars" ? 100 : 1;
  if (options.model == "mlp") {
    return {0.02 * scale, 128};
  }
  const bool small_images = options.model == "resnet20" || options.model == "resnet32" || options.model == "resnet44" ||
                            options.model == "resnet56" || options.model == "resnet110";
  return {0.1 * scale, small_images ? 128 : 256};
}

}  // namespace train_resnet
