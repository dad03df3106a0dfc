// Tests runs that resume: from last/ and other checkpoints, after kills between the writes of two checkpoints, as
// restarts of a job, and after folders were moved, renamed or damaged.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/run/checkpoints/best_checkpoints.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/mpi_here.hpp"
#include "tests/support/program_test.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/run_here.hpp"

int train_resnet_main(int argc, char** argv);

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::Ended;
using testing::expect_refused;

constexpr bool kMpi = LOCKSTEP_HAS_MPI != 0;

/// Options of a job in which an epoch has 4 steps. The schedule does not depend on the number of epochs.
const std::string kJob =
    " --train-images 64 --test-images 30 --image-size 12 --batch-size 16 --log-every 2 --threads 1 --devices cpu "
    "--schedule constant --warmup-steps 0 --seed 3 --keep-best 3 ";

class Resume : public testing::ProgramTest {
 protected:
  /// Runs the program in the test's folder. Runs it in this process, unless options start several ranks or `before` has
  /// shell commands that must run first.
  [[nodiscard]] Ended train(const std::string& options, const std::string& before = "") const {
    if (before.empty() && options.find("cpu:") == std::string::npos) {
      const fs::path here = fs::current_path();
      fs::current_path(path(""));
      Ended ended = testing::run_here(train_resnet_main, "train_resnet" + kJob + options);
      fs::current_path(here);
      return ended;
    }
    return testing::run_command("sh -c \"cd " + path("") + "; " + before + " " + TRAIN_RESNET + kJob + options + "\"");
  }
  /// Trains as start number `number` of a job with restarts, counted from 0.
  [[nodiscard]] Ended start(int number, const std::string& options) const {
    return train(options, concat("export LOCKSTEP_ATTEMPT='7-1 ", number, " -'; ulimit -f ${LIMIT:-unlimited};"));
  }
  /// Copies a finished run of three epochs to folder `name`: best-4, best-8, best-12, and last of step 12. The original
  /// run is trained only once.
  void make_run(const std::string& name) {
    if (!fs::exists(path("made"))) {
      train("--epochs 3" + out("made")).finished();
    }
    fs::remove_all(path(name));
    fs::copy(path("made"), path(name), fs::copy_options::recursive);
  }
  /// Returns a map from the name of each checkpoint of a run to a text with its step and a hash of its files.
  [[nodiscard]] std::map<std::string, std::string> checkpoints(const std::string& run) const {
    std::map<std::string, std::string> all;
    for (const std::string& name : nn::CheckpointStore(path(run)).list()) {
      std::string bytes;
      for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
        bytes += get(concat(run, '/', name, '/', file));
      }
      all[name] = concat("step ", step_of(concat(run, '/', name)), ", ", std::hash<std::string>()(bytes));
    }
    return all;
  }
  [[nodiscard]] std::int64_t step_of(const std::string& checkpoint) const {
    return read_json(path(checkpoint) + "/state.json").get<std::int64_t>("step", checkpoint);
  }
  /// Returns the steps of all "resume" events of a run.
  [[nodiscard]] std::vector<std::int64_t> resumes(const std::string& run) const {
    std::vector<std::int64_t> steps;
    for (const Json& event : events(run, "resume")) {
      steps.push_back(event.get<std::int64_t>("step", "resume"));
    }
    return steps;
  }
};

using Steps = std::vector<std::int64_t>;

TEST_F(Resume, AJobKilledAtTheEndOfItsFirstEpochGoesOn) {
  const std::string devices = kMpi ? "--devices cpu:2 " : "";
  const std::string job = devices + "--epochs 3 --resume auto";
  train(job + out("whole")).finished();
  // The first epoch writes best-4, best and last, in this order. A kill may leave only the first one or two of these.
  // The next start must resume from them.
  for (const bool best : {false, true}) {
    fs::remove_all(path("cut"));
    fs::create_directories(path("cut"));
    fs::copy(path("whole/config.json"), path("cut/config.json"));
    fs::copy(path("whole/best-4"), path("cut/best-4"));
    if (best) {
      fs::copy(path("whole/best-4"), path("cut/best"));
    }
    train(job + out("cut")).finished({}, {{"  resuming   " + path("cut/best"), 1}, {"is not the best of", 0}});
    EXPECT_EQ(checkpoints("cut"), checkpoints("whole")) << best;
  }
}

/// A requeued job repeats its command line. If the run has a checkpoint, the job must resume from this checkpoint and
/// ignore --init.
TEST_F(Resume, InitIsWhereARunWithoutACheckpointBegins) {
  const std::string weights = path("base") + "/last ";
  train("--epochs 1" + out("base")).finished();
  train("--epochs 2 --lr 0.01 --init " + weights + out("whole")).finished();
  const std::string job = "--epochs 2 --lr 0.01 --resume auto --init " + weights + out("cut");
  train(job + "--max-time 0.000001").exits(75, {}, {{"  resuming   ", 0}});
  train(job).finished({}, {{"  resuming   " + path("cut/last"), 1}});
  EXPECT_EQ(model("cut"), model("whole"));
  EXPECT_NE(model("cut"), model("base"));
  testing::expect_refusals([&](const std::string& options) { return train(options); },
                           {{"--init a --resume b", {"--init is a with --resume b", "--resume auto"}},
                            {"--init a --evaluate b", {"--evaluate is b with --init"}}});
}

/// The mlp learns nothing, so all epochs have the same accuracy. Then the first epoch must stay the best, even if a
/// kill has left only its checkpoint best-4.
TEST_F(Resume, TheBestOfAFirstEpochThatWasCutIsKept) {
  const std::string job = "--model mlp --hidden 8 --lr 1e-30 --epochs 3 --keep-best 2 --resume auto ";
  train(job + out("whole")).finished();
  ASSERT_EQ(step_of("whole/best"), 4);
  fs::create_directories(path("cut"));
  fs::copy(path("whole/best-4"), path("cut/best-4"));
  train(job + out("cut")).finished();
  EXPECT_EQ(checkpoints("cut"), checkpoints("whole"));
}

/// A run "goes back" if it resumes from an earlier checkpoint than its last one. The test creates the folders that
/// remain after kills at several moments of such a run. The next start must find out whether the run has already gone
/// back.
TEST_F(Resume, ARestartKnowsWhetherTheRunHasGoneBack) {
  make_run("run");
  const std::string back = "--epochs 4 --lr 0.02 --resume run/last.1 --out run";
  start(0, back + " --max-time 0.000001").exits(75);
  EXPECT_EQ(step_of("run/last.1"), 8) << "written first";
  // Simulates a kill between the first write of last/ and the next write of config.json: ulimit makes the program's own
  // writes of checkpoints fail, and the test then renames last.1 to last.
  make_run("cut");
  ::setenv("LIMIT", "20", 1);
  start(0, "--epochs 4 --lr 0.02 --resume cut/last.1 --out cut").exits(3);
  ::unsetenv("LIMIT");
  EXPECT_TRUE(config("cut").has("goes_back"));
  fs::remove_all(path("cut/last"));
  fs::rename(path("cut/last.1"), path("cut/last"));
  start(1, "--epochs 4 --lr 0.02 --resume cut/last.1 --out cut")
      .finished({}, {{"  resuming   cut/last at epoch 2, batch 0, step 8", 1}});
  // The first two starts of a new job are killed before they write last/. The third start must resume from best-4.
  fs::remove_all(path("cut"));
  ::setenv("LIMIT", "20", 1);
  start(0, "--epochs 3 --out cut").exits(3);
  fs::copy(path("made/best-4"), path("cut/best-4"));
  start(1, "--epochs 3 --out cut").exits(3);
  ::unsetenv("LIMIT");
  start(2, "--epochs 3 --out cut").finished({}, {{"  resuming   cut/best-4", 1}});
  EXPECT_EQ(checkpoints("cut"), checkpoints("made"));
}

TEST_F(Resume, ARunThatGoesBackIsTheSameWhereverItIsStopped) {
  make_run("whole");
  make_run("parts");
  // The new learning rate changes all results after step 4, so the checkpoints of later steps are new, too.
  const std::string job = "--epochs 5 --lr 0.02 ";
  train(job + "--resume whole/best-4 --out whole").finished();
  EXPECT_EQ(resumes("whole"), Steps{4});
  for (int stop = 0; stop < 3; ++stop) {
    const std::string from = stop == 0 ? "parts/best-4" : "auto";
    train(job + "--max-time 0.000001 --out parts --resume " + from).exits(75, {}, {{"is not the best of", 0}});
    EXPECT_EQ(step_of("parts/last"), 5 + stop);
  }
  train(job + "--resume auto --out parts").finished();
  // last.1 is not compared, because a stopped run has written earlier checkpoints at other steps.
  std::map<std::string, std::string> whole = checkpoints("whole");
  std::map<std::string, std::string> parts = checkpoints("parts");
  whole.erase("last.1");
  parts.erase("last.1");
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(resumes("parts"), (Steps{4, 5, 6, 7}));
  // best/ must equal one of the best-N.
  EXPECT_TRUE(std::any_of(whole.begin(), whole.end(), [&](const auto& each) {
    return each.first.starts_with("best-") && each.second == whole["best"];
  }));
}

TEST_F(Resume, ARunThatFailsBeforeItGoesBackChangesNothing) {
  make_run("run");
  const auto before = checkpoints("run");
  const std::string metrics = get("run/metrics.jsonl");
  const std::string back = "--epochs 4 --lr 0.02 --resume run/best-4 --out run";
  ::setenv("LIMIT", "20", 1);  // limit in blocks of 512 bytes: a checkpoint is larger, all other files are smaller
  for (const int number : {0, 1}) {
    start(number, back)
        .exits(3, {}, {{"  resuming   run/best-4", 1}, {"model.safetensors: cannot be written: File too large", 1}});
    EXPECT_EQ(checkpoints("run"), before);
    EXPECT_EQ(get("run/metrics.jsonl"), metrics);
  }
  ::unsetenv("LIMIT");
  // The third start of the job goes back to best-4 and writes a new last/. The fourth start must resume from this
  // last/.
  start(2, back + " --max-time 0.000001").exits(75, {}, {{"  resuming   run/best-4", 1}});
  start(3, back).finished({}, {{"  resuming   run/last at epoch 1, batch 1", 1}});
  EXPECT_EQ(resumes("run"), (Steps{4, 5}));
  EXPECT_FALSE(config("run").has("goes_back"));
}

TEST_F(Resume, LastIsWrittenFirstWhereSomethingIsLeftToDo) {
  make_run("run");
  const auto before = checkpoints("run");
  train("--epochs 1 --resume run/best-4 --out run").finished();
  EXPECT_EQ(checkpoints("run"), before) << "nothing was left to do";
  train("--epochs 3 --steps 5 --resume run/best-4 --out run").finished();
  EXPECT_EQ(step_of("run/last"), 5);
  EXPECT_EQ(step_of("run/last.1"), 4);
  train("--epochs 3 --steps 6 --resume run/../run/last --out run").finished();
  EXPECT_EQ(step_of("run/last.1"), 5) << "last/ by another path is not written again";
}

/// Tests nn::best_of_resumed(), which finds the best evaluation of a resumed run, with state files that this test
/// writes.
TEST_F(Resume, WhichIsTheBest) {
  make_run("run");
  const auto put_state = [&](const std::string& checkpoint, std::int64_t step, double best, std::int64_t since_best) {
    fs::remove(path("run/" + checkpoint + "/checksums.json"));
    Json::Object state = *read_json(path("made/last/state.json")).if_object();
    state["step"] = step;
    state["best"] = best;
    state["since_best"] = since_best;
    put("run/" + checkpoint + "/state.json", Json(state).text());
  };
  const auto best_of = [&](std::int64_t step, double best, bool rolls_back = false, bool lowest = false) {
    const nn::RunProgress progress{
        .position = {.epoch = 0, .batch = 0, .step = step}, .best_by = "test_accuracy", .best = best};
    const nn::BestOfResumed found = nn::best_of_resumed(nn::CheckpointStore(path("run")), progress,
                                                        {.metric = "test_accuracy", .lowest = lowest}, rolls_back);
    return concat(found.value ? concat(*found.value) : "none", ' ', fs::path(found.copy_from).filename().string());
  };
  for (const std::string& name : std::vector<std::string>{"best-4", "best-8", "best-12"}) {
    fs::remove_all(path("run/" + name));
  }
  put_state("best", 8, 0.5, 0);
  EXPECT_EQ(best_of(12, 0.5), "0.5 ");
  EXPECT_EQ(best_of(8, 0.5, true), "0.5 ") << "from best/ itself";
  EXPECT_EQ(best_of(4, 0.25), "0.25 ") << "killed between best and last";
  EXPECT_EQ(best_of(4, 0.25, true), "none ") << "of the run that is left behind";
  EXPECT_EQ(best_of(4, 0.5, true), "none ") << "the same value, of the run that is left behind";
  EXPECT_EQ(best_of(12, 0.25), "0.5 ") << "a better one before";
  EXPECT_EQ(best_of(12, 0.75), "none ") << "the best one was elsewhere";
  EXPECT_EQ(best_of(12, 0.75, false, true), "0.5 ") << "the lowest is the best";
  put_state("best-4", 4, 0.25, 0);
  EXPECT_EQ(best_of(12, 0.25), "0.25 best-4");
  EXPECT_EQ(best_of(4, 0.25, true), "0.25 best-4");
  EXPECT_EQ(best_of(3, 0.25), "0.25 ") << "best-4 is behind this state";
  put_state("best-4", 4, 0.25, 1);
  EXPECT_EQ(best_of(4, 0.25, true), "none ") << "best-4 was not the best itself";
  put_state("best-4", 3, 0.25, 0);
  EXPECT_EQ(best_of(4, 0.25, true), "none ") << "somebody has given it this name";
  fs::remove_all(path("run/best"));
  EXPECT_EQ(best_of(12, 0.5), "none ");
  put_state("best-4", 4, 0.5, 0);
  EXPECT_EQ(best_of(12, 0.5), "0.5 best-4");
  put("run/best-4/state.json", "{");
  EXPECT_EQ(best_of(12, 0.5), "none ");
}

TEST_F(Resume, ABestThatIsMissingComesFromTheOthers) {
  make_run("run");
  const std::string best = get("run/best/model.safetensors");
  fs::remove_all(path("run/best"));
  train("--epochs 3 --steps 13 --lr 1e-6 --resume auto --out run").finished({}, {{"is not the best of", 0}});
  EXPECT_EQ(get("run/best/model.safetensors"), best);
}

// A user may have put other files into a checkpoint's folder. These must not be copied.
TEST_F(Resume, OnlyTheFilesOfACheckpointAreCopied) {
  make_run("run");
  fs::remove_all(path("run/best"));
  put("secret", "mine");
  // The number in the name of the best checkpoint varies.
  for (const auto& entry : fs::directory_iterator(path("run"))) {
    if (entry.path().filename().string().starts_with("best-")) {
      fs::create_symlink(path("secret"), entry.path() / "link");
      fs::create_directories(entry.path() / "folder");
      fs::permissions(entry.path() / "model.safetensors", fs::perms::owner_read | fs::perms::owner_write);
      fs::permissions(entry.path(), fs::perms::owner_all);
    }
  }
  const std::string again = "--epochs 3 --steps 13 --lr 1e-6 --resume auto --out run";
  train(again).finished();
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path("run/best"))) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"checksums.json", "model.safetensors", "optimizer.safetensors", "state.json"}));
  EXPECT_EQ(fs::status(path("run/best/model.safetensors")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(path("run/best")).permissions(), fs::perms::owner_all);
  EXPECT_FALSE(fs::is_symlink(path("run/best/state.json")));
  fs::remove_all(path("run/best"));
  for (const auto& entry : fs::directory_iterator(path("run"))) {
    if (entry.path().filename().string().starts_with("best-")) {
      fs::rename(entry.path() / "model.safetensors", path("model"));
      fs::create_symlink(path("model"), entry.path() / "model.safetensors");
    }
  }
  expect_refused(train("--epochs 3 --steps 14 --lr 1e-6 --resume auto --out run"), {"model.safetensors: is a link"});
}

TEST_F(Resume, EarlierCheckpointsAreFoundByTheirNumbers) {
  make_run("run");
  for (const char* name : {"best", "best-4", "best-8", "best-12", "last"}) {
    fs::remove_all(path(concat("run/", name)));
  }
  fs::rename(path("run/last.1"), path("run/last.3"));
  expect_refused(train("--epochs 3 --out run"), {"--out run", "last.3/", "--resume auto"});
  train("--epochs 3 --resume auto --out run")
      .finished({}, {{"  resuming   run/last.3 at epoch 2, batch 0, step 8", 1}});
  fs::create_directories(path("run/last.x"));
  train("--epochs 1 --overwrite --out run").finished();
  EXPECT_FALSE(fs::exists(path("run/last.3")));
  EXPECT_TRUE(fs::exists(path("run/last.x"))) << "not a name of ours";
}

TEST_F(Resume, ACheckpointWithoutItsFilesIsNoneToGoOnFrom) {
  make_run("run");
  fs::remove_all(path("run/last"));
  for (const char* file : {"model.safetensors", "checksums.json"}) {
    fs::remove(path(concat("run/best-12/", file)));
    fs::remove(path(concat("run/best/", file)));
  }
  train("--epochs 3 --resume auto --out run").finished({}, {{"step 8", 1}});
}

TEST_F(Resume, APathMayBeWrittenInOtherWays) {
  make_run("run");
  fs::create_directory_symlink(path("run/best-8"), path("link"));
  for (const std::string from : {"run/", "run/.", "run/last/", "./run/best-12", "link", "run/best-8/."}) {
    SCOPED_TRACE(from);
    make_run("run");
    train("--epochs 3 --out run/ --resume " + from).finished({}, {{"  resuming   ", 1}});
    EXPECT_EQ(step_of("run/last"), 12);
  }
  for (const std::string inside : {".", "best-8", "last"}) {
    SCOPED_TRACE(inside);
    train("--epochs 3 --out . --resume " + inside, "cd run;").finished();
  }
  for (const std::string evaluated : {"run/", "run/.", "link/"}) {
    SCOPED_TRACE(evaluated);
    train("--evaluate " + evaluated).finished({}, {{"test loss", 1}});
  }
  fs::remove_all(path("run/last"));
  fs::remove_all(path("run/last.1"));
  train("--epochs 3 --resume run --out run").finished();  // a run's folder means its newest checkpoint
  expect_refused(train("--epochs 3 --resume run/best-99 --out run"), {"run/best-99", "there is no checkpoint"});
}

/// After a kill, the ranks of the old job may still hold the lock of the folder for a moment. A resumed run must wait
/// for the lock, and --overwrite must fail at once.
TEST_F(Resume, ARunWaitsForTheEndOfTheOneBefore) {
  make_run("run");
  std::optional<FolderLock> held(std::in_place, path("run"));
  expect_refused(train("--epochs 4 --overwrite --out run"), {"--out", "another run writes there"});
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    held.reset();
  });
  const Ended ended = train("--epochs 4 --resume auto --out run");
  ends.join();
  ended.finished();
  EXPECT_EQ(step_of("run/last"), 16);
}

TEST_F(Resume, TheTimeOfEarlierStartsCounts) {
  train("--epochs 2 --max-time 3000 --out run", "export LOCKSTEP_ATTEMPT='7-1 0 - 0';").finished();
  train("--epochs 4 --max-time 3000 --resume auto --out run", "export LOCKSTEP_ATTEMPT='7-1 1 - 3001';").exits(75);
  EXPECT_EQ(step_of("run/last"), 9);
}

}  // namespace
}  // namespace lockstep
