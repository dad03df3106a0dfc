// Tests run_training(): the calls of observers and their times, user metrics, the best evaluation, and reports that do
// not stop the device.
#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <tuple>
#include <utility>

#include <lockstep/nn/run/console.hpp>
#include <lockstep/nn/run/observers/metrics_log.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/nn/run/stop_at.hpp"
#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

using testing::expect_holds;

/// Number of steps per epoch: small_data() in batches of 11.
constexpr std::int64_t kSteps = 6;

class TrainingRunTest : public TrainerTest {};

/// The settings in which runs of run_training() differ.
struct Runs {
  int ranks = 1;
  RunOptions options{.epochs = 2, .log_every = 4};
  std::function<void(RunOptions&, int rank)> change{};  ///< changes the options of a rank
  std::function<RunObserver*(int rank)> observer{};     ///< returns the rank's observer, or null
  Stream* stream = nullptr;
  std::function<RunProgress(int rank)> progress{};
  std::string resumed{};  ///< a folder; the run resumes from its `last` if that exists
};

struct Ran {
  std::vector<std::string> failures;
  std::vector<RunResult> results;  ///< one result of each rank
};

Ran try_run(const Runs& runs) {
  Ran ran{.failures = {}, .results = std::vector<RunResult>(static_cast<std::size_t>(runs.ranks))};
  TrainerSetup setup{.ranks = runs.ranks, .compute = runs.stream};
  setup.options.schedule.total_steps = 2 * kSteps;
  ran.failures = with_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
    const int rank = control.rank();
    RunOptions options = runs.options;
    if (runs.change) {
      runs.change(options, rank);
    }
    RunObserver silent;
    RunObserver* const observer = runs.observer ? runs.observer(rank) : nullptr;
    const RunIdentity identity = identity_of(trainer);
    RunProgress progress = runs.progress ? runs.progress(rank) : RunProgress();
    if (!runs.resumed.empty()) {
      progress = resume_if_there(runs.resumed + "/last", trainer, control, identity);
    }
    ran.results[static_cast<std::size_t>(rank)] =
        run_training(trainer, control, identity, options, progress, observer != nullptr ? *observer : silent);
  });
  return ran;
}

/// Returns the results of runs; no run may throw.
std::vector<RunResult> run(const Runs& runs, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Ran ran = try_run(runs);
  comm::expect_none_failed(ran.failures, file, line);
  return ran.results;
}

/// Returns a function that gives each rank one of several observers.
template <class Observers>
auto each_of(Observers& observers) {
  return [&](int rank) -> RunObserver* { return &observers[static_cast<std::size_t>(rank)]; };
}

/// A metric of evaluations: the number of the step.
const RunMetric kStepMetric{.name = "steps",
                            .of_evaluation = [](const EvaluationEvent& e) { return static_cast<double>(e.step); }};

/// An observer that records each call.
class Record final : public RunObserver {
 public:
  void on_run_begin(const RunBegin& e) override {
    note("run ", e.position.step, " ", e.epochs, " ", e.total_steps, " ", e.batches_per_epoch);
  }
  void on_epoch_begin(const EpochBegin& e) override { note("epoch ", e.epoch, " ", e.step); }
  void on_step_begin(const StepEvent& e) override { note("(", e.step); }
  void on_step_end(const StepEvent& e) override { note(")", e.step); }
  void on_report(const ReportEvent& e) override { note("report ", e.step, " batch ", e.batch); }
  void on_evaluation_begin(const EvaluationBegin& e) override { note("evaluation ", e.step); }
  void on_evaluation_batch(const EvaluationBatch& e) override { note("batch of ", e.batch.valid); }
  void on_evaluation_end(const EvaluationEvent& e) override { note("evaluated ", e.step); }
  void on_epoch_end(const EpochEvent& e) override { note("end of epoch ", e.epoch); }
  void on_checkpoint_begin(const CheckpointEvent& e) override { note("saving ", name(e)); }
  void on_checkpoint_end(const CheckpointEvent& e) override { note("saved ", name(e)); }
  void on_run_end(const RunResult& e) override { note("end ", e.progress.position.step); }
  std::string calls;  ///< the calls, each followed by a |

 private:
  template <class... Parts>
  void note(const Parts&... parts) {
    calls += concat(parts..., '|');
  }
  static std::string name(const CheckpointEvent& e) {
    return concat(e.folder.substr(e.folder.rfind('/') + 1), " ", e.step);
  }
};

TEST_F(TrainingRunTest, TellsEachPointOfARunInOrderOnEveryRank) {
  std::vector<Record> records(2);
  const RunOptions options{.epochs = 1, .log_every = 4, .checkpoint_dir = path("run"), .checkpoint_every = 5};
  run({.ranks = 2, .options = options, .observer = each_of(records)});
  // The 31 test samples make batches of 11, 11 and 9. On two ranks, rank 0 gets 6, 6 and 5 samples, rank 1 gets 5, 5
  // and 4.
  const auto expected = [](const std::string& batches) {
    return concat(
        "run 0 1 6 6|epoch 0 0|(1|)1|(2|)2|(3|)3|(4|)4|report 4 batch 4|(5|)5|saving last 5|saved last 5|(6|)6|",
        "report 6 batch 6|evaluation 6|", batches,
        "evaluated 6|end of epoch 1|saving best 6|saved best 6|saving last 6|saved last 6|end 6|");
  };
  EXPECT_EQ(records[0].calls, expected("batch of 6|batch of 6|batch of 5|"));
  EXPECT_EQ(records[1].calls, expected("batch of 5|batch of 5|batch of 4|"));
}

TEST_F(TrainingRunTest, SeveralObserversAreToldInTheirOrder) {
  Record first;
  Record second;
  RunObservers both;
  both.add(first).add(second);
  run({.observer = [&](int) { return &both; }});
  EXPECT_GT(std::count(first.calls.begin(), first.calls.end(), '|'), 30);
  EXPECT_EQ(first.calls, second.calls);
}

/// Keeps the events of rank 0.
class Keep final : public RunObserver {
 public:
  void on_report(const ReportEvent& e) override { reports.push_back(e); }
  void on_epoch_end(const EpochEvent& e) override { epochs.push_back(e); }
  std::vector<ReportEvent> reports;
  std::vector<EpochEvent> epochs;
};

TEST_F(TrainingRunTest, MetricsOfOnesOwnAreReducedAndShownEverywhere) {
  Keep keep;
  std::ostringstream out;
  Console console(out, {.samples = "pictures"});
  MetricsLog log(path("metrics.jsonl"), false, "pictures");
  RunObservers observers;
  observers.add(keep).add(console).add(log);
  const auto change = [&](RunOptions& options, int rank) {
    options.checkpoint_dir = path("run");
    options.metrics = {
        {.name = "double_loss",
         .of_report = [](const ReportEvent& e) { return 2 * e.loss; },
         .of_evaluation = [](const EvaluationEvent& e) { return 2 * e.loss; }},
        {.name = "mean_of_amounts",
         .of_evaluation = [rank](const EvaluationEvent&) { return MetricPart(10.0 * (rank + 1), rank + 1.5); }},
        {.name = "mean_of_ranks", .of_report = [rank](const ReportEvent&) { return MetricPart(rank * rank); }}};
  };
  const std::vector<RunResult> results =
      run({.ranks = 3, .change = change, .observer = [&](int rank) { return rank == 0 ? &observers : nullptr; }});
  ASSERT_EQ(keep.reports.size(), 4U);
  for (const ReportEvent& report : keep.reports) {
    EXPECT_EQ(report.metrics.at("double_loss"), 2 * report.loss) << "equal on all ranks: not a bit is lost";
    EXPECT_DOUBLE_EQ(report.metrics.at("mean_of_ranks"), 5.0 / 3);
    EXPECT_EQ(report.metrics.count("mean_of_amounts"), 0U);
  }
  ASSERT_EQ(keep.epochs.size(), 2U);
  const MetricValues& last = keep.epochs[1].test.metrics;
  EXPECT_EQ(last.at("double_loss"), 2 * keep.epochs[1].test.loss);
  EXPECT_DOUBLE_EQ(last.at("mean_of_amounts"), 60 / 7.5);
  for (const RunResult& result : results) {
    EXPECT_EQ(result.progress.metrics, last) << "on every rank";
  }
  EXPECT_EQ(read_checkpoint_state(path("run/last")).progress.metrics, last);
  expect_holds(out.str(), "  mean_of_ranks 1.667");
  expect_holds(out.str(), "  mean_of_amounts 8");
  expect_holds(out.str(), "pictures/s");
  std::istringstream lines(file_text(path("metrics.jsonl")));
  int seen = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json json = parse_json(line, "metrics.jsonl");
    const bool epoch = json.get<std::string>("event", line) == "epoch";
    EXPECT_EQ(json.get<double>("double_loss", line), 2 * json.get<double>(epoch ? "test_loss" : "loss", line));
    EXPECT_GT(json.get<double>("pictures_per_second", line), 0);
    seen += epoch ? 10 : 1;
  }
  EXPECT_EQ(seen, 24) << "4 reports, 2 epochs";
}

/// An observer that counts right answers from the outputs.
class RightAnswers final : public RunObserver {
 public:
  void on_evaluation_begin(const EvaluationBegin&) override { right = samples = 0; }
  void on_evaluation_batch(const EvaluationBatch& e) override {
    const std::int64_t classes = e.output.shape[1];
    const std::span<float> logits = e.output.span<float>();
    const std::span<std::int32_t> labels = e.batch.view(StateField::labels).span<std::int32_t>();
    for (std::int64_t i = 0; i < e.batch.valid; ++i) {
      const float* row = logits.data() + i * classes;
      right += std::max_element(row, row + classes) - row == labels[static_cast<std::size_t>(i)] ? 1 : 0;
      ++samples;
    }
  }
  double right = 0;
  double samples = 0;
};

TEST_F(TrainingRunTest, OutputsOfAnEvaluationAreThereForSumsOfOnesOwn) {
  std::vector<RightAnswers> counts(2);
  const auto change = [&](RunOptions& options, int rank) {
    options.epochs = 4;
    options.metrics = {{.name = "right", .of_evaluation = [&, rank](const EvaluationEvent&) {
                          const RightAnswers& own = counts[static_cast<std::size_t>(rank)];
                          return MetricPart(own.right, own.samples);
                        }}};
  };
  const std::vector<RunResult> results = run({.ranks = 2, .change = change, .observer = each_of(counts)});
  EXPECT_EQ(counts[0].samples + counts[1].samples, 31);
  EXPECT_GT(counts[0].right, 0);
  EXPECT_EQ(results[0].progress.metrics.at("right"), results[0].progress.test_accuracy);
}

/// An observer that ends the run when it is about to write the checkpoint `name` of a step.
class Killed final : public RunObserver {
 public:
  Killed(std::string name, std::int64_t step) : name_(std::move(name)), step_(step) {}
  void on_checkpoint_begin(const CheckpointEvent& event) override {
    if (event.step == step_ && event.folder.ends_with("/" + name_)) {
      throw DataError("killed");
    }
  }

 private:
  std::string name_;
  std::int64_t step_;
};

TEST_F(TrainingRunTest, KilledBetweenItsCheckpointsARunKeepsTheBest) {
  const auto train = [&](const std::string& dir, RunObserver* observer = nullptr) {
    const RunOptions options{.epochs = 3,
                             .log_every = 4,
                             .checkpoint_dir = dir,
                             .metrics = {kStepMetric},
                             .best = {.metric = "steps"}};  // the metric grows, so each evaluation is the best
    return try_run({.ranks = 2, .options = options, .observer = [=](int) { return observer; }, .resumed = dir})
        .failures;
  };
  EXPECT_EQ(train(path("whole")), comm::none_failed(2));
  for (const std::string name : {"last", "best"}) {
    for (const std::int64_t step : {6, 12, 18}) {
      const std::string dir = path(concat(name, " at ", step));
      Killed killed(name, step);
      expect_all_say(train(dir, &killed), "killed");
      if (!find_folder(dir + "/last").empty()) {
        const RunProgress last = read_checkpoint_state(dir + "/last").progress;
        EXPECT_EQ(last.best, static_cast<double>(last.position.step));
        EXPECT_GE(read_checkpoint_state(dir + "/best").progress.best, last.best)
            << "last/ tells of a best that is not there";
      }
      EXPECT_EQ(train(dir), comm::none_failed(2));
      for (const char* checkpoint : {"/last", "/best"}) {
        EXPECT_TRUE(checkpoint_bytes(dir + checkpoint) == checkpoint_bytes(path("whole") + checkpoint))
            << dir << checkpoint;
      }
    }
  }
}

/// An observer that deletes "best" when the first epoch's "last" exists, and records which epochs were the best.
class DeletesBest final : public RunObserver {
 public:
  explicit DeletesBest(bool deletes) : deletes_(deletes) {}
  void on_epoch_end(const EpochEvent& event) override { best += event.best ? '*' : '.'; }
  void on_checkpoint_end(const CheckpointEvent& event) override {
    if (deletes_ && event.step == kSteps && event.folder.ends_with("/last")) {
      std::filesystem::remove_all(event.folder.substr(0, event.folder.size() - 4) + "best");
    }
  }
  std::string best;

 private:
  bool deletes_;
};

TEST_F(TrainingRunTest, ABestCheckpointThatWasDeletedIsForgottenOnEveryRank) {
  for (const bool deleted : {false, true}) {
    const std::string dir = path(deleted ? "deleted" : "kept");
    std::array<DeletesBest, 2> observers{DeletesBest(deleted), DeletesBest(false)};
    const BestBy first{.metric = "steps", .lowest = true};  // the metric grows, so the first evaluation is the best
    run({.ranks = 2,
         .options = {.epochs = 2, .checkpoint_dir = dir, .metrics = {kStepMetric}, .best = first},
         .observer = each_of(observers)});
    for (const DeletesBest& observer : observers) {
      EXPECT_EQ(observer.best, deleted ? "**" : "*.");
    }
    EXPECT_EQ(read_checkpoint_state(dir + "/last").progress.best, deleted ? 2.0 * kSteps : 1.0 * kSteps);
    EXPECT_EQ(read_checkpoint_state(dir + "/best").progress.best, deleted ? 2.0 * kSteps : 1.0 * kSteps);
  }
}

TEST_F(TrainingRunTest, AStopIsHeardAtTheStepHoweverRarelyARunReports) {
  for (const std::int64_t step : {1, 2, 5, 8}) {
    const std::string dir = path(concat("at ", step));
    std::atomic<int> stop{0};
    std::atomic<int> never{0};
    testing::StopAt at(step, stop);
    const auto change = [&](RunOptions& options, int rank) {
      options.log_every = 1000;
      options.checkpoint_dir = dir;
      options.stop = rank == 1 ? &stop : &never;  // only this rank stops: a signal may reach one rank alone
      options.stop_within = 0;
    };
    const auto on_rank_1 = [&](int rank) { return rank == 1 ? &at : nullptr; };
    EXPECT_EQ(run({.ranks = 2, .change = change, .observer = on_rank_1})[0].end, RunEnd::stopped);
    EXPECT_EQ(read_checkpoint_state(dir + "/last").progress.position.step, step);
  }
  // Ranks agree on a stop only every stop_within seconds, so not after each of these short steps.
  std::atomic<int> stop{1};
  const RunOptions rarely{.epochs = 2, .stop = &stop, .stop_within = 1e9};
  EXPECT_EQ(run({.options = rarely})[0].progress.position.step, 1) << "the first step is looked at always";
  // Quick steps may be followed by slow steps or by an evaluation. So the interval between two agreements of the ranks
  // on a stop may only grow slowly: after step 1, the next agreement must be in step 3 at the latest.
  stop = 0;
  testing::StopAt at(2, stop);
  EXPECT_EQ(run({.options = rarely, .observer = [&](int) { return &at; }})[0].progress.position.step, 3)
      << "the ranks ask each other at most three times as late";
}

TEST_F(TrainingRunTest, RanksThatKnowOfAnotherBestAreRefused) {
  const auto failures_of = [&](double best, std::int64_t since_best) {
    const auto progress = [&](int rank) {
      return RunProgress{
          .best_by = "test_accuracy", .best = rank == 1 ? best : 0.25, .since_best = rank == 1 ? since_best : 1};
    };
    return try_run({.ranks = 2, .options = {.epochs = 2, .patience = 3}, .progress = progress}).failures;
  };
  EXPECT_EQ(failures_of(0.25, 1), comm::none_failed(2));
  expect_all_say(failures_of(0.5, 1), "so far 0.5, 1 evaluations ago");
  expect_all_say(failures_of(0.25, 2), "so far 0.25, 2 evaluations ago");
}

TEST_F(TrainingRunTest, PatienceCountsEvaluationsThatAreNotTheBestAlsoOverAResume) {
  // The metric of evaluation k is values[k]; the highest value is the best.
  const std::vector<double> values = {1, 3, 2, 3, 0, 4, 5, 6};
  const auto train = [&](const std::string& dir, std::int64_t patience, std::int64_t epochs) {
    const RunMetric own{.name = "own", .of_evaluation = [&](const EvaluationEvent& e) {
                          return values.at(static_cast<std::size_t>(e.step / kSteps - 1));
                        }};
    const RunOptions options{
        .epochs = epochs, .checkpoint_dir = dir, .metrics = {own}, .best = {.metric = "own"}, .patience = patience};
    const std::vector<RunResult> results = run({.ranks = 2, .options = options, .resumed = dir});
    EXPECT_EQ(results[0].end, results[1].end);
    EXPECT_EQ(results[0].progress.position.step, results[1].progress.position.step);
    return results[0];
  };
  const auto expect = [](const RunResult& result, RunEnd end, std::int64_t epochs) {
    EXPECT_EQ(result.end, end);
    EXPECT_EQ(result.progress.position.epoch, epochs);
  };
  expect(train(path("three"), 3, 8), RunEnd::no_better, 5);  // 2, 3 and 0 are not better than 3
  expect(train(path("two"), 2, 8), RunEnd::no_better, 4);
  expect(train(path("never"), 0, 8), RunEnd::finished, 8);
  expect(train(path("end"), 3, 5), RunEnd::finished, 5);
  expect(train(path("resumed"), 3, 4), RunEnd::finished, 4);
  EXPECT_EQ(read_checkpoint_state(path("resumed/last")).progress.since_best, 2);
  expect(train(path("resumed"), 3, 8), RunEnd::no_better, 5);
  expect(train(path("resumed"), 3, 8), RunEnd::no_better, 5);  // the run has already ended
  expect(train(path("resumed"), 4, 8), RunEnd::finished, 8);
}

TEST_F(TrainingRunTest, ALimitOfTimeStopsWithACheckpointOnEveryRank) {
  const auto limited = [&](double seconds, const std::string& dir) {
    const RunOptions options{
        .epochs = 1'000'000, .checkpoint_dir = path(dir), .max_seconds = seconds, .stop_within = 0};
    return try_run({.ranks = 2, .options = options});
  };
  const auto stopped = [&](double seconds, const std::string& dir) {
    const Ran ran = limited(seconds, dir);
    EXPECT_EQ(ran.failures, comm::none_failed(2));
    EXPECT_EQ(ran.results[0].end, RunEnd::out_of_time);
    EXPECT_EQ(ran.results[1].end, RunEnd::out_of_time);
    EXPECT_EQ(ran.results[0].progress.position.step, ran.results[1].progress.position.step);
    return ran.results[0].progress.position.step;
  };
  EXPECT_EQ(stopped(1e-9, "at once"), 1);
  EXPECT_EQ(read_checkpoint_state(path("at once/last")).progress.position.step, 1);
  EXPECT_GT(stopped(0.3, "later"), 1);
  expect_all_say(limited(-1, "never").failures, "max_seconds is -1");
}

TEST_F(TrainingRunTest, TheProgressLineFitsTheTerminal) {
  for (const int columns : {20, 40, 78, 79, 80, 200}) {
    std::ostringstream out;
    Console console(out, {.terminal = true, .samples = "images", .columns = columns});
    console.on_run_begin({.position = {}, .epochs = 90, .total_steps = 450450, .batches_per_epoch = 5005});
    for (const std::int64_t batch : {1000, 5005}) {
      console.on_report(
          {.epoch = 8, .step = 8 * 5005 + batch, .batch = batch, .loss = 1.5, .samples_per_second = 10000});
    }
    console.on_run_end({});
    std::istringstream drawn(out.str());
    std::vector<std::string> lines;
    for (std::string line; std::getline(drawn, line, '\r');) {
      lines.push_back(line.starts_with("\033[K") ? line.substr(3) : line);
    }
    ASSERT_EQ(lines.size(), 4U) << out.str();
    for (const std::string& line : lines) {
      EXPECT_LT(static_cast<int>(line.size()), columns) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
    EXPECT_EQ(lines[1].find('[') != std::string::npos, columns >= 79) << lines[1];
    EXPECT_TRUE(lines[2].starts_with("epoch 9/90 ")) << lines[2];
    EXPECT_EQ(lines[3], "") << "what is printed next begins a line";
  }
}

TEST_F(TrainingRunTest, FiguresThatAreUndefinedAreDashes) {
  const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0);
  for (const bool terminal : {false, true}) {
    std::ostringstream out;
    Console console(out, {.terminal = terminal, .samples = "images", .columns = 200});
    console.on_report({.loss = nan, .accuracy = nan, .metrics = {{"own", nan}}});
    EpochEvent event{.epoch = 1, .train_loss = nan, .train_accuracy = nan};
    event.test = {.loss = nan, .accuracy = nan, .top_k = 5, .top_k_accuracy = nan, .metrics = {{"own", nan}}};
    console.on_epoch_end(event);
    EXPECT_EQ(out.str().find("nan"), std::string::npos) << out.str();
    EXPECT_NE(out.str().find("train loss - accuracy -  test loss - accuracy -, top 5 -  own -  "), std::string::npos)
        << out.str();
  }
}

TEST_F(TrainingRunTest, ACutLineIsRemovedFromTheMetrics) {
  const std::string file = path("metrics.jsonl");
  for (const std::string& before : std::vector<std::string>{"", "{\"a\":1}\n", "{\"a\":1}\n{\"b\":", "{\"b", "\n"}) {
    testing::put_file(file, before);
    MetricsLog(file, true).write_event("resume", {{"step", 3}});
    const std::size_t whole = before.rfind('\n');
    EXPECT_EQ(testing::get_file(file),
              (whole == std::string::npos ? "" : before.substr(0, whole + 1)) + "{\"event\":\"resume\",\"step\":3}\n");
  }
  testing::put_file(file, "{\"b");
  MetricsLog(file, false).write_event("begin", {});
  EXPECT_EQ(testing::get_file(file), "{\"event\":\"begin\"}\n");
}

TEST_F(TrainingRunTest, TheBestEvaluationIsThatOfTheMetric) {
  // Runs three evaluations whose metric has these values. Returns a text with one character for each epoch ('*' if the
  // epoch was the best so far, else '.'), and the best value of the run.
  const auto best_of = [&](const BestBy& by, const std::vector<double>& values) {
    Keep keep;
    int evaluation = 0;
    const RunMetric own{.name = "own", .of_evaluation = [&](const EvaluationEvent&) {
                          return values.at(static_cast<std::size_t>(evaluation++));
                        }};
    const RunOptions options{.epochs = 3, .metrics = {own}, .best = by};
    const std::vector<RunResult> results = run({.options = options, .observer = [&](int) { return &keep; }});
    std::string best;
    for (const EpochEvent& epoch : keep.epochs) {
      best += epoch.best ? '*' : '.';
    }
    return std::pair(best, results[0].progress.best);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Found = std::pair<std::string, std::optional<double>>;
  EXPECT_EQ(best_of({.metric = "own"}, {1, 3, 2}), Found("**.", 3));
  EXPECT_EQ(best_of({.metric = "own", .lowest = true}, {2, 3, 1}), Found("*.*", 1));
  EXPECT_EQ(best_of({.metric = "own", .lowest = true}, {nan, 3, 3}), Found(".*.", 3)) << "NaN is never the best";
  EXPECT_EQ(best_of({.metric = "own"}, {nan, nan, nan}), Found("...", std::nullopt));
  const auto [best, loss] = best_of({.metric = "test_loss"}, {0, 0, 0});
  EXPECT_EQ(best[0], '*');
  EXPECT_GT(loss, 0.0);
}

TEST_F(TrainingRunTest, ABestValueOfAnotherMetricIsForgotten) {
  RunProgress progress;
  progress.best_by = "test_loss";
  progress.best = -5;  // lower than any loss
  const auto best_after = [&](const std::string& metric) {
    const RunOptions options{.epochs = 2, .best = {.metric = metric}};
    return run({.options = options, .progress = [&](int) { return progress; }})[0].progress;
  };
  EXPECT_EQ(best_after("test_loss").best, -5);
  EXPECT_EQ(best_after("").best_by, "test_accuracy");
  EXPECT_GE(best_after("").best, 0.0);
}

TEST_F(TrainingRunTest, OptionsThatCannotBeAreOneSentence) {
  const auto metric = [](const EvaluationEvent&) { return MetricPart(1); };
  const auto refused = [&](const std::function<void(RunOptions&, int)>& change, const std::string& words) {
    expect_all_say(try_run({.ranks = 2, .change = change}).failures, words);
  };
  refused([](RunOptions& run, int) { run.epochs = -1; }, "epochs is -1, expected at least 0");
  refused([](RunOptions& run, int) { run.epochs = std::int64_t{1} << 62; }, "fewer than 2^63 steps");
  refused([](RunOptions& run, int) { run.log_every = 0; }, "log_every is 0, expected at least 1");
  refused([&](RunOptions& run, int) { run.metrics = {{.name = "loss", .of_evaluation = metric}}; }, "'loss'");
  refused([&](RunOptions& run, int) { run.metrics = {{.name = "Bits", .of_evaluation = metric}}; }, "'Bits'");
  refused([&](RunOptions& run, int) { run.metrics = {{.name = "", .of_evaluation = metric}}; }, "''");
  refused([&](RunOptions& run, int) { run.metrics = {{.name = "x_per_second", .of_evaluation = metric}}; }, "'x_per");
  refused(
      [&](RunOptions& run, int) {
        run.metrics = {{.name = "a", .of_evaluation = metric}, {.name = "a", .of_evaluation = metric}};
      },
      "'a'");
  refused([&](RunOptions& run, int) { run.metrics = {{.name = "a"}}; }, "metric a has no function");
  refused([&](RunOptions& run, int) { run.best.metric = "bits"; }, "'bits', expected test_accuracy, test_loss or");
  refused([&](RunOptions& run, int rank) { run.metrics = {{.name = rank == 0 ? "a" : "b", .of_evaluation = metric}}; },
          "metric a of evaluations");
}

TEST_F(TrainingRunTest, AReportComesWhileTheDeviceIsAtWorkWithTheNumbersOfItsSteps) {
  Keep at_once;
  const RunOptions each_step{.epochs = 2, .log_every = 1};
  run({.options = each_step, .observer = [&](int) { return &at_once; }});

  // A stream that computes in its own thread, as a GPU does, must give the same reports as the inline stream above.
  class Late final : public RunObserver {
   public:
    explicit Late(Stream& stream) {
      stream.on_synchronisation([this](const Synchronisation&) { ++waits_; });
    }
    void on_step_end(const StepEvent& e) override { step_ = e.step; }
    void on_report(const ReportEvent& e) override {
      keep.on_report(e);
      steps_late.push_back(step_ - e.step);
      waits_until_report.push_back(waits_);
    }
    Keep keep;
    std::vector<std::int64_t> steps_late;
    std::vector<int> waits_until_report;

   private:
    std::int64_t step_ = 0;
    std::atomic<int> waits_{0};
  };
  Stream worker = Stream::host_worker("device");
  Late late(worker);
  run({.options = each_step, .observer = [&](int) { return &late; }, .stream = &worker});
  worker.on_synchronisation({});

  ASSERT_EQ(late.keep.reports.size(), at_once.reports.size());
  for (std::size_t i = 0; i < at_once.reports.size(); ++i) {
    const ReportEvent& a = at_once.reports[i];
    const ReportEvent& b = late.keep.reports[i];
    EXPECT_EQ(std::tie(a.epoch, a.step, a.batch, a.loss, a.accuracy, a.learning_rate),
              std::tie(b.epoch, b.step, b.batch, b.loss, b.accuracy, b.learning_rate))
        << i;
    EXPECT_GT(b.samples_per_second, 0);
  }
  EXPECT_EQ(late.steps_late, (std::vector<std::int64_t>{2, 2, 2, 2, 1, 0, 2, 2, 2, 2, 1, 0}));
  // No call may wait for the stream between the reports of an epoch. The last reports of an epoch wait for the end of
  // the stream's work.
  EXPECT_EQ(late.waits_until_report[0], late.waits_until_report[3]);
  EXPECT_EQ(late.waits_until_report[6], late.waits_until_report[9]);
}

TEST_F(TrainingRunTest, ACheckpointBetweenReportsChangesNoNumber) {
  Keep plain;
  Keep saved;
  for (Keep* keep : {&plain, &saved}) {
    Stream worker = Stream::host_worker("device");
    const std::string dir = keep == &saved ? path("run") : "";
    run({.options = {.epochs = 2, .log_every = 2, .checkpoint_dir = dir, .checkpoint_every = 3},
         .observer = [&](int) { return keep; },
         .stream = &worker});
  }
  ASSERT_EQ(plain.reports.size(), 6U);
  ASSERT_EQ(saved.reports.size(), 6U);
  for (std::size_t i = 0; i < plain.reports.size(); ++i) {
    EXPECT_EQ(plain.reports[i].loss, saved.reports[i].loss);
    EXPECT_EQ(plain.reports[i].step, saved.reports[i].step);
  }
}

TEST_F(TrainingRunTest, ReadsTheStateOfVersionsBefore) {
  std::filesystem::create_directories(path("last"));
  testing::put_file(path("last/state.json"), R"({
    "format": 1, "best_accuracy": 0.5, "test_accuracy": -1, "epoch": 1, "batch": 2, "step": 8, "samples_seen": [3.0],
    "identity": {"model": "mlp", "classes": 4, "height": 12, "width": 12, "hidden": [20, 10], "seed": 7, "ranks": 1,
                 "threads": 1, "global_batch": 11, "options": {"dtype": "f32"}, "choices": {}, "buckets": [3]}})");
  const CheckpointState state = read_checkpoint_state(path("last"));
  EXPECT_EQ(state.identity.options.at("hidden"), "20,10");
  EXPECT_EQ(state.identity.seed, 7U);
  EXPECT_EQ(state.progress.best_by, "test_accuracy");
  EXPECT_EQ(state.progress.best, 0.5);
  EXPECT_FALSE(state.progress.test_accuracy.has_value());
  EXPECT_EQ(state.progress.position.step, 8);
}

}  // namespace
}  // namespace lockstep::nn
