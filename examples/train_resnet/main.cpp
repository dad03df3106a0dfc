// mpirun -np N train_resnet [options]: data-parallel training of an image classifier. --help explains the rest.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>

#include <lockstep/comm/gradients/cost_file.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/launch/workplace.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/plan/pass_plans.hpp>
#include <lockstep/nn/plan/precision.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/console.hpp>
#include <lockstep/nn/run/metrics_log.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>
#include <lockstep/runtime/memory/memory_summary.hpp>

#include "options.hpp"
#include "wait_report.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using train_resnet::Options;
using train_resnet::Switch;

std::atomic<int> stop_signal{0};
extern "C" void on_signal(int number) {
  stop_signal.store(number, std::memory_order_relaxed);
}

/// Console and metrics.jsonl of rank 0; nothing on the others.
class Reports final : public nn::RunObserver {
 public:
  void open(const std::string& metrics_path, bool append, const nn::Console::Options& console) {
    log_.emplace(metrics_path, append);
    console_.emplace(std::cout, console);
  }
  void on_step(const nn::StepEvent& event) override {
    if (log_) {
      console_->on_step(event);
      log_->on_step(event);
    }
  }
  void on_epoch(const nn::EpochEvent& event) override {
    if (log_) {
      console_->on_epoch(event);
      log_->on_epoch(event);
    }
  }
  void write_event(const std::string& name, Json::Object fields) {
    if (log_) {
      log_->write_event(name, std::move(fields));
    }
  }
  void on_end(int exit_code, std::int64_t step, const nn::RunResult& result) {
    if (log_) {
      log_->on_end(exit_code, step, result);
    }
  }

 private:
  std::optional<nn::MetricsLog> log_;
  std::optional<nn::Console> console_;
};

comm::WorkplaceOptions::Overlap overlap_of(Switch given) {
  using Overlap = comm::WorkplaceOptions::Overlap;
  return given == Switch::automatic ? Overlap::automatic : given == Switch::on ? Overlap::on : Overlap::off;
}

/// Everything that follows from the options once ranks and data are known.
struct Setup {
  nn::ModelRequest model;
  nn::TrainerOptions trainer;
  nn::RunRules rules;
  std::vector<std::string> warnings;
  std::int64_t epochs = 0;
  std::int64_t total_steps = 0;
};

Setup resolve(const Options& o, const nn::DataSplit& data, const comm::Workplace& place, comm::Session& session) {
  Setup s;
  s.model = {.name = o.model,
             .classes = data.train->classes(),
             .height = data.train->height(),
             .width = data.train->width(),
             .hidden = o.hidden};

  const train_resnet::BaseRate rate = train_resnet::base_learning_rate(o);
  s.rules = nn::run_rules({.ranks = session.size(),
                           .global_batch = o.batch_per_rank ? o.batch_size : o.batch_size.value_or(128),
                           .batch_per_rank = o.batch_per_rank,
                           .accumulate = o.accumulate,
                           .learning_rate = train_resnet::given_learning_rate(o),
                           .base_learning_rate = rate.base,
                           .reference_batch = rate.reference,
                           .workers = o.workers < 0 ? std::nullopt : std::optional(o.workers),
                           .processors = place.share().processors,
                           .sharers = place.share().sharers});

  const bool photos = !o.data.spec.starts_with("idx:");  // digits and letters change their meaning when mirrored
  nn::TrainerOptions& t = s.trainer;
  t.global_batch = s.rules.global_batch;
  t.accumulate = s.rules.accumulate;
  t.seed = o.seed;
  const nn::Precision precision = nn::parse_precision(o.dtype);
  t.plan.dtype = precision.dtype;
  t.plan.tf32 = precision.tf32;
  t.plan.augment = {.pad = o.pad >= 0 ? o.pad : (photos ? 4 : 0),
                    .flip = o.flip == Switch::automatic ? photos : o.flip == Switch::on,
                    .mean = data.statistics.mean,
                    .std = data.statistics.std,
                    .seed = o.seed};
  t.plan.label_smoothing = o.label_smoothing;
  t.plan.top_k = o.top_k;
  t.optimizer = {.kind = nn::parse_optimizer(o.optimizer),
                 .momentum = o.momentum,
                 .nesterov = o.nesterov,
                 .beta1 = o.beta1,
                 .beta2 = o.beta2,
                 .epsilon = o.epsilon,
                 .trust_coefficient = o.trust_coefficient,
                 .clip_norm = o.clip_norm,
                 .skip_non_finite = o.skip_non_finite,
                 .loss_scale = nn::resolved(nn::parse_loss_scale(o.loss_scale), precision.dtype)};
  t.weight_decay = o.weight_decay;
  t.decay_all = !o.no_decay_norm;
  t.keep_last = o.keep_last;
  t.cuda_graph = o.cuda_graph == Switch::automatic ? nn::CudaGraph::automatic
                 : o.cuda_graph == Switch::on      ? nn::CudaGraph::on
                                                   : nn::CudaGraph::off;
  t.loader_workers = s.rules.workers;
  t.prefetch = s.rules.prefetch;
  t.reduce_dtype = o.reduce_dtype == "bf16" ? DType::bf16 : o.reduce_dtype == "fp16" ? DType::f16 : DType::f32;
  t.buckets.bucket_bytes = static_cast<std::int64_t>(o.bucket_mb * (1 << 20));

  s.epochs = o.epochs > 0 ? o.epochs : 6;
  const nn::Sampler sampler({.size = data.train->size(),
                             .batch_size = s.rules.global_batch,
                             .ranks = session.size(),
                             .rank = session.rank(),
                             .shuffle = true,
                             .keep_last = o.keep_last,
                             .seed = o.seed});
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // the schedule computes in double
  require<UsageError>(s.epochs <= kMostSteps / sampler.batches(), "--epochs is ", s.epochs, ", of ", sampler.batches(),
                      " batches each, expected at most ", kMostSteps / sampler.batches());
  s.total_steps = s.epochs * sampler.batches();
  if (o.steps > 0) {
    s.total_steps = std::min(s.total_steps, o.steps);
  }
  t.schedule.kind = nn::parse_schedule(o.schedule);
  t.schedule.base = s.rules.learning_rate;
  t.schedule.total_steps = s.total_steps;
  t.schedule.warmup_steps = o.warmup_steps >= 0 ? o.warmup_steps : nn::warmup_steps(s.total_steps);
  t.schedule.milestones = {s.total_steps / 2, s.total_steps * 3 / 4};
  s.warnings = nn::warnings(s.rules, t.optimizer.kind == nn::OptimizerKind::lars, t.schedule.warmup_steps);
  return s;
}

nn::RunIdentity identity_of(const Options& o, const Setup& s, const nn::DataSplit& data, const comm::Session& session,
                            int threads) {
  nn::RunIdentity id;
  id.model = s.model.name;
  id.classes = s.model.classes;
  id.height = s.model.height;
  id.width = s.model.width;
  id.hidden = s.model.hidden;
  id.seed = o.seed;
  id.ranks = session.size();
  id.threads = threads;
  id.global_batch = s.rules.global_batch;
  id.options = nn::option_texts(s.trainer, data);
  id.options["epochs"] = std::to_string(s.epochs);
  return id;
}

Json json_of(const nn::ChoiceReport& report) {
  return Json::Object{{"calls", report.calls},
                      {"distinct", report.distinct},
                      {"timed", report.timed},
                      {"seconds", report.seconds},
                      {"refused", Json::Array(report.refused.begin(), report.refused.end())}};
}

/// tuned: what rank 0 found when it chose libraries.
std::string config_text(const Options& o, const Setup& s, const nn::RunIdentity& id, comm::Session& session,
                        const std::string& overlap_reason, const std::optional<nn::ChoiceReport>& tuned) {
  Json::Object options;
  for (const auto& [key, value] : id.options) {
    options[key] = value;
  }
  Json::Object config{{"lockstep", build_description()},
                      {"model", id.model},
                      {"classes", id.classes},
                      {"height", id.height},
                      {"width", id.width},
                      {"data", o.data.spec},
                      {"seed", id.seed},
                      {"ranks", id.ranks},
                      {"nodes", session.nodes()},
                      {"threads_per_rank", id.threads},
                      {"global_batch", id.global_batch},
                      {"options", options},
                      {"overlap", overlap_reason},
                      {"bucket_mb", o.bucket_mb},
                      {"cost", o.cost},
                      {"library_choices", tuned ? json_of(*tuned) : Json()},
                      {"workers", s.rules.workers},
                      {"log_every", o.log_every},
                      {"report_waits", o.report_waits},
                      {"watchdog", o.watchdog},
                      {"top_k", o.top_k},
                      {"init", o.init},
                      {"resume", o.resume}};
  return Json(std::move(config)).text(2) + "\n";
}

/// In powers of 1000. What memory_now() says is in powers of 1024 (runtime/base/units.hpp).
std::string decimal_bytes(double bytes) {
  std::ostringstream out;
  if (bytes < 1e5) {
    out << std::fixed << std::setprecision(1) << bytes / 1e3 << " kB";
  } else {
    out << std::fixed << std::setprecision(bytes < 1e7 ? 2 : 0) << bytes / 1e6 << " MB";
  }
  return out.str();
}

std::string optimizer_text(const nn::OptimizerOptions& o) {
  std::ostringstream out;
  if (o.kind == nn::OptimizerKind::adam || o.kind == nn::OptimizerKind::adamw) {
    out << "betas " << o.beta1 << ' ' << o.beta2 << ", epsilon " << o.epsilon;
  } else {
    out << "momentum " << o.momentum << (o.nesterov ? " (Nesterov)" : "");
  }
  if (o.kind == nn::OptimizerKind::lars) {
    out << ", trust coefficient " << o.trust_coefficient;
  }
  if (o.clip_norm > 0) {
    out << ", clip norm " << o.clip_norm;
  }
  if (o.loss_scale.scales()) {
    out << ", loss scale " << nn::text_of(o.loss_scale);
  }
  if (o.skip_non_finite) {
    out << ", steps that are not finite skipped";
  }
  return out.str();
}

std::optional<MemorySummary> memory_now(Context& context) {
  try {
    return memory_summary(context);
  } catch (const UnsupportedError&) {  // this system does not tell; the run needs no answer
    return std::nullopt;
  }
}

/// What has made the host wait, and the memory at the end of the run: rank 0's.
void report_waits(const Options& o, const train_resnet::WaitCounts& waits, Context& context, Reports& reports) {
  const std::optional<MemorySummary> memory = memory_now(context);
  std::cout << waits.text(o.report_waits) << (memory ? "  memory     " + to_string(*memory) + "\n" : "");
  reports.write_event("waits", {{"first_steps", o.report_waits},
                                {"calls", waits.json()},
                                {"memory", memory ? train_resnet::json_of(*memory) : Json()}});
}

/// On a GPU with a second line about the host threads.
std::string compute_text(const comm::Workplace& place, nn::Trainer& trainer) {
  if (!place.on_gpu()) {
    return concat("cpu, ", place.threads(), place.threads() == 1 ? " thread" : " threads", " a rank; ",
                  place.share().description());
  }
  const std::string& obstacle = trainer.graph_obstacle();
  return concat(lockstep::cli::gpu_text(*place.gpu()), "; steps as a CUDA graph ",
                obstacle.empty() ? "on" : "off: " + obstacle, "\n             ", place.share().description(), "; ",
                place.binding());
}

void print_header(const Options& o, const Setup& s, const nn::Model& model, const nn::DataSplit& data,
                  const comm::Workplace& place, comm::Session& session, nn::Trainer& trainer) {
  std::ostream& out = std::cout;
  const auto& plan = trainer.train_plan();
  out << build_description() << '\n'
      << "  ranks      " << session.size() << " on " << session.nodes()
      << (session.nodes() == 1 ? " node, " : " nodes, ") << session.description() << '\n'
      << "  launch     " << session.launch().description() << '\n'
      << "  compute    " << compute_text(place, trainer) << '\n';
  if (!place.device().note.empty()) {
    out << "             " << place.device().note << '\n';
  }
  out << "  model      " << model.name() << ", " << model.parameter_count() << " parameters, "
      << nn::name_of(nn::parse_precision(o.dtype)) << '\n'
      << "  data       " << o.data.spec << ": " << data.train->size() << " training and " << data.test->size()
      << " test images " << data.train->height() << " x " << data.train->width() << ", " << data.train->classes()
      << " classes, " << s.rules.workers << (s.rules.workers == 1 ? " worker" : " workers") << " a rank\n"
      << "  batch      " << s.rules.batch_text() << ", " << trainer.batches_per_epoch() << " steps an epoch, "
      << s.epochs << (s.epochs == 1 ? " epoch, " : " epochs, ") << s.total_steps << " steps in all\n"
      << "  optimizer  " << o.optimizer << ", learning rate " << s.trainer.schedule.base << " (" << o.schedule
      << ", warm-up " << s.trainer.schedule.warmup_steps << " steps), " << optimizer_text(s.trainer.optimizer)
      << ", weight decay " << o.weight_decay << '\n'
      << "  memory     " << decimal_bytes(static_cast<double>(trainer.planned_bytes())) << " a rank; workspace "
      << decimal_bytes(static_cast<double>(plan.workspace_bytes())) << ", "
      << decimal_bytes(static_cast<double>(plan.unshared_bytes())) << " without reuse\n";
  if (const std::optional<MemorySummary> memory = memory_now(trainer.context())) {
    out << "             " << to_string(*memory) << '\n';
  }
  out << "  gradients  " << trainer.reducer().buckets().size() << " bucket(s):";
  for (const comm::Bucket& bucket : trainer.reducer().buckets()) {
    out << ' '
        << decimal_bytes(static_cast<double>(bucket.end - bucket.begin) *
                         static_cast<double>(size_of(trainer.reducer().sent_as())));
  }
  out << (o.reduce_dtype == "fp32" ? "" : concat(", sent as ", o.reduce_dtype))
      << (o.bucket_auto ? concat(", by ", o.cost) : "") << "; overlap with backward " << place.overlap_reason() << '\n';
  for (const std::string& warning : s.warnings) {
    out << "  warning    " << warning << '\n';
  }
  out << std::flush;
}

/// Library choices of rank 0 for all, and what rank 0 found; nothing when nothing is to be chosen. Choices of a
/// checkpoint stay where they hold (nn::choices_hold): they are a part of the run.
std::optional<nn::ChoiceReport> tune(const Options& o, comm::Session& session, Context& context, const nn::Model& model,
                                     Setup& setup) {
  const bool wanted =
      o.tune == Switch::automatic ? context.device() != Device::cpu() || !o.choices.empty() : o.tune == Switch::on;
  if (!wanted || !o.evaluate.empty() || !setup.trainer.plan.choices.empty()) {
    return std::nullopt;
  }
  const std::int64_t share = nn::partition_of(setup.trainer.global_batch, session.size(), 0).count;
  std::vector<nn::LibraryPlan> plans;  // as rank 0 has them
  session.agree([&] {
    if (session.rank() == 0) {
      const std::int64_t passes = setup.trainer.accumulate;
      plans = nn::PassPlans(context, model, nn::partition_of(share, passes, 0).count, passes, setup.trainer.plan)
                  .library_plans();
    }
  });
  nn::ChoiceOptions options;
  options.workspace_limit = static_cast<std::size_t>(o.workspace_mb) * 1000000;
  options.deterministic = true;  // a run repeats to the last bit
  nn::ChoiceReport report;
  setup.trainer.plan.choices = nn::choose_libraries(session.control(), context, plans, options, o.choices, &report);
  return report;
}

void print_choices(const nn::ChoiceReport& report, const std::string& file) {
  std::cout << "  libraries  " << report.calls << " calls of " << report.distinct << " kinds, " << report.timed
            << " timed in " << std::lround(report.seconds * 1000) << " ms" << (file.empty() ? "" : ", kept in " + file)
            << '\n';
  if (!report.refused.empty()) {
    std::cout << "             " << report.refused.size()
              << (report.refused.size() == 1 ? " candidate was" : " candidates were")
              << " refused (config.json), first " << report.refused.front() << '\n';
  }
  std::cout << std::flush;
}

int run(comm::Session& session, int argc, char** argv) {
  const bool first = session.rank() == 0;
  train_resnet::Parsed parsed;
  const lockstep::cli::ConfigFile config = lockstep::cli::read_config_file(session, argc, argv);
  session.agree([&] { parsed = train_resnet::parse(argc, argv, config); });
  comm::require_same_on_all_ranks(session.control(), comm::arguments_text(argc, argv));
  if (!parsed.text.empty()) {
    if (first) {
      std::cout << parsed.text << std::flush;
    }
    return exit_code::kFinished;
  }
  Options& o = parsed.options;
  const comm::RanksRequest ranks = lockstep::cli::ranks_request(o.launch);
  comm::require_ranks_as_requested(session, ranks);
  comm::Workplace place(
      session, ranks.devices,
      {.threads = o.threads, .overlap = overlap_of(o.overlap), .bind_near_gpu = o.launch.bind == "gpu"});
  Context& context = place.context();
  const bool on_gpu = place.on_gpu();

  // One run writes to a folder; what it kept there is read below. Where no run was yet, the folder may be missing.
  std::optional<FolderLock> lock;  // rank 0's
  const auto lock_results = [&] {
    try {
      lock.emplace(o.out);
    } catch (UsageError& error) {
      error.annotate("--out");
      throw;
    }
  };
  session.agree([&] {
    if (first && !o.dry_run && o.evaluate.empty() && FolderLock::known(o.out)) {
      lock_results();
    }
  });

  // Rank 0 writes the checkpoints and decides whether there is one to go on from; every rank reads it, perhaps from a
  // file system of its own.
  std::string resume_from = o.resume;
  if (o.resume == "auto") {
    session.agree([&] { resume_from = first && !find_folder(o.out + "/last").empty() ? o.out + "/last" : ""; });
    resume_from = comm::broadcast_text(session.control(), resume_from);
  }
  // A checkpoint that is only evaluated says itself which model it holds; of a bare file --model says it.
  std::optional<nn::CheckpointState> saved;
  session.agree([&] {
    const std::string& source = o.evaluate.empty() ? resume_from : o.evaluate;
    if (!source.empty() && !(source == o.evaluate && std::filesystem::is_regular_file(source))) {
      saved = nn::read_checkpoint_state(source);
    }
    if (saved && !o.evaluate.empty()) {
      o.model = saved->identity.model;
      o.hidden = saved->identity.hidden;
    }
  });

  nn::DataSplit data;
  session.agree([&] { data = nn::open_data(o.data); });
  comm::require_same_on_all_ranks(session.control(), concat("training images ", data.train->size(), "\ntest images ",
                                                            data.test->size(), "\nimages ", data.train->height(), " x ",
                                                            data.train->width(), "\nclasses ", data.train->classes()));

  // Rank 0's file, so that all ranks plan with one model.
  std::string cost;
  session.agree([&] { cost = first && !o.cost.empty() ? comm::read_cost_text(o.cost) : ""; });
  cost = comm::broadcast_text(session.control(), cost);

  Setup setup;
  std::optional<nn::Model> model;
  std::optional<comm::Watchdog> watchdog;
  std::optional<nn::Trainer> trainer;
  session.agree([&] {
    setup = resolve(o, data, place, session);
    if (!o.cost.empty()) {
      setup.trainer.buckets.all_reduce = comm::all_reduce_cost(
          comm::parse_cost(cost, o.cost), on_gpu ? comm::GradientPath::nccl : comm::GradientPath::host, session.size(),
          session.nodes(), o.cost);
    }
    model.emplace(nn::make_model(setup.model));
  });
  nn::RunIdentity identity = identity_of(o, setup, data, session, place.threads());
  if (on_gpu) {  // rank 0's, so that all ranks go on alike
    identity.options["device"] = comm::broadcast_text(session.control(), place.gpu()->name);
  }
  const bool hold = saved && o.evaluate.empty() && nn::choices_hold(saved->identity, identity);
  const std::vector<double> holds = comm::all_gather_value(session.control(), hold ? 1 : 0);
  if (saved && *std::min_element(holds.begin(), holds.end()) == 1) {  // each rank may have read a file of its own
    setup.trainer.plan.choices = saved->identity.choices;
    setup.trainer.plan.choices_required = false;  // what cannot be planned here is reported as a difference below
  }
  const std::optional<nn::ChoiceReport> tuned = tune(o, session, context, *model, setup);
  if (o.watchdog > 0 && !o.dry_run) {
    watchdog.emplace(session, o.watchdog);
  }
  session.agree([&] {
    trainer.emplace(
        context,
        nn::Ranks{place.grad(), session.control(), place.communication_stream(), watchdog ? &*watchdog : nullptr},
        *model, data, setup.trainer);
  });
  identity.choices = trainer->choices();
  for (const comm::Bucket& bucket : trainer->reducer().buckets()) {
    identity.buckets.push_back(bucket.last);
  }

  if (first) {
    print_header(o, setup, *model, data, place, session, *trainer);
    if (tuned) {
      print_choices(*tuned, o.choices);
    }
  }
  if (o.dry_run) {
    if (first) {
      std::cout << '\n' << describe(trainer->train_plan()) << std::flush;
    }
    return exit_code::kFinished;
  }

  const auto doing = [&watchdog](const char* what) {
    if (watchdog) {
      watchdog->begin(what);
    }
  };
  session.agree([&] { trainer->start(); });
  nn::RunProgress progress;
  if (!o.evaluate.empty()) {
    session.agree([&] {
      doing("reading the checkpoint");
      nn::load_model(o.evaluate, context, trainer->parameters());
      doing("waiting for other ranks");
    });
    session.agree([&] { trainer->require_same_state(); });
    const nn::Metrics test = trainer->evaluate();
    if (first) {
      std::cout << "test loss " << test.loss() << "  accuracy " << std::fixed << std::setprecision(2)
                << 100 * test.accuracy() << " %";
      if (o.top_k > 0) {
        std::cout << ", top " << o.top_k << ' ' << 100 * test.top_k_accuracy() << " %";
      }
      std::cout << "  (" << std::setprecision(0) << test.correct << " of " << test.samples << ")\n";
    }
    return exit_code::kFinished;
  }
  std::string differences;
  std::vector<std::string> head;  // that --init has left as it was
  session.agree([&] {
    doing("reading the checkpoint");
    if (!o.init.empty()) {
      head = nn::load_pretrained(o.init, context, *model, trainer->parameters());
    } else if (!resume_from.empty()) {
      differences = nn::resume_checkpoint(resume_from, *trainer, session.control(), identity, progress);
    }
    doing("waiting for other ranks");
  });
  session.agree([&] { trainer->require_same_state(); });
  if (first && !head.empty()) {
    std::cout << "  head       " << o.init << " has another number of classes; these tensors are not taken from it:";
    for (const std::string& name : head) {
      std::cout << ' ' << name;
    }
    std::cout << '\n';
  }
  if (first && !resume_from.empty()) {
    std::cout << "  resuming   " << resume_from << " at epoch " << progress.position.epoch << ", batch "
              << progress.position.batch << ", step " << progress.position.step << '\n';
    std::istringstream lines(differences);
    for (std::string line; std::getline(lines, line);) {
      std::cout << "  differs    " << line << " (the run continues, not bit for bit)\n";
    }
  }

  Reports reports;
  session.agree([&] {
    doing(first ? "opening the files of results" : "waiting for rank 0's files of results");
    if (!first) {
      return;
    }
    std::error_code error;
    std::filesystem::create_directories(o.out, error);
    require<DataError>(!error, o.out, ": cannot be made: ", error.message());
    if (!lock) {
      lock_results();
    }
    replace_file(o.out + "/config.json", config_text(o, setup, identity, session, place.overlap_reason(), tuned));
    reports.open(o.out + "/metrics.jsonl", !resume_from.empty(),
                 {.terminal = nn::output_is_terminal(),
                  .batches_per_epoch = trainer->batches_per_epoch(),
                  .epochs = setup.epochs,
                  .total_steps = setup.total_steps});
  });
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  std::signal(SIGUSR1, on_signal);

  std::optional<train_resnet::WaitWatch> waits;
  if (first && o.report_waits > 0) {
    waits.emplace(context, *trainer, o.report_waits);
  }
  const nn::RunResult result = nn::run_training(*trainer, session.control(), identity,
                                                {.epochs = setup.epochs,
                                                 .steps = o.steps,
                                                 .log_every = o.log_every,
                                                 .checkpoint_dir = o.out,
                                                 .checkpoint_every = o.checkpoint_every,
                                                 .stop = &stop_signal},
                                                progress, reports);
  const int code = result.end == nn::RunEnd::finished ? exit_code::kFinished : exit_code::kStopped;
  if (waits) {
    report_waits(o, waits->counts(), context, reports);
  }
  reports.on_end(code, trainer->position().step, result);
  const auto percent = [](double accuracy) {
    std::ostringstream out;
    out << std::fixed << std::setprecision(2) << 100 * accuracy << " %";
    return accuracy < 0 ? std::string("not measured") : out.str();
  };
  if (first && code == exit_code::kStopped) {
    std::cout << "stopped by a signal at step " << trainer->position().step << "; --resume auto goes on from " << o.out
              << "/last\n";
  } else if (first) {
    std::cout << "finished: test accuracy " << percent(result.test_accuracy) << ", best "
              << percent(result.best_accuracy) << "; results in " << o.out << '\n';
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run, [&]() -> std::optional<lockstep::comm::RanksRequest> {
    const train_resnet::Parsed parsed = train_resnet::parse(argc, argv, lockstep::cli::read_config_file(argc, argv));
    return parsed.text.empty() ? std::optional(lockstep::cli::ranks_request(parsed.options.launch)) : std::nullopt;
  });
}
