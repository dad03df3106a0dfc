// Tests RunOptions::keep_best: which checkpoints best-STEP exist at any moment of a run, also after resumes and kills.
#include <algorithm>
#include <limits>
#include <utility>

#include <unistd.h>

#include <lockstep/nn/run/checkpoints/best_checkpoints.hpp>

#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

using Values = std::vector<double>;       // values of the evaluations after epoch 1, 2, ...
using Steps = std::vector<std::int64_t>;  // steps of best-STEP, ascending
constexpr std::int64_t kSteps = 6;        // number of steps per epoch: small_data() in batches of 11
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Returns the steps of the `keep` best of the first `epochs` values, by sorting all of them.
Steps best_of(const Values& values, std::int64_t epochs, int keep, bool lowest) {
  std::vector<std::pair<double, std::int64_t>> all;
  for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
    const double value = values.at(static_cast<std::size_t>(epoch - 1));
    if (std::isfinite(value)) {
      all.emplace_back(lowest ? value : -value, epoch * kSteps);
    }
  }
  std::sort(all.begin(), all.end());
  all.resize(std::min(all.size(), static_cast<std::size_t>(keep)));
  Steps steps;
  for (const auto& [value, step] : all) {
    steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

struct Job {
  std::string dir{};
  Values values{};
  int keep = 3;
  bool lowest = false;
  std::int64_t epochs = 6;
  std::string resume = "last";
  MovingAverageOptions average{};  ///< if enabled, the averaged model decides which checkpoints are best
};

/// Trains on two ranks, from the checkpoint job.dir/job.resume if it exists. Returns the texts of the ranks'
/// exceptions.
std::vector<std::string> try_train(const Job& job, RunObserver* of_first = nullptr) {
  TrainerSetup setup{.ranks = 2};
  setup.options.step.average = job.average;
  return with_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
    const RunIdentity identity = identity_of(trainer);
    const RunProgress progress = resume_if_there(job.dir + "/" + job.resume, trainer, control, identity);
    RunOptions run{
        .epochs = job.epochs, .log_every = 4, .checkpoint_dir = job.dir, .checkpoint_every = 4, .keep_best = job.keep};
    if (!job.average.on()) {
      run.metrics = {{.name = "own", .of_evaluation = [&](const EvaluationEvent& e) {
                        return job.values.at(static_cast<std::size_t>(e.step / kSteps - 1));
                      }}};
      run.best = {.metric = "own", .lowest = job.lowest};
    }
    RunObserver silent;
    const bool observed = of_first != nullptr && control.rank() == 0;
    (void)run_training(trainer, control, identity, run, progress, observed ? *of_first : silent);
  });
}

void train(const Job& job, RunObserver* of_first = nullptr, const char* file = __builtin_FILE(),
           int line = __builtin_LINE()) {
  comm::expect_none_failed(try_train(job, of_first), file, line);
}

/// Compares the best-STEP folders with best_of() before each checkpoint is written. Throws before the checkpoint `kill`
/// of step `step`, as if the run were killed.
class Looks final : public RunObserver {
 public:
  explicit Looks(Job job, std::string kill = "", std::int64_t step = 0)
      : job_(std::move(job)), kill_(std::move(kill)), step_(step) {}
  void on_checkpoint_begin(const CheckpointEvent& event) override {
    const std::string name = event.folder.substr(event.folder.rfind('/') + 1);
    if (kill_.empty()) {
      // While a checkpoint is written, the previous best checkpoints must still exist. When "last" is written, exactly
      // the best checkpoints so far must exist.
      const Steps there = CheckpointStore(job_.dir).best_steps();
      const bool evaluated = event.step % kSteps == 0;
      const std::int64_t epoch = event.step / kSteps;
      const Steps now = best_of(job_.values, epoch, job_.keep, job_.lowest);
      const Steps before = evaluated ? best_of(job_.values, epoch - 1, job_.keep, job_.lowest) : now;
      EXPECT_TRUE(name == "last" ? there == now
                                 : std::includes(there.begin(), there.end(), before.begin(), before.end()))
          << name << " of step " << event.step << ": " << ::testing::PrintToString(there);
      checkpoints += name + " ";
    }
    if (event.step == step_ && name == kill_) {
      throw DataError("killed");
    }
  }
  std::string checkpoints;

 private:
  Job job_;
  std::string kill_;
  std::int64_t step_;
};

class BestCheckpointsTest : public TrainerTest {
 protected:
  /// Expects that `dir` has a complete checkpoint best-STEP for each step of `steps`, and no others.
  static void expect_kept(const std::string& dir, const Steps& steps) {
    EXPECT_EQ(CheckpointStore(dir).best_steps(), steps) << dir;
    for (const std::int64_t step : steps) {
      EXPECT_EQ(read_checkpoint_state(dir + "/" + CheckpointStore::best_name(step)).progress.position.step, step);
    }
  }
  static void expect_trained(const Job& job, const Steps& steps, RunObserver* of_first = nullptr) {
    train(job, of_first);
    expect_kept(job.dir, steps);
  }
  static void expect_same(const std::string& a, const std::string& b, const Steps& steps) {
    std::vector<std::string> names{"last", "best"};
    for (const std::int64_t step : steps) {
      names.push_back(CheckpointStore::best_name(step));
    }
    for (const std::string& name : names) {
      EXPECT_TRUE(checkpoint_bytes(a + "/" + name) == checkpoint_bytes(b + "/" + name)) << a << ", " << name;
    }
  }
};

TEST_F(BestCheckpointsTest, TheBestStayAndOfEqualOnesTheEarlier) {
  struct Case {
    Values values;
    int keep;
    bool lowest;
    Steps kept;
    std::int64_t best;
  };
  const std::vector<Case> cases{{{0.5, 0.9, 0.7, 0.9, 0.6, 0.8}, 3, false, {12, 24, 36}, 12},
                                {{3, 2, 2, kNan, 2, 1}, 2, true, {12, 36}, 36},
                                {{1, 2, 2, 2, kNan, 2}, 2, false, {12, 18}, 12},
                                {{-3, -2, -1, 0, 1, 2}, 8, false, {6, 12, 18, 24, 30, 36}, 36}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const Job job{.dir = path(concat("run", i)), .values = c.values, .keep = c.keep, .lowest = c.lowest};
    EXPECT_EQ(best_of(c.values, 6, c.keep, c.lowest), c.kept) << "the oracle, by hand";
    Looks looks(job);
    expect_trained(job, c.kept, &looks);
    expect_same(job.dir, job.dir, {});
    EXPECT_TRUE(checkpoint_bytes(job.dir + "/best") == checkpoint_bytes(concat(job.dir, "/best-", c.best)));
  }
}

TEST_F(BestCheckpointsTest, OneIsWhatItWasAndLeavesOthersAlone) {
  Job job{.dir = path("run"), .values = {1, 3, 2, 4, 0, 0}, .keep = 1};
  expect_trained(job, {});
  EXPECT_EQ(read_checkpoint_state(job.dir + "/best").progress.position.step, 24);
  const Job several{.dir = path("several"), .values = job.values, .keep = 2, .epochs = 4};
  expect_trained(several, {12, 24});
  job.dir = several.dir;
  expect_trained(job, {12, 24});
}

TEST_F(BestCheckpointsTest, AResumeRanksByTheCheckpointsAndFewerGoAtTheNextEvaluation) {
  Job job{.dir = path("whole"), .values = {5, 9, 7, 9, 6, 8}, .keep = 3};
  train(job);
  for (const std::int64_t first : {1, 3, 5}) {
    job.dir = path(concat("resumed after ", first));
    job.epochs = first;
    train(job);
    job.epochs = 6;
    expect_trained(job, {12, 24, 36});
    expect_same(job.dir, path("whole"), {12, 24, 36});
  }
  job.dir = path("fewer");
  job.epochs = 4;
  expect_trained(job, {12, 18, 24});
  job.keep = 2;
  expect_trained(job, {12, 18, 24});  // the run had already ended, so nothing is deleted
  job.epochs = 5;
  expect_trained(job, {12, 24});
}

TEST_F(BestCheckpointsTest, WhatAResumeLeavesBehindDoesNotCount) {
  Job job{.dir = path("run"), .values = {1, 2, 3, 4}, .keep = 2, .epochs = 4};
  expect_trained(job, {18, 24});
  // Folders that the run must leave alone: a user's copy, an incomplete checkpoint, and a name that is not best-STEP.
  std::filesystem::copy(job.dir + "/best-18", job.dir + "/best-3", std::filesystem::copy_options::recursive);
  std::filesystem::create_directories(job.dir + "/best-5");
  std::filesystem::create_directories(job.dir + "/best-of-all");
  // Resumes at step 18 with lower values. Step 24 of the earlier run must be discarded together with its value.
  job.resume = "best-18";
  job.values = {1, 2, 3, 0, 0.5, 0.25};
  job.epochs = 5;
  train(job);
  EXPECT_EQ(CheckpointStore(job.dir).best_steps(), (Steps{3, 5, 18, 30}));
  EXPECT_TRUE(std::filesystem::exists(job.dir + "/best-of-all"));
}

TEST_F(BestCheckpointsTest, KilledBetweenAnyTwoOfItsCheckpointsItGoesOnAsIfItHadNot) {
  Job job{.dir = path("whole"), .values = {5, 9, 7, 9, 10, 8}, .keep = 2};
  Looks looks(job);
  train(job, &looks);
  EXPECT_EQ(looks.checkpoints,
            "last best-6 best last last best-12 best last last best-18 last last best-24 last last best-30 best last "
            "last last ");
  const Steps kept{12, 30};
  // Step 12 adds best-12 and changes best/. Step 24 replaces best-18 with best-24, and best/ stays. Step 30 replaces
  // best-24 with best-30 and changes best/.
  for (const std::int64_t step : {12, 24, 30}) {
    for (const std::string& name : {concat("best-", step), std::string("best"), std::string("last")}) {
      job.dir = path(concat(name, " at ", step));
      Looks killed(job, name, step);
      const auto failures = try_train(job, &killed);
      if (failures != comm::none_failed(2)) {
        testing::expect_holds(failures[0], "killed");  // rank 1 only reports that rank 0 has left
        train(job);
      }
      expect_kept(job.dir, kept);
      expect_same(job.dir, path("whole"), kept);
    }
  }
  // A run was killed while it deleted a checkpoint. This left one best-STEP too many, and the incomplete folder of
  // another best-STEP. The next run must delete both.
  job.dir = path("deleting");
  job.epochs = 5;
  train(job);
  std::filesystem::copy(path("whole/best-12"), job.dir + "/best-6.tmp-host-1-r0123456789abcdef");
  std::filesystem::remove(job.dir + "/best-6.tmp-host-1-r0123456789abcdef/state.json");
  job.epochs = 6;
  expect_trained(job, kept);
  EXPECT_FALSE(std::filesystem::exists(job.dir + "/best-6.tmp-host-1-r0123456789abcdef"));
}

TEST_F(BestCheckpointsTest, TheMovingAverageDecides) {
  const Job job{.dir = path("run"), .keep = 2, .epochs = 4, .average = {.decay = 0.8}};
  class Accuracies final : public RunObserver {
   public:
    void on_epoch_end(const EpochEvent& event) override {
      values.push_back(event.test.metrics.at("ema_test_accuracy"));
      plain.push_back(event.test.accuracy);
    }
    Values values;
    Values plain;
  } seen;
  train(job, &seen);
  ASSERT_EQ(seen.values.size(), 4U);
  EXPECT_NE(seen.values, seen.plain);
  expect_kept(job.dir, best_of(seen.values, 4, 2, false));
}

TEST_F(BestCheckpointsTest, OnlySoundValuesAreRanked) {
  RunProgress progress{.test_loss = 2, .test_accuracy = 0.5, .metrics = {{"own", 3}}};
  EXPECT_EQ(finite_value(progress, "test_loss"), 2);
  EXPECT_EQ(finite_value(progress, "test_accuracy"), 0.5);
  EXPECT_EQ(finite_value(progress, "own"), 3);
  EXPECT_EQ(finite_value(progress, "other"), std::nullopt);
  progress.metrics = {{"own", kNan}, {"ema_test_accuracy", 0.5}, {"ema_test_loss", kNan}};
  progress.test_loss = std::nullopt;  // a file has null for a number that is not finite
  for (const char* metric : {"test_loss", "test_accuracy", "own", "ema_test_accuracy", "ema_test_loss"}) {
    EXPECT_EQ(finite_value(progress, metric), std::nullopt) << metric;
  }
  progress.metrics["ema_test_loss"] = 1;
  EXPECT_EQ(finite_value(progress, "ema_test_accuracy"), 0.5);
}

TEST_F(BestCheckpointsTest, AFolderThatCannotBeDeletedFailsOnEveryRankAlike) {
  class InTheWay final : public RunObserver {
   public:
    explicit InTheWay(std::string dir) : dir_(std::move(dir)) {}
    void on_checkpoint_end(const CheckpointEvent& event) override {
      if (event.step == 3 * kSteps && event.folder.ends_with("/best")) {
        std::filesystem::permissions(dir_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
      }
    }

   private:
    std::string dir_;
  };
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may delete everything";
  }
  const Job job{.dir = path("run"), .values = {1, 2, 3}, .keep = 2, .epochs = 3};
  InTheWay in_the_way(job.dir);
  const auto failures = try_train(job, &in_the_way);
  std::filesystem::permissions(job.dir, std::filesystem::perms::owner_all);
  expect_all_say(failures, job.dir + "/best-6");
}

TEST_F(BestCheckpointsTest, NumbersBelowOneAreRefused) {
  for (const int keep : {0, -3}) {
    expect_all_say(try_train({.dir = path("run"), .values = {1}, .keep = keep, .epochs = 1}),
                   concat("keep_best is ", keep, ", expected at least 1"));
  }
}

}  // namespace
}  // namespace lockstep::nn
