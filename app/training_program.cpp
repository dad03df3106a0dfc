#include <lockstep/app/training_program.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <utility>

#include <lockstep/app/evaluation_file.hpp>
#include <lockstep/app/found_checkpoints.hpp>
#include <lockstep/app/header.hpp>
#include <lockstep/app/memory_copies.hpp>
#include <lockstep/app/run_end.hpp>
#include <lockstep/app/run_files.hpp>
#include <lockstep/app/standard_output.hpp>
#include <lockstep/app/stop_signals.hpp>
#include <lockstep/app/trainer_maker.hpp>
#include <lockstep/app/wait_report.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/run/evaluation/class_watch.hpp>
#include <lockstep/nn/run/observers/run_trace.hpp>
#include <lockstep/nn/run/predicted_step.hpp>
#include <lockstep/nn/run/timeline.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

Json json_of(const ChoiceReport& report) {
  return Json::Object{{"calls", report.calls},
                      {"distinct", report.distinct},
                      {"timed", report.timed},
                      {"seconds", report.seconds},
                      {"refused", Json::Array(report.refused.begin(), report.refused.end())}};
}

Json json_of(const ChoiceVerifier* verifier) {
  if (verifier == nullptr) {
    return {};
  }
  const auto& refused = verifier->refused();
  return Json::Object{{"compared", verifier->compared()},
                      {"seconds", verifier->seconds()},
                      {"refused", Json::Array(refused.begin(), refused.end())}};
}

}  // namespace

struct TrainingProgram::Impl {
  Impl(comm::Session& s, comm::Workplace& p, const TrainingOptions& options)
      : session(s), place(p), o(options), first(s.rank() == 0) {
    if (first) {
      output.emplace();
    }
    watchdog = session.watchdog();
    if (watchdog == nullptr && o.watchdog > 0) {
      watchdog = &own_watchdog.emplace(session, o.watchdog);
    }
    if (watchdog != nullptr && o.stall_report) {
      watchdog->report_after(*o.stall_report);
    }
    doing("looking for checkpoints");
    // One run writes to a folder; what it kept there is read below. Where no run was yet, the folder may be missing.
    const comm::Attempt& attempt = session.launch().attempt;
    double found = 0;  // 1: an earlier start of this job has written to the folder; 2: a checkpoint, too
    session.agree([&] {
      if (first && !o.dry_run && o.evaluate.empty()) {
        if (attempt.number > 0 || !o.resume.empty()) {  // the ranks of a killed job take a moment to notice
          constexpr std::chrono::seconds kEnding{30};
          constexpr std::chrono::seconds kKilled{10};
          files.wait_for_lock(attempt.number > 0 ? kEnding : kKilled);
        }
        files.lock_if_used(o.out);
        const bool used = attempt.number > 0 && RunFiles::job_of(o.out) == attempt.job;
        const bool names_one = !o.resume.empty() && o.resume != "auto";
        if (used && !(names_one && RunFiles::goes_back(o.out))) {
          found = newest_checkpoint(o.out).empty() ? 1 : 2;
        }
      }
    });
    found = comm::all_gather_value(session.control(), found).front();
    o.overwrite = o.overwrite || found > 0;
    if (found > 1) {
      o.resume = "auto";
    }
    // Rank 0 writes the checkpoints and decides whether there is one to go on from; every rank reads it, perhaps from a
    // file system of its own.
    resume_from = o.resume;
    if (o.resume == "auto") {
      session.agree([&] { resume_from = first ? newest_checkpoint(o.out) : ""; });
      resume_from = comm::broadcast_text(session.control(), resume_from);
      if (!resume_from.empty()) {
        o.init.clear();
      }
    } else {
      resume_from = checkpoint_in(session, resume_from);
    }
    o.evaluate = best_in(o.evaluate);
    o.trainer.keep_last =
        o.trainer.keep_last || !o.evaluate.empty();  // no batch is taken from the training set, however small that is
    o.init = best_in(o.init);
    if (o.run.copy_every > 0 && !o.dry_run && o.evaluate.empty()) {
      look_for_copies();
    }
    session.agree([&] {
      const std::string source = o.evaluate.empty() ? resume_from : checkpoint_folder(o.evaluate);
      if (!source.empty()) {
        naming_others(source, [&] { saved = read_checkpoint_state(source); });
      }
      require<UsageError>(!first || o.dry_run || !o.evaluate.empty() || !file_exists(o.out + "/state.json"), "--out ",
                          o.out, " is a checkpoint, expected the folder of results that it is in");
      if (first && !o.dry_run && o.evaluate.empty() && !o.overwrite && !lies_in(resume_from, o.out)) {
        RunFiles::require_no_checkpoints(o.out);
      }
      files.name_holder();
    });
  }

  /// A folder of results stands for its best checkpoint, as people mean it, else for its newest.
  std::string best_in(const std::string& path) {
    std::string found = checkpoint_in(session, path);
    session.agree([&] {
      if (first && lies_in(found, path)) {
        const std::string best = concat(std::filesystem::path(found).parent_path().string(), "/best");
        found = find_folder(best).empty() ? found : best;
      }
    });
    return comm::broadcast_text(session.control(), found);
  }

  /// A folder of results that somebody has moved is not there any more for the next start; the copies are.
  void look_for_copies() {
    const comm::Attempt& attempt = session.launch().attempt;
    session.agree([&] {
      require<UsageError>(!attempt.job.empty(), "--copy-every is ", o.run.copy_every,
                          ", which is for restarts: expected --max-restarts above 0");
    });
    doing("looking for copies in memory");
    copies.emplace(session.control(),
                   MemoryCopies::Place{.job = attempt.job, .node = session.node(), .local_rank = session.local_rank()},
                   [this](const std::string& line) { files.note("warning: " + line); });
    const std::optional<std::int64_t> newest = attempt.number > 0 ? copies->find() : std::nullopt;
    const double last = first ? static_cast<double>(step_of_sound(newest_checkpoint(o.out)).value_or(-1)) : 0;
    const double on_disk = comm::all_gather_value(session.control(), last).front();
    if (newest && static_cast<double>(*newest) > on_disk) {
      resume_from = copies->newest();
      o.resume = "auto";
      o.init.clear();
    }
  }

  /// Once the state is there: from here on copies are made, unless no start follows that could need one.
  void begin_copies(const RunProgress& progress) {
    const bool last_start = session.launch().attempt.number >= o.restarts;
    if (last_start && resume_from == copies->newest()) {  // nothing else has this state; `files` is not open yet
      save_checkpoint(o.out + "/last", *trainer, session.control(), made.identity, progress, o.run.keep);
    }
    copies->settle(last_start);
    const ParameterSet& parameters = trainer->parameters();
    const std::size_t states = parameters.state_names().size() + 1;
    std::size_t own = 0;  // of each rank
    for (const State& state : parameters.states().all()) {
      const bool differs = state.sharing == Sharing::of_rank || state.sharing == Sharing::sum_of_ranks;
      own += differs ? state.view.bytes() : 0;
    }
    const std::size_t bytes = parameters.values().bytes() * states + 2 * parameters.evaluation_buffer_arena().bytes() +
                              own * static_cast<std::size_t>(session.size());
    if (copies->on()) {
      copies->require_room(bytes);
    }
    if (first && copies->on()) {
      std::cout << "  copies     every " << o.run.copy_every << " steps in " << kCopiesRoot << " of "
                << (session.nodes() > 1 ? "2 nodes" : "this node") << ", for restarts\n"
                << std::flush;
    }
  }

  /// Normally: once the reader of the output has it all. An error does not wait for a reader.
  ~Impl() {
    if (std::uncaught_exceptions() == uncaught) {
      wait_for_reader();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// A single rank waits as other programs do, until it is read or stopped. Several end together, so they wait little.
  void wait_for_reader() noexcept {
    if (!output) {
      return;
    }
    if (watchdog != nullptr) {
      watchdog->pause("waiting for the reader of standard output");
    }
    constexpr double kWithOthers = 10;
    output->finish(session.size() > 1 ? kWithOthers : std::numeric_limits<double>::infinity(),
                   [this] { return stop != nullptr && stop->load(std::memory_order_relaxed) != 0; });
  }

  /// For a program whose result is what it prints.
  void require_printed() {
    wait_for_reader();
    require<WriteError>(!output || !output->failed(), "standard output: the result could not be written");
  }

  void doing(const char* what) noexcept {
    if (watchdog != nullptr) {
      watchdog->begin(what);
    }
  }

  int run(Recipe given, RunObserver* observer) {
    require<StateError>(!kept, "training program: run() a second time");
    Recipe& recipe = kept.emplace(std::move(given));
    session.agree([&] {
      for (const std::string& name : o.freeze) {
        recipe.model = recipe.model.freezing(name);
      }
    });
    require<UsageError>(recipe.train != nullptr && recipe.test != nullptr,
                        "training program: a data set is missing, expected one to train on and one to test with");
    TrainerMaker(session, place, o, watchdog, saved, made, trainer).make(recipe);
    if (first) {
      print_header(std::cout, o, recipe, made.resolved, session, place, *trainer);
      if (made.tuned) {
        print_choices(std::cout, *made.tuned, o.choices);
      }
      if (const auto& verifier = made.resolved.trainer.plan.verifier) {
        print_verified(std::cout, *verifier);
      }
    }
    if (o.dry_run) {
      if (first) {
        std::cout << '\n' << describe(trainer->train_plan());
        if (!o.describe_gpu.empty()) {
          std::cout << '\n' << predict_on_gpu(known_gpu(o.describe_gpu), *trainer, o.trace);
        }
        std::cout << std::flush;
      }
      require_printed();
      return exit_code::kFinished;
    }
    session.agree([&] { trainer->start(); });
    if (!o.evaluate.empty()) {
      return evaluate(recipe, observer);
    }
    const RunProgress progress = load(recipe);
    if (copies) {
      begin_copies(progress);
    }
    return train(recipe, progress, observer);
  }

  /// The metrics of the recipe, and of classes where the model is a classifier, which `classes` then watches.
  std::vector<RunMetric> watch_classes(const Recipe& recipe) {
    constexpr std::size_t kWorst = 16;
    std::vector<RunMetric> metrics = recipe.metrics;
    if (ClassWatch::can_watch(*trainer)) {
      classes.emplace(*trainer, ranks_of(session, place, watchdog), kWorst);
      for (RunMetric& metric : classes->metrics()) {
        if (std::none_of(metrics.begin(), metrics.end(),
                         [&](const RunMetric& own) { return own.name == metric.name; })) {
          metrics.push_back(std::move(metric));
        }
      }
    }
    return metrics;
  }

  int evaluate(const Recipe& recipe, RunObserver* observer) {
    if (first) {
      const std::string step = saved ? concat(", step ", saved->progress.position.step) : std::string();
      std::cout << "  evaluating " << displayed(o.evaluate) << step << '\n';
    }
    const std::vector<RunMetric> metrics = watch_classes(recipe);
    RunObservers observers;
    if (classes) {
      observers.add(*classes);
    }
    RunObservers both;
    both.add(observers);
    if (observer != nullptr) {
      both.add(*observer);
    }
    evaluate_model(o.evaluate, "", metrics, both);
    if (const std::string average = average_beside(); !average.empty()) {
      evaluate_model(average, "ema ", {}, observers);
    }
    require_printed();
    return exit_code::kFinished;
  }

  /// The moving average in the checkpoint that is evaluated, as rank 0 finds it; empty: there is none.
  [[nodiscard]] std::string average_beside() {
    std::string average;
    session.agree([&] {
      const std::string file = concat(o.evaluate, '/', kAverageFile);
      average = first && file_exists(file) ? file : "";
    });
    return comm::broadcast_text(session.control(), average);
  }

  /// Prints what the test set says of the model at `path`, behind `label`.
  void evaluate_model(const std::string& path, const char* label, const std::vector<RunMetric>& metrics,
                      RunObserver& observer) {
    session.agree([&] {
      doing("reading the checkpoint");
      naming_others(path, [&] { load_model(path, place.context(), trainer->parameters()); });
      doing("waiting for other ranks");
    });
    session.agree([&] { trainer->require_same_state(); });
    const EvaluationEvent test = run_evaluation(*trainer, session.control(), metrics, observer);
    if (first) {
      std::cout << label << "test loss " << (std::isnan(test.loss) ? "-" : concat(test.loss));
      if (!regression()) {
        std::cout << "  accuracy " << value_text("test_accuracy", test.accuracy);
        if (o.trainer.plan.top_k > 0) {
          std::cout << ", top " << o.trainer.plan.top_k << ' ' << value_text("test_accuracy", test.top_k_accuracy);
        }
        std::cout << "  (" << digits(test.correct, 0) << " of " << digits(test.samples, 0) << ")";
      }
      for (const auto& [name, value] : test.metrics) {
        std::cout << "  " << name << ' ' << value_text(name, value);
      }
      std::cout << '\n';
      if (classes) {
        std::cout << text_of(classes->report(), kept->class_names);
      }
      std::cout << std::flush;
    }
  }

  RunProgress load(const Recipe& recipe) {
    RunProgress progress;
    std::string differences;
    std::vector<std::string> head;  // that --init has left as it was
    session.agree([&] {
      doing("reading the checkpoint");
      if (!o.init.empty()) {
        head = load_pretrained(o.init, place.context(), recipe.model, trainer->parameters());
      } else if (!resume_from.empty()) {
        naming_others(resume_from, [&] {
          differences = resume_checkpoint(resume_from, *trainer, session.control(), made.identity, progress);
        });
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
      print_resumed(std::cout, resume_from, progress, differences);
    }
    settle_best(recipe.best, progress);
    return progress;
  }

  /// Whether the run goes on from a checkpoint of its folder other than last/, and which its best one is now.
  void settle_best(const BestBy& by, RunProgress& progress) {
    const BestBy metric = resolved(by, trainer->options().average.on(), regression());
    std::optional<double> value = progress.best;
    session.agree([&] {
      if (!first) {
        return;
      }
      const bool another = lies_in(resume_from, o.out) && !is_last_of(resume_from, o.out);
      const bool done =
          progress.position.epoch >= o.run.epochs || (o.run.steps > 0 && progress.position.step >= o.run.steps);
      goes_back = another && !(done && !find_folder(o.out + "/last").empty());
      if (another && !goes_back) {  // nothing is left to do: nothing is written over
        return;
      }
      const BestOfResumed found = best_of_resumed(o.out, progress, metric, goes_back);
      value = found.value;
      if (!resume_from.empty()) {
        files.resumes(
            {.event = {{"from", resume_from}, {"epoch", progress.position.epoch}, {"step", progress.position.step}},
             .from_another = goes_back,
             .best_from = found.copy_from});
      }
      if (progress.best && !value) {
        std::cout << "  best       " << o.out << "/best is not the best of " << resume_from
                  << "; the next evaluation will be\n"
                  << std::flush;
      }
    });
    goes_back = comm::all_gather_value(session.control(), goes_back ? 1 : 0).front() != 0;
    const bool known = comm::all_gather_value(session.control(), value ? 1 : 0).front() != 0;
    const double best = comm::all_gather_value(session.control(), value.value_or(0)).front();
    progress.best = known ? std::optional(best) : std::nullopt;
  }

  /// Of --max-time, which counts from the job's first start; 0: no limit.
  [[nodiscard]] double time_left() const {
    constexpr double kNone = 1e-6;  // the first step is the last
    return o.run.max_seconds > 0 ? std::max(o.run.max_seconds - session.launch().attempt.seconds, kNone) : 0;
  }
  [[nodiscard]] bool regression() const { return trainer->evaluation_plan().layout().regression; }

  [[nodiscard]] Json config(const Recipe& recipe) {
    Json::Object options;
    for (const auto& [key, value] : made.identity.options) {
      options[key] = value;
    }
    Json::Object config{{"lockstep", build_description()},
                        {"model", made.identity.model},
                        {"seed", made.identity.seed},
                        {"ranks", session.size()},
                        {"nodes", session.nodes()},
                        {"threads_per_rank", made.identity.threads},
                        {"global_batch", made.identity.global_batch},
                        {"options", options},
                        {"overlap", place.overlap_reason()},
                        {"recompute", std::string(name_of(o.trainer.plan.recompute))},
                        {"weights_beside", o.trainer.weights_beside},
                        {"dependent_launches", o.dependent_launches},
                        {"bucket_mb", o.bucket_mb},
                        {"cost", o.cost},
                        {"library_choices", made.tuned ? json_of(*made.tuned) : Json()},
                        {"library_verification", json_of(made.resolved.trainer.plan.verifier.get())},
                        {"workers", made.resolved.rules.workers},
                        {"log_every", o.run.log_every},
                        {"report_waits", o.report_waits},
                        {"watchdog", o.watchdog},
                        {"top_k", o.trainer.plan.top_k},
                        {"recipe", o.recipe},
                        {"init", o.init},
                        {"resume", o.resume}};
    if (const std::string& job = session.launch().attempt.job; !job.empty()) {
      config["job"] = job;
    }
    Json::Object chosen;  // what --config reads, by the names of a file
    for (const auto& [name, text] : o.chosen) {
      std::string key = name;
      std::ranges::replace(key, '_', '-');
      chosen[key] = text;
    }
    config["chosen"] = chosen;
    config.insert(recipe.config.begin(), recipe.config.end());
    return config;
  }

  int train(const Recipe& recipe, const RunProgress& progress, RunObserver* observer) {
    session.agree([&] {
      doing(first ? "opening the files of results" : "waiting for rank 0's files of results");
      stop = &record_stop_signals();  // before anything is deleted: from here on a stop leaves a checkpoint
      if (first && o.overwrite && resume_from.empty()) {
        files.remove_results(o.out);
      }
      if (first && o.tensorboard) {
        files.also_tensorboard(progress.position.step);
      }
      if (first) {
        files.open(o.out, config(recipe), !resume_from.empty(), std::cout,
                   {.terminal = output_is_terminal(), .samples = recipe.samples, .accuracies = !regression()});
        if (!o.trace.empty()) {
          TimelineFile::start(o.trace);
        }
      }
    });
    keep_operations();
    std::optional<WaitWatch> waits;
    if (first && o.report_waits > 0) {
      waits.emplace(place.context(), *trainer, o.report_waits);
    }
    if (o.stop_within) {
      files.warn_of_steps(*o.stop_within, made.resolved.trainer.global_batch);
    }
    RunObservers observers;
    if (!o.trace.empty()) {
      session.agree([&] { observers.add(make_trace()); });
      trace->start();
    }
    observers.add(files);
    const std::vector<RunMetric> metrics = watch_classes(recipe);
    std::optional<EvaluationFile> evaluation;
    if (classes) {
      observers.add(*classes);
      observers.add(evaluation.emplace(files, *classes, *recipe.test, recipe.class_names));
    }
    if (observer != nullptr) {
      observers.add(*observer);
    }
    RunOptions options = o.run;
    options.checkpoint_dir = o.out;
    options.checkpoint_place = [this] { return files.place(); };
    options.checkpoint_first = goes_back;
    options.copy_every = copies && copies->on() ? o.run.copy_every : 0;
    options.copy = [this](const RunProgress& at) { copies->save(*trainer, made.identity, at); };
    options.metrics = metrics;
    options.best = recipe.best;
    options.max_seconds = time_left();
    options.stop = stop;
    options.stop_within = o.stop_within.value_or(options.stop_within);
    try {
      result = run_training(*trainer, session.control(), made.identity, options, progress, observers);
    } catch (...) {
      if (first && trace) {
        trace->save_own();
      }
      throw;
    }
    if (copies) {
      copies->finish();
    }
    const bool stopped = result->end == RunEnd::stopped || result->end == RunEnd::out_of_time;
    const int code = stopped ? exit_code::kStopped : exit_code::kFinished;
    if (waits) {
      report_waits(waits->counts());
    }
    if (trace) {
      report_trace();
    }
    files.on_end(code, *result);
    if (first) {
      const Position& at = trainer->position();
      const std::string folder = files.folder();
      if (code == exit_code::kStopped) {
        std::cout << "stopped by " << (result->end == RunEnd::stopped ? "a signal" : "--max-time") << " at step "
                  << at.step << "; --resume auto goes on from " << folder << "/last\n";
      } else {
        if (at.step > progress.position.step || resume_from.empty()) {
          std::cout << "finished" << (result->end == RunEnd::no_better ? " by --patience: " : ": ");
        } else {  // nothing was left to do
          std::cout << "already finished, at epoch " << at.epoch << " (--epochs " << o.run.epochs << "), step "
                    << at.step << (o.run.steps > 0 ? concat(" (--steps ", o.run.steps, ")") : std::string())
                    << (result->end == RunEnd::no_better ? concat(" (--patience ", o.run.patience, ")") : std::string())
                    << ": ";
        }
        std::cout << result_text(result->progress) << "; results in " << folder << '\n';
      }
    }
    std::cout << std::flush;
    return code;
  }

  /// Where the last collectives are written if the job fails. What an earlier run has left there goes.
  void keep_operations() {
    const std::string file =
        concat(o.out, "/operations", session.nodes() > 1 ? concat("-node-", session.node()) : "", ".json");
    if (session.local_rank() == 0) {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
    session.keep_operations(file);
  }

  RunTrace& make_trace() {
    const std::int64_t left = made.resolved.total_steps - trainer->position().step;
    return trace.emplace(*trainer, session.control(), o.trace,
                         o.trace_steps.empty() ? default_trace_steps(left) : parse_trace_steps(o.trace_steps));
  }

  void report_trace() {
    std::optional<TimelineSummary> summary;
    session.agree([&] {
      doing("writing the timeline");
      trace->stop();
    });
    session.agree([&] { summary = trace->write(); });
    if (first) {
      std::cout << summary->text(o.trace);
      Json::Object fields = summary->json();
      fields["file"] = o.trace;
      files.write_event("trace", fields);
    }
  }

  /// What has made the host wait, and the memory at the end of the run.
  void report_waits(const WaitCounts& waits) {
    const std::optional<MemorySummary> memory = memory_now(place.context());
    std::cout << waits.text(o.report_waits) << (memory ? "  memory     " + to_string(*memory) + "\n" : "");
    files.write_event(
        "waits",
        {{"first_steps", o.report_waits}, {"calls", waits.json()}, {"memory", memory ? nn::json_of(*memory) : Json()}});
  }

  int uncaught = std::uncaught_exceptions();
  std::optional<StandardOutput> output;  ///< rank 0's
  const std::atomic<int>* stop = nullptr;
  comm::Session& session;
  comm::Workplace& place;
  TrainingOptions o;
  bool first;
  RunFiles files;  ///< rank 0's
  std::string resume_from;
  bool goes_back = false;                ///< resume_from is a checkpoint of the folder of results, and not its last/
  std::optional<MemoryCopies> copies;    ///< none: --copy-every is 0
  std::optional<CheckpointState> saved;  ///< of what is resumed or evaluated
  PreparedTraining made;
  std::optional<Recipe> kept;  ///< the trainer reads its data in threads of its own
  std::optional<comm::Watchdog> own_watchdog;
  comm::Watchdog* watchdog = nullptr;  ///< the session's, or our own; nullptr: none is wanted
  std::optional<RunTrace> trace;       ///< goes after the trainer: queued work writes to it
  std::optional<Trainer> trainer;
  std::optional<ClassWatch> classes;  ///< goes before the trainer
  std::optional<RunResult> result;
};

TrainingProgram::TrainingProgram(comm::Session& session, comm::Workplace& place, const TrainingOptions& options)
    : impl_(std::make_unique<Impl>(session, place, options)) {}
TrainingProgram::~TrainingProgram() = default;

const RunIdentity* TrainingProgram::evaluated() const {
  return impl_->saved && !impl_->o.evaluate.empty() ? &impl_->saved->identity : nullptr;
}
bool TrainingProgram::takes_parameters() const {
  return !impl_->o.evaluate.empty() || !impl_->o.init.empty() || !impl_->resume_from.empty();
}
int TrainingProgram::run(Recipe recipe, RunObserver* observer) {
  return impl_->run(std::move(recipe), observer);
}
Trainer& TrainingProgram::trainer() {
  require<StateError>(impl_->trainer.has_value(), "training program: trainer() before run()");
  return *impl_->trainer;
}
const RunResult* TrainingProgram::result() const {
  return impl_->result ? &*impl_->result : nullptr;
}

}  // namespace lockstep::nn
