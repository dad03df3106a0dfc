#include <lockstep/nn/run/training_run.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr std::string_view kLast = "last";

/// A name that metrics.jsonl does not have already.
bool is_own_name(const std::string& name) {
  static const std::set<std::string> kOurs{"accuracy",      "comm_exposed_s",  "epoch",
                                           "event",         "gradient_bytes",  "loss",
                                           "learning_rate", "peak_bytes",      "seconds",
                                           "sent_bytes",    "skipped_updates", "step",
                                           "test_loss",     "test_accuracy",   "test_top_k_accuracy",
                                           kAverageLoss,    kAverageAccuracy};
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos &&
         kOurs.count(name) == 0 && !name.ends_with("_per_second");
}

template <class Event>
MetricValues own_metrics(comm::Communicator& control, const std::vector<RunMetric>& metrics,
                         std::function<MetricPart(const Event&)> RunMetric::*function, const Event& event) {
  MetricValues values;
  for (const RunMetric& metric : metrics) {
    if (!(metric.*function)) {
      continue;
    }
    const MetricPart own = (metric.*function)(event);
    const std::vector<double> sums = comm::all_gather_value(control, own.sum);
    const std::vector<double> amounts = comm::all_gather_value(control, own.amount);
    double sum = 0;
    double amount = 0;
    bool equal = true;
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      sum += sums[rank];
      amount += amounts[rank];
      equal = equal && sums[rank] == sums[0] && amounts[rank] == amounts[0];
    }
    values[metric.name] = equal ? sums[0] / amounts[0] : sum / amount;
  }
  return values;
}

/// NaN for regressions, which have none.
double accuracy_of(const Trainer& trainer, const Metrics& sums) {
  return trainer.evaluation_plan().layout().regression ? std::numeric_limits<double>::quiet_NaN() : sums.accuracy();
}

/// Names and functions of metrics, checked; what ranks have to agree on.
std::string checked(const std::vector<RunMetric>& metrics) {
  std::string text;
  std::set<std::string> names;
  for (const RunMetric& metric : metrics) {
    require<UsageError>(is_own_name(metric.name) && names.insert(metric.name).second,
                        "training run: a metric has the name '", metric.name,
                        "', expected small letters, digits and '_', and none that is taken");
    require<UsageError>(metric.of_report || metric.of_evaluation, "training run: metric ", metric.name,
                        " has no function, expected of_report or of_evaluation");
    text += concat("metric ", metric.name, metric.of_report ? " of reports" : "",
                   metric.of_evaluation ? " of evaluations\n" : "\n");
  }
  return text;
}

EvaluationEvent evaluate(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                         RunObserver& observer) {
  const std::int64_t step = trainer.position().step;
  observer.on_evaluation_begin({.step = step});
  const Metrics test = trainer.evaluate([&](const Batch& batch, const TensorView& output) {
    observer.on_evaluation_batch({.batch = batch, .output = output});
  });
  EvaluationEvent event{.step = step,
                        .loss = test.loss(),
                        .accuracy = accuracy_of(trainer, test),
                        .top_k = trainer.evaluation_plan().top_k(),
                        .top_k_accuracy = test.top_k_accuracy(),
                        .correct = test.correct,
                        .samples = test.samples,
                        .metrics = {}};
  event.metrics = own_metrics(control, metrics, &RunMetric::of_evaluation, event);
  if (trainer.options().average.on()) {
    const Metrics average = trainer.evaluate_average();
    event.metrics[kAverageLoss] = average.loss();
    if (!trainer.evaluation_plan().layout().regression) {
      event.metrics[kAverageAccuracy] = average.accuracy();
    }
  }
  observer.on_evaluation_end(event);
  return event;
}

/// One run: what run_training() goes through.
class Run {
 public:
  Run(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity, const RunOptions& options,
      RunProgress progress, RunObserver& observer)
      : trainer_(trainer),
        control_(control),
        identity_(identity),
        options_(options),
        progress_(std::move(progress)),
        observer_(observer),
        best_(resolved(options.best, trainer.options().average.on(), regression())),
        kept_(best_, options.keep_best, trainer.position().step),
        per_epoch_(trainer.batches_per_epoch()),
        lag_(trainer.steps_under_way()),
        timed_(!trainer.graph_obstacle().empty()) {}

  RunResult run() {
    check();
    if (progress_.best_by != best_.metric) {  // another kind of number
      progress_.best_by = best_.metric;
      progress_.best.reset();
      progress_.since_best = 0;
    }
    begin_ = now_s();
    const std::int64_t steps_of_epochs = at().step + trainer_.steps_until(options_.epochs);
    const bool cut = options_.steps > 0 && options_.steps < steps_of_epochs;
    const std::int64_t total = cut ? options_.steps : steps_of_epochs;
    const std::int64_t batches = at().batch + std::max<std::int64_t>(total - at().step, 0);  // from this epoch's begin
    const std::int64_t reached = at().epoch + (batches + per_epoch_ - 1) / per_epoch_;
    observer_.on_run_begin({.position = at(),
                            .epochs = cut ? std::min(reached, options_.epochs) : options_.epochs,
                            .total_steps = total,
                            .batches_per_epoch = per_epoch_});
    looked_at_ = at().step;
    checked_ = at().step;
    if (options_.checkpoint_first) {
      write(kLast);  // "best" may come behind it
    }
    RunEnd end = RunEnd::finished;
    while (at().epoch < options_.epochs && !steps_done()) {
      if (options_.patience > 0 && progress_.since_best >= options_.patience) {
        end = RunEnd::no_better;
        break;
      }
      // A stop at the last step of an epoch: its evaluation, event and checkpoints belonged to it.
      if (stopped_ || !run_epoch()) {
        end = out_of_time_ ? RunEnd::out_of_time : RunEnd::stopped;
        break;
      }
    }
    progress_.position = at();
    RunResult result{.end = end, .progress = progress_};
    observer_.on_run_end(result);
    return result;
  }

 private:
  /// A report that is due: made when the metrics of its last step are there on every rank.
  struct Report {
    std::int64_t step = 0;
    std::int64_t batch = 0;
    double learning_rate = 0;
    std::int64_t steps = 0;       ///< that it covers
    bool there = false;           ///< on this rank
    std::vector<Metrics> sums{};  ///< of this rank, as Trainer::metrics_of()
    double seconds = -1;          ///< below 0: not known yet
    double exposed_s = 0;
  };

  [[nodiscard]] const Position& at() const { return trainer_.position(); }
  [[nodiscard]] bool steps_done() const { return options_.steps > 0 && at().step >= options_.steps; }

  [[nodiscard]] bool may_stop() const { return options_.stop != nullptr || options_.max_seconds > 0; }

  [[nodiscard]] bool regression() const { return trainer_.evaluation_plan().layout().regression; }

  void check() {
    struct Amount {
      const char* name;
      std::int64_t value;
      std::int64_t least;
    };
    require<UsageError>(options_.stop_within >= 0, "training run: stop_within is ", options_.stop_within,
                        " seconds, expected at least 0");
    require<UsageError>(options_.max_seconds >= 0, "training run: max_seconds is ", options_.max_seconds,
                        ", expected at least 0");
    std::string same =
        concat("stop ", may_stop() ? "on" : "off", "\nmax seconds ", exact_text(options_.max_seconds), "\ncheckpoints ",
               options_.checkpoint_dir.empty() ? "off" : "on", options_.checkpoint_first ? ", one first" : "",
               "\nepoch ", at().epoch, ", batch ", at().batch, ", step ", at().step, "\nsteps under way ", lag_,
               "\nbest by ", best_.metric, best_.lowest ? ", lowest" : ", highest", ", so far ",
               progress_.best ? exact_text(*progress_.best) : std::string("none"), ", ", progress_.since_best,
               " evaluations ago\n");
    for (const Amount& amount :
         {Amount{"epochs", options_.epochs, 0}, Amount{"steps", options_.steps, 0}, Amount{"keep", options_.keep, 0},
          Amount{"keep_best", options_.keep_best, 1}, Amount{"log_every", options_.log_every, 1},
          Amount{"checkpoint_every", options_.checkpoint_every, 0},
          Amount{"copy_every", options_.copy ? options_.copy_every : 0, 0},
          Amount{"check_replicas", options_.check_replicas, 0}, Amount{"patience", options_.patience, 0}}) {
      require<UsageError>(amount.value >= amount.least, "training run: ", amount.name, " is ", amount.value,
                          ", expected at least ", amount.least);
      same += concat(amount.name, ' ', amount.value, '\n');
    }
    require<UsageError>(options_.epochs <= std::numeric_limits<std::int64_t>::max() / per_epoch_,
                        "training run: epochs is ", options_.epochs, ", of ", per_epoch_,
                        " steps each, expected fewer than 2^63 steps");
    bool known = best_.metric == "test_accuracy" || best_.metric == "test_loss" ||
                 (trainer_.options().average.on() &&
                  (best_.metric == kAverageLoss || (best_.metric == kAverageAccuracy && !regression())));
    same += checked(options_.metrics);
    for (const RunMetric& metric : options_.metrics) {
      known = known || (metric.of_evaluation && metric.name == best_.metric);
    }
    require<UsageError>(known, "training run: RunOptions::best is by '", best_.metric,
                        "', expected test_accuracy, test_loss or a metric of evaluations");
    require<UsageError>(best_.metric != "test_accuracy" || !regression(),
                        "training run: RunOptions::best is by test_accuracy, which a regression does not have, "
                        "expected test_loss or a metric of evaluations");
    comm::require_same_on_all_ranks(control_, same);
  }

  /// false: stopped by a signal, with a checkpoint.
  bool run_epoch() {
    const std::int64_t epoch = at().epoch;
    epoch_sums_ = {};
    epoch_train_s_ = 0;
    epoch_exposed_s_ = 0;
    const double epoch_begin = now_s();
    observer_.on_epoch_begin({.epoch = epoch, .step = at().step});
    restart_lap(now_s());
    lap_sums_.clear();
    next_step_ = at().step + 1;
    reported_ = at().step;
    while (at().epoch == epoch && !steps_done()) {
      const StepEvent event{.epoch = epoch, .step = at().step + 1, .learning_rate = trainer_.learning_rate()};
      const std::int64_t batch = at().batch + 1;
      observer_.on_step_begin(event);
      trainer_.step();
      observer_.on_step_end(event);
      const bool last = at().epoch != epoch || steps_done();
      if (last || at().step % options_.log_every == 0) {
        Report& due = due_[(first_due_ + waiting_++) % due_.size()];
        due = {.step = at().step, .batch = batch, .learning_rate = event.learning_rate, .steps = at().step - reported_};
        reported_ = at().step;
      }
      if (last) {
        trainer_.doing("waiting for the device after step");
        (void)trainer_.train_step().wait_loss();
      }
      collect();
      while (waiting_ > 0 && (last || due_[first_due_].step + lag_ <= at().step)) {
        report(epoch);
      }
      check_gradients(last ? at().step : at().step - lag_);
      if (options_.check_replicas > 0 && at().step % options_.check_replicas == 0) {
        trainer_.doing("comparing the parameters of all ranks after step");
        trainer_.train_step().check_replicas(control_);
      }
      look_for_stop();
      if (stopped_ && !last) {
        finish_reports(epoch);
        save(kLast);
        return false;
      }
      const bool checkpoint = options_.checkpoint_every > 0 && at().step % options_.checkpoint_every == 0;
      const bool copy = options_.copy && options_.copy_every > 0 && at().step % options_.copy_every == 0;
      if (!last && (checkpoint || copy)) {
        finish_reports(epoch);
        const double begin = now_s();
        if (checkpoint) {
          save(kLast);
        } else {
          note_progress();
          options_.copy(progress_);
        }
        lap_begin_ += now_s() - begin;
      }
    }
    end_epoch(epoch, epoch_begin);
    return true;
  }

  void restart_lap(double now) {
    lap_begin_ = now;
    lap_exposed_begin_ = trainer_.reducer().statistics().exposed_s;
  }

  /// Takes the metrics of steps that are there. Reports whose last steps came together share the time since the report
  /// before by their steps.
  void collect() {
    std::int64_t steps = 0;  // of these reports
    for (auto step = trainer_.metrics_of(next_step_); !step.empty(); step = trainer_.metrics_of(next_step_)) {
      lap_sums_.resize(step.size());
      for (std::size_t part = 0; part < step.size(); ++part) {
        lap_sums_[part] += step[part];
      }
      for (std::size_t i = 0; i < waiting_; ++i) {
        Report& due = due_[(first_due_ + i) % due_.size()];
        if (due.step == next_step_) {
          due.there = true;
          due.sums = std::exchange(lap_sums_, {});
          steps += due.steps;
        }
      }
      ++next_step_;
    }
    if (steps == 0) {
      return;
    }
    const double now = now_s();
    const double seconds = now - lap_begin_;
    const double exposed_s = trainer_.reducer().statistics().exposed_s - lap_exposed_begin_;
    for (std::size_t i = 0; i < waiting_; ++i) {
      Report& due = due_[(first_due_ + i) % due_.size()];
      if (due.there && due.seconds < 0) {
        const double part = static_cast<double>(due.steps) / static_cast<double>(steps);
        due.seconds = seconds * part;
        due.exposed_s = exposed_s * part;
      }
    }
    restart_lap(now);
  }

  /// What a checkpoint or the end waits for: all reports that are due.
  void finish_reports(std::int64_t epoch) {
    if (waiting_ > 0 || trainer_.options().check_gradients) {
      trainer_.doing("waiting for the device after step");
      (void)trainer_.train_step().wait_loss();
      collect();
      while (waiting_ > 0) {
        report(epoch);
      }
      check_gradients(at().step);
    }
  }

  /// Looks at the gradients of all steps up to this one, whose metrics are there.
  void check_gradients(std::int64_t through) {
    const TrainerOptions& options = trainer_.options();
    while (options.check_gradients && checked_ < through) {
      ++checked_;
      const std::string text = trainer_.non_finite_gradients(checked_);
      if (text.empty()) {
        continue;
      }
      const OptimizerOptions& optimizer = options.optimizer;
      require<comm::CollectiveError<GradientError>>(
          optimizer.skip_non_finite || optimizer.clip_norm > 0 || optimizer.loss_scale.scales(), "step ", checked_,
          ": gradients are not finite: ", text);
      observer_.on_non_finite({.step = checked_, .gradients = text});
    }
  }

  /// The ranks agree on a stop, as a signal reaches them at different steps. They ask each other after a step that is
  /// stop_within long or longer, and after as many shorter ones as take that time.
  void look_for_stop() {
    if (!may_stop() || at().step < next_look_) {
      return;
    }
    trainer_.doing("waiting for other ranks after step");
    const double seconds = std::max(0.0, now_s() - looked_);
    constexpr double kStop = -1;
    constexpr double kTime = -2;
    const bool stop = options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed) != 0;
    const bool late = options_.max_seconds > 0 && now_s() - begin_ >= options_.max_seconds;
    double longest = 0;
    bool signalled = false;
    for (const double answer : comm::all_gather_value(control_, stop ? kStop : late ? kTime : seconds)) {
      stopped_ = stopped_ || answer < 0;
      signalled = signalled || answer == kStop;
      longest = std::max(longest, answer);
    }
    out_of_time_ = stopped_ && !signalled;
    const auto steps = static_cast<double>(std::max<std::int64_t>(1, at().step - looked_at_));
    const double until = longest > 0 ? options_.stop_within * steps / longest : 1;
    // Few steps may have been quick ones between two evaluations, so that they do not count for many.
    next_look_ = at().step + static_cast<std::int64_t>(std::clamp(until, 1.0, std::min(2 * steps, 1e6)));
    looked_ = now_s();
    looked_at_ = at().step;
  }

  /// The first report that is due.
  void report(std::int64_t epoch) {
    const Report due = due_[first_due_];
    first_due_ = (first_due_ + 1) % due_.size();
    --waiting_;
    require<StateError>(due.there, "training run: the metrics of step ", due.step, " are not there after step ",
                        at().step);
    const Metrics sums = trainer_.sum_over_ranks(due.sums);
    epoch_sums_ += sums;
    epoch_train_s_ += due.seconds;
    epoch_exposed_s_ += due.exposed_s;
    ReportEvent event{.epoch = epoch,
                      .step = due.step,
                      .batch = due.batch,
                      .loss = sums.loss(),
                      .accuracy = accuracy_of(trainer_, sums),
                      .learning_rate = due.learning_rate,
                      .samples_per_second = sums.samples / due.seconds,
                      .comm_exposed_s = timed_ ? due.exposed_s / static_cast<double>(due.steps) : -1,
                      .metrics = {}};
    event.metrics = own_metrics(control_, options_.metrics, &RunMetric::of_report, event);
    trainer_.doing("reporting after step");
    observer_.on_report(event);
    if (lag_ == 0) {
      restart_lap(now_s());  // the device computed nothing meanwhile
    }
  }

  void end_epoch(std::int64_t epoch, double begin) {
    EpochEvent event{.epoch = epoch + 1,
                     .step = at().step,
                     .train_loss = epoch_sums_.loss(),
                     .train_accuracy = accuracy_of(trainer_, epoch_sums_),
                     .test = evaluate(trainer_, control_, options_.metrics, observer_),
                     .samples_per_second = epoch_sums_.samples / epoch_train_s_,
                     .comm_exposed_s = timed_ ? epoch_exposed_s_ : -1,
                     .gradient_bytes = trainer_.reducer().gradient_bytes(),
                     .sent_bytes = trainer_.reducer().sent_bytes()};
    progress_.test_loss = event.test.loss;
    progress_.test_accuracy = regression() ? std::nullopt : std::optional(event.test.accuracy);
    progress_.metrics = event.test.metrics;
    const std::optional<double> value = sound_value(progress_, best_.metric);
    forget_missing_best();
    event.best = value && (!progress_.best || kept_.better(*value, *progress_.best));
    progress_.since_best = event.best ? 0 : progress_.since_best + 1;
    if (event.best) {
      progress_.best = value;
    }
    event.skipped_updates = trainer_.skipped_updates();
    if (const std::optional<MemoryUsage> usage = trainer_.context().memory().usage()) {
      event.peak_bytes = static_cast<std::int64_t>(usage->peak);
    }
    event.seconds = now_s() - begin;
    trainer_.doing("reporting after step");
    observer_.on_epoch_end(event);
    // The best first: what "last" says is the best is there, whatever ends the run between the two. What falls out goes
    // before "last", too: a run that was killed in between repeats this epoch and so completes it.
    const bool kept = value && among_the_best(*value);
    if (kept) {
      save(BestCheckpoints::name(at().step));
      kept_.written(at().step);
    }
    if (event.best) {
      save("best");
    }
    remove_fallen_out();
    save(kLast);
  }

  [[nodiscard]] RunOptions::Place checkpoint_place() const {
    return control_.rank() == 0 && options_.checkpoint_place
               ? options_.checkpoint_place()
               : RunOptions::Place{options_.checkpoint_dir, options_.checkpoint_dir};
  }

  /// "best" may have been deleted: then no checkpoint tells of it, and the next evaluation is the best.
  void forget_missing_best() {
    if (options_.checkpoint_dir.empty() || !progress_.best) {
      return;
    }
    const double missing = control_.rank() == 0 && !file_exists(checkpoint_place().path + "/best") ? 1 : 0;
    if (comm::all_gather_value(control_, missing).front() != 0) {
      progress_.best.reset();
    }
  }

  [[nodiscard]] bool keeps_several() const { return options_.keep_best > 1 && !options_.checkpoint_dir.empty(); }

  /// Whether the evaluation of this step has a "best-STEP". The same on every rank.
  [[nodiscard]] bool among_the_best(double value) {
    const bool takes =
        keeps_several() && control_.rank() == 0 && kept_.takes(checkpoint_place().path, at().step, value);
    return keeps_several() && comm::all_gather_value(control_, takes ? 1 : 0).front() != 0;
  }

  void remove_fallen_out() {
    if (!keeps_several()) {
      return;
    }
    std::string failure;
    const RunOptions::Place place = checkpoint_place();
    try {
      if (control_.rank() == 0) {
        kept_.remove_others(place.path);
      }
    } catch (const std::exception& error) {
      failure = by_name(error.what(), place);
    }
    const std::string first = comm::broadcast_text(control_, failure);
    require<comm::CollectiveError<WriteError>>(first.empty(), first);
  }

  /// An error in the words of the user, who knows the folder by its name.
  static std::string by_name(std::string text, const RunOptions::Place& place) {
    if (const std::size_t found = text.find(place.path); found != std::string::npos) {
      text.replace(found, place.path.size(), place.name);
    }
    return text;
  }

  void note_progress() {
    progress_.position = at();
    progress_.samples_seen = trainer_.samples_seen();
  }

  void save(std::string_view name) {
    if (options_.checkpoint_dir.empty()) {
      return;
    }
    if (name == kLast) {
      forget_missing_best();
    }
    write(name);
  }

  void write(std::string_view name) {
    if (options_.checkpoint_dir.empty()) {
      return;
    }
    const RunOptions::Place place = checkpoint_place();
    const CheckpointEvent event{.folder = concat(place.name, '/', name), .step = at().step};
    observer_.on_checkpoint_begin(event);
    note_progress();
    try {
      save_checkpoint(concat(place.path, '/', name), trainer_, control_, identity_, progress_,
                      name == kLast ? options_.keep : 0);
    } catch (const comm::CollectiveError<WriteError>& error) {
      throw comm::CollectiveError<WriteError>(by_name(error.what(), place));
    }
    observer_.on_checkpoint_end(event);
  }

  Trainer& trainer_;
  comm::Communicator& control_;
  const RunIdentity& identity_;
  const RunOptions& options_;
  RunProgress progress_;
  RunObserver& observer_;
  BestBy best_;
  BestCheckpoints kept_;  ///< as rank 0 finds them
  std::int64_t per_epoch_;
  int lag_;
  bool timed_;
  bool stopped_ = false;
  bool out_of_time_ = false;
  double begin_ = 0;
  std::int64_t checked_ = 0;    ///< the last step whose gradients were looked at
  std::int64_t next_look_ = 0;  ///< the step behind which the ranks ask each other for a stop
  double looked_ = now_s();     ///< when they did last
  std::int64_t looked_at_ = 0;  ///< and behind which step

  std::array<Report, 4> due_{};  ///< a ring: reports of steps_under_way() + 1 steps at most
  std::size_t first_due_ = 0;
  std::size_t waiting_ = 0;
  std::int64_t reported_ = 0;      ///< the last step of the newest report
  std::int64_t next_step_ = 0;     ///< whose metrics come next
  std::vector<Metrics> lap_sums_;  ///< of this rank, since the last report
  double lap_begin_ = 0;
  double lap_exposed_begin_ = 0;
  Metrics epoch_sums_;  ///< of all ranks
  double epoch_train_s_ = 0;
  double epoch_exposed_s_ = 0;
};

}  // namespace

EvaluationEvent run_evaluation(Trainer& trainer, comm::Communicator& control, const std::vector<RunMetric>& metrics,
                               RunObserver& observer) {
  comm::require_same_on_all_ranks(control, checked(metrics));
  return evaluate(trainer, control, metrics, observer);
}

RunResult run_training(Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                       const RunOptions& options, RunProgress progress, RunObserver& observer) {
  return Run(trainer, control, identity, options, std::move(progress), observer).run();
}

void describe(Schema& schema, RunOptions& options) {
  schema.group("Training");
  schema.add("epochs", options.epochs, "passes over the training set").at_least(1).is_common();
  schema
      .add("steps", options.steps,
           "end the run, and its schedule, after N updates; give --resume the same N; 0: no limit")
      .at_least(0)
      .is_common();
  schema.group("Ranks");
  schema
      .add("check_replicas", options.check_replicas,
           "steps after which the parameters of all ranks are compared bit by bit; a difference ends the job; 0: never")
      .at_least(0);
  schema.group("Results");
  schema.add("log_every", options.log_every, "steps between reports").at_least(1);
  schema.add("checkpoint_every", options.checkpoint_every, "steps between checkpoints within an epoch; 0: none")
      .at_least(0)
      .is_common();
  schema
      .add("copy_every", options.copy_every,
           "steps between copies of the state in the memory of the nodes (/dev/shm), from which a job with "
           "--max-restarts goes on; 0: none")
      .at_least(0);
  schema.add("patience", options.patience, "finish after so many epochs in a row without a new best; 0: never")
      .at_least(0);
  schema
      .add("max_time", options.max_seconds,
           "stop with a checkpoint after so many seconds of training; those of earlier starts of the job count, exit "
           "code 75; 0: never")
      .at_least(0)
      .is_common();
  schema.add("keep", options.keep, "earlier checkpoints that stay beside OUT/last, as OUT/last.1, OUT/last.2, ...")
      .at_least(0);
  schema
      .add("keep_best", options.keep_best, "the N best checkpoints stay as OUT/best-STEP; 1: the best alone, OUT/best")
      .at_least(1);
}

}  // namespace lockstep::nn
