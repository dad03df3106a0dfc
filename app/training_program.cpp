#include <lockstep/app/training_program.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include <lockstep/app/detail/restart_copies.hpp>
#include <lockstep/app/detail/run_config.hpp>
#include <lockstep/app/detail/run_site.hpp>
#include <lockstep/app/detail/run_timeline.hpp>
#include <lockstep/app/detail/starting_point.hpp>
#include <lockstep/app/detail/stored_model.hpp>
#include <lockstep/app/detail/trainer_maker.hpp>
#include <lockstep/app/evaluation_file.hpp>
#include <lockstep/app/run_header.hpp>
#include <lockstep/app/run_summary.hpp>
#include <lockstep/app/standard_output.hpp>
#include <lockstep/app/stop_signals.hpp>
#include <lockstep/app/wait_report.hpp>
#include <lockstep/nn/run/evaluation/class_statistics.hpp>
#include <lockstep/nn/run/predicted_step.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn {

/// The parts of a training program in the order in which they run, and the object that holds standard output.
struct TrainingProgram::Impl {
  Impl(comm::Session& session, comm::RankContext& place, const TrainingOptions& options)
      : output(session.rank() == 0 ? std::make_unique<StandardOutput>() : nullptr),
        site(session, place, options),
        copies(site),
        start(site, copies),
        timeline(site) {}

  /// Waits until the printed text is written, unless this object is destroyed because of an error.
  ~Impl() {
    if (std::uncaught_exceptions() == uncaught) {
      wait_for_reader();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Waits until the printed text is written. A single rank waits without limit, until a signal stops it, as other
  /// programs do. Several ranks end together, so their wait is at most 10 seconds.
  void wait_for_reader() noexcept {
    if (!output) {
      return;
    }
    if (site.watchdog != nullptr) {
      site.watchdog->pause("waiting for the reader of standard output");
    }
    constexpr double kWithOthers = 10;
    output->finish(site.session.size() > 1 ? kWithOthers : std::numeric_limits<double>::infinity(),
                   [this] { return stop != nullptr && stop->load(std::memory_order_relaxed) != 0; });
  }

  /// Ends a program whose result is its output, and returns the exit code. Throws WriteError if output was not written.
  int end_printed() {
    wait_for_reader();
    require<WriteError>(!output || !output->failed(),
                        "standard output: the result could not be written, expected a file with room or a reader");
    return exit_code::kFinished;
  }

  int run(TrainingInputs given, RunObserver* observer) {
    require<StateError>(!kept, "training program: run() is called a second time, expected one call");
    TrainingInputs& inputs = kept.emplace(std::move(given));
    site.session.agree([&] {
      for (const std::string& name : o.freeze) {
        inputs.model = inputs.model.freezing(name);
      }
    });
    require<UsageError>(inputs.train != nullptr && inputs.test != nullptr,
                        "training program: a data set is missing, expected one to train on and one to test with");
    detail::TrainerMaker(site, start.saved(), made, trainer).make(inputs);
    if (site.first) {
      print_what_was_made(inputs);
    }
    if (o.dry_run) {
      return end_printed();
    }
    site.session.agree([&] { trainer->start(); });
    if (!o.evaluate.empty()) {
      return evaluate(inputs, observer);
    }
    const RunProgress progress = start.load(inputs, *trainer, made.identity);
    copies.begin(start.resumed(), *trainer, made.identity, progress);
    return train(inputs, progress, observer);
  }

  void print_what_was_made(const TrainingInputs& inputs) {
    print_header(std::cout, o, inputs, made.resolved, site.session, site.place, *trainer);
    if (made.tuned) {
      print_choices(std::cout, *made.tuned, o.choices);
    }
    if (const auto& verifier = made.resolved.trainer.step.plan.verifier) {
      print_verified(std::cout, *verifier);
    }
    if (o.dry_run) {
      std::cout << '\n' << describe(trainer->train_plan());
      if (!o.describe_gpu.empty()) {
        std::cout << '\n' << predict_on_gpu(known_gpu(o.describe_gpu), *trainer, o.trace);
      }
      std::cout << std::flush;
    }
  }

  /// Returns the metrics in `inputs`. If the model is a classifier, makes `classes` and also returns its metrics.
  std::vector<RunMetric> watch_classes(const TrainingInputs& inputs) {
    constexpr std::size_t kWorst = 16;
    std::vector<RunMetric> metrics = inputs.metrics;
    if (ClassStatistics::can_watch(*trainer)) {
      classes.emplace(*trainer, site.ranks(), kWorst);
      for (RunMetric& metric : classes->metrics()) {
        if (std::none_of(metrics.begin(), metrics.end(),
                         [&](const RunMetric& own) { return own.name == metric.name; })) {
          metrics.push_back(std::move(metric));
        }
      }
    }
    return metrics;
  }

  int evaluate(const TrainingInputs& inputs, RunObserver* observer) {
    if (site.first) {
      const auto& saved = start.saved();
      const std::string step = saved ? concat(", step ", saved->progress.position.step) : std::string();
      std::cout << "  evaluating " << displayed(o.evaluate) << step << '\n';
    }
    const std::vector<RunMetric> metrics = watch_classes(inputs);
    detail::StoredModel{site, inputs, *trainer, classes ? &*classes : nullptr}.evaluate(metrics, observer);
    return end_printed();
  }

  void open_files(const TrainingInputs& inputs, const Position& begin) {
    site.session.agree([&] {
      site.doing(site.first ? "opening the files of results" : "waiting for rank 0's files of results");
      stop = &record_stop_signals();  // set before files are deleted, so that a stop signal leaves a checkpoint
      if (!site.first) {
        return;
      }
      const bool goes_on = !start.resumed().empty();
      if (o.overwrite && !goes_on) {
        files.remove_results(o.out);
      }
      if (o.tensorboard) {
        files.also_tensorboard(begin.step);
      }
      files.open(o.out, detail::config_of(site, made, inputs), goes_on, std::cout,
                 {.terminal = output_is_terminal(),
                  .samples = inputs.samples,
                  .accuracies = !trainer->evaluation_plan().layout().regression});
      if (!o.trace.empty()) {
        TimelineFile::start(o.trace);
      }
    });
    keep_operations();
    if (o.stop_within) {
      files.warn_of_steps(*o.stop_within, made.resolved.trainer.global_batch);
    }
  }

  /// Sets the file to which a failing job writes its last collectives. Deletes the file that an earlier run has left
  /// there.
  void keep_operations() {
    comm::Session& session = site.session;
    const std::string file =
        concat(o.out, "/operations", session.nodes() > 1 ? concat("-node-", session.node()) : "", ".json");
    if (session.local_rank() == 0) {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
    session.keep_operations(file);
  }

  RunOptions run_options(const TrainingInputs& inputs, const std::vector<RunMetric>& metrics) {
    constexpr double kNoTime = 1e-6;  // a time limit so short, in seconds, that the run stops after one step
    RunOptions options = o.run;
    options.checkpoint_dir = o.out;
    options.checkpoint_place = [this] { return files.place(); };
    options.checkpoint_first = start.rolls_back();
    copies.add_to(options, *trainer, made.identity);
    options.metrics = metrics;
    options.best = inputs.best;
    if (o.run.max_seconds > 0) {  // --max-time counts from the first start of the job
      options.max_seconds = std::max(o.run.max_seconds - site.session.launch().attempt.seconds, kNoTime);
    }
    options.stop = stop;
    options.stop_within = o.stop_within.value_or(options.stop_within);
    return options;
  }

  int train(const TrainingInputs& inputs, const RunProgress& progress, RunObserver* observer) {
    open_files(inputs, progress.position);
    std::optional<WaitWatch> waits;
    if (site.first && o.report_waits > 0) {
      waits.emplace(site.place.context(), *trainer, o.report_waits);
    }
    RunObservers observers;
    timeline.start(*trainer, made.resolved.total_steps, observers);
    observers.add(files);
    const RunOptions options = run_options(inputs, watch_classes(inputs));
    std::optional<EvaluationFile> evaluation;
    if (classes) {
      observers.add(*classes);
      observers.add(evaluation.emplace(files, *classes, *inputs.test, inputs.class_names));
    }
    if (observer != nullptr) {
      observers.add(*observer);
    }
    try {
      result = run_training(*trainer, site.session.control(), made.identity, options, progress, observers);
    } catch (...) {
      timeline.save_own();
      throw;
    }
    copies.finish();
    if (waits) {
      waits->report(files);
    }
    timeline.report();
    const int code = exit_code_of(result->end);
    files.on_end(code, *result);
    if (site.first) {
      const bool trained = trainer->position().step > progress.position.step || start.resumed().empty();
      std::cout << end_text(*result, o.run, trained, files.folder());
    }
    std::cout << std::flush;
    return code;
  }

  int uncaught = std::uncaught_exceptions();
  std::unique_ptr<StandardOutput> output;  ///< exists on rank 0 only
  const std::atomic<int>* stop = nullptr;
  detail::RunSite site;
  const TrainingOptions& o = site.options;
  RunFolder& files = site.files;
  detail::RestartCopies copies;
  detail::StartingPoint start;
  detail::PreparedTraining made;
  std::optional<TrainingInputs> kept;  ///< inputs of run(), kept because threads of the trainer read from the data sets
  detail::RunTimeline timeline;
  std::optional<Trainer> trainer;
  std::optional<ClassStatistics> classes;  ///< must be destroyed before the trainer
  std::optional<RunResult> result;
};

TrainingProgram::TrainingProgram(comm::Session& session, comm::RankContext& place, const TrainingOptions& options)
    : impl_(std::make_unique<Impl>(session, place, options)) {}
TrainingProgram::~TrainingProgram() = default;

const RunIdentity* TrainingProgram::evaluated() const {
  const auto& saved = impl_->start.saved();
  return saved && !impl_->o.evaluate.empty() ? &saved->identity : nullptr;
}
bool TrainingProgram::takes_parameters() const {
  return !impl_->o.evaluate.empty() || !impl_->o.init.empty() || !impl_->start.resumed().empty();
}
int TrainingProgram::run(TrainingInputs inputs, RunObserver* observer) {
  return impl_->run(std::move(inputs), observer);
}
Trainer& TrainingProgram::trainer() {
  require<StateError>(impl_->trainer.has_value(),
                      "training program: trainer() is called before run(), expected run() before");
  return *impl_->trainer;
}
const RunResult* TrainingProgram::result() const {
  return impl_->result ? &*impl_->result : nullptr;
}

}  // namespace lockstep::nn
