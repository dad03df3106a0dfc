// Tests copies of a run's state in memory, on ranks that are threads and nodes that are folders.
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/app/memory_checkpoints.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/run/training_run.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJob = "7-9";

/// Fixture of runs in which each node has a given number of ranks. An epoch has six steps. No copy is made at the end
/// of an epoch.
class Copies : public TrainerTest {
 protected:
  [[nodiscard]] std::string root(int node) const { return path("node" + std::to_string(node)); }
  /// Returns the folder that holds a node's copies between two starts of the job.
  [[nodiscard]] std::string folder(int node) const {
    return root(node) + "/lockstep-copies-" + std::to_string(::geteuid()) + "-" + kJob + ".away";
  }

  struct Outcome {
    std::optional<std::int64_t> found;
    bool on = false;  ///< true if copies were still enabled at the end
    std::vector<std::string> said;
  };

  /// Resumes from the newest copy if one exists, and trains until step `steps`. Makes a copy after every second step.
  Outcome run(const std::vector<int>& nodes, std::int64_t steps, const std::string& dir = "",
              const std::function<void(MemoryCheckpoints&)>& before = {}, bool orderly = false, bool zero1 = false) {
    std::vector<MemoryCheckpoints::Place> places;
    for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
      fs::create_directories(root(node));
      for (int local = 0; local < nodes[static_cast<std::size_t>(node)]; ++local) {
        places.push_back({.job = kJob, .node = node, .local_rank = local, .root = root(node)});
      }
    }
    Outcome outcome;
    const int ranks = static_cast<int>(places.size());
    const auto failures = with_trainers(
        ranks,
        [&](TrainerOptions& options, int) {
          options.schedule.total_steps = 12;
          options.step.strategy = zero1 ? Strategy::zero1 : Strategy::ddp;
        },
        [&](Trainer& trainer, comm::Communicator& control) {
          trainer.start();
          MemoryCheckpoints copies(control, places[static_cast<std::size_t>(control.rank())],
                                   [&](const std::string& line) { outcome.said.push_back(line); });
          const std::optional<std::int64_t> found = copies.find();
          RunProgress progress;
          RunIdentity identity = identity_of(trainer);
          if (found) {
            EXPECT_EQ(resume_checkpoint(copies.newest(), trainer, control, identity, progress), "");
            EXPECT_EQ(progress.position.step, *found);
          }
          // All ranks must have read the copies before one of them calls settle().
          (void)comm::all_gather_value(control, 0);
          copies.settle(false);
          if (before) {
            before(copies);
          }
          RunObserver nobody;
          const RunOptions options{
              .epochs = 2, .steps = steps, .checkpoint_dir = dir, .copy_every = 2, .copy = [&](const RunProgress& at) {
                copies.save(trainer, identity, at);
              }};
          static_cast<void>(run_training(trainer, control, identity, options, progress, nobody));
          if (orderly) {
            copies.finish();
          }
          if (control.rank() == 0) {
            outcome.found = found;
            outcome.on = copies.on();
          }
        });
    EXPECT_EQ(failures, comm::none_failed(ranks));
    return outcome;
  }

  /// Changes a byte in the middle of optimizer.safetensors in the folder `copy`.
  void damage(const std::string& copy) const {
    const std::string file = copy + "/optimizer.safetensors";
    std::string bytes = file_text(file);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }
  [[nodiscard]] static std::int64_t step_of(const std::string& copy) {
    return read_checkpoint_state(copy).progress.position.step;
  }
};

TEST_F(Copies, TheNextStartGoesOnFromTheNewestBitForBit) {
  struct Trial {
    std::vector<int> nodes;
    bool zero1;
  };
  int number = 0;
  for (const Trial& trial : {Trial{{2}, false}, {{3, 1}, true}, {{1, 1, 1}, false}}) {
    const std::vector<int>& nodes = trial.nodes;
    SCOPED_TRACE(concat(nodes.size(), " nodes"));
    const std::string alone = path(concat("alone", ++number));
    const std::string restarted = path(concat("restarted", number));
    EXPECT_EQ(run(nodes, 0, alone, {}, true, trial.zero1).found, std::nullopt);
    // The run ends without finish(), as if it were killed.
    EXPECT_EQ(run(nodes, 9, restarted, {}, false, trial.zero1).found, std::nullopt);
    const int all = static_cast<int>(nodes.size());
    for (int node = 0; node < all; ++node) {
      EXPECT_EQ(fs::exists(folder(node) + "/last"), node < 2);
    }
    EXPECT_EQ(step_of(folder(0) + "/last"), 8);
    EXPECT_EQ(step_of(folder(0) + "/last.1"), 4);
    if (all > 1) {
      EXPECT_EQ(checkpoint_bytes(folder(0) + "/last"), checkpoint_bytes(folder(1) + "/last"));
    }
    const Outcome next = run(nodes, 0, restarted, {}, true, trial.zero1);
    EXPECT_EQ(next.found, 8);
    EXPECT_TRUE(next.on);
    EXPECT_TRUE(next.said.empty()) << next.said.front();
    EXPECT_TRUE(checkpoint_bytes(restarted + "/last") == checkpoint_bytes(alone + "/last"));
    for (int node = 0; node < all; ++node) {
      EXPECT_TRUE(fs::is_empty(root(node))) << "after an orderly end";
    }
  }
}

TEST_F(Copies, ANodeThatIsLostTakesNothingAlong) {
  const std::vector<int> nodes{2, 2};
  run(nodes, 0, path("alone"), {}, true);
  run(nodes, 9, path("restarted"));
  for (const int lost : {0, 1}) {
    fs::remove_all(root(lost));
    EXPECT_EQ(run(nodes, 9).found, 8) << "node " << lost;
    EXPECT_EQ(step_of(folder(lost) + "/last"), 8) << "what came from the other node";
  }
  fs::remove_all(root(0));
  EXPECT_EQ(run(nodes, 0, path("restarted"), {}, true).found, 8);
  EXPECT_TRUE(checkpoint_bytes(path("restarted/last")) == checkpoint_bytes(path("alone/last")));
}

TEST_F(Copies, ADamagedCopyIsLeftOutAndTheOneBeforeIsTaken) {
  const std::vector<int> nodes{1, 1};
  run(nodes, 9);
  damage(folder(0) + "/last");
  const Outcome other = run(nodes, 9);
  EXPECT_EQ(other.found, 8) << "the other node's";
  ASSERT_EQ(other.said.size(), 1U);
  testing::expect_holds(other.said[0], {"a copy in memory is left out: " + folder(0) + "/last", "CRC-32"});

  fs::remove_all(root(0));
  fs::remove_all(root(1));
  run(nodes, 9);
  damage(folder(0) + "/last");
  fs::remove(folder(1) + "/last/checksums.json");  // makes this copy invalid, too
  const Outcome before = run(nodes, 9);
  EXPECT_EQ(before.found, 4);
  EXPECT_EQ(before.said.size(), 2U);

  for (const char* copy : {"/last", "/last.1"}) {
    damage(folder(0) + copy);
    damage(folder(1) + copy);
  }
  const Outcome none = run(nodes, 9);
  EXPECT_EQ(none.found, std::nullopt);
  EXPECT_TRUE(none.on) << "and copies are made again";
  EXPECT_EQ(run(nodes, 9).found, 8);
}

TEST_F(Copies, AStartDoesNotTakeItsOwnJobsCopiesForAbandoned) {
  const std::vector<int> nodes{1, 1};
  run(nodes, 9);
  const std::array<timespec, 2> old{timespec{.tv_sec = 1, .tv_nsec = 0}, timespec{.tv_sec = 1, .tv_nsec = 0}};
  // Sets the time of the copies' folders to 1970, so that they look as old as those of a run that hung for days.
  for (const int node : {0, 1}) {
    ASSERT_EQ(::utimensat(AT_FDCWD, folder(node).c_str(), old.data(), 0), 0);
  }
  EXPECT_EQ(run(nodes, 9).found, 8);
}

TEST_F(Copies, AKillDuringACopyLeavesTheOneBefore) {
  run({2}, 9);
  fs::create_directory(folder(0) + "/last.tmp-host-1-r0123456789abcdef");
  std::ofstream(folder(0) + "/last.tmp-host-1-r0123456789abcdef/model.safetensors") << "begun";
  EXPECT_EQ(run({2}, 11).found, 8);
  EXPECT_EQ(step_of(folder(0) + "/last"), 10);
  EXPECT_FALSE(fs::exists(folder(0) + "/last.tmp-host-1-r0123456789abcdef"));
}

TEST_F(Copies, WithoutRoomTheRunGoesOnWithoutCopies) {
  const Outcome none = run({1, 1}, 9, "", [](MemoryCheckpoints& copies) { copies.require_room(std::size_t{1} << 50); });
  EXPECT_FALSE(none.on);
  ASSERT_EQ(none.said.size(), 1U);
  testing::expect_holds(none.said[0], {"no more copies in memory: rank 0: " + folder(0), "bytes are free, expected "});
  EXPECT_FALSE(fs::exists(folder(0) + "/last"));
  EXPECT_TRUE(run({1, 1}, 9, "", [](MemoryCheckpoints& copies) { copies.require_room(1000); }).on);
  // Replaces the folder with a file, so that even root cannot write copies.
  for (const int node : {0, 1}) {
    fs::remove_all(root(0));
    fs::remove_all(root(1));
    std::once_flag once;
    const Outcome broken = run({1, 1}, 9, "", [&](MemoryCheckpoints&) {
      std::call_once(once, [&] {
        fs::remove_all(folder(node));
        std::ofstream(folder(node)) << "a file";
      });
    });
    EXPECT_FALSE(broken.on);
    ASSERT_EQ(broken.said.size(), 1U);
    testing::expect_holds(broken.said[0], concat("rank ", node, ": ", folder(node)));
  }
}

TEST_F(Copies, TheLastStartMakesNone) {
  run({2}, 9);
  const Outcome last = run({2}, 9, "", [](MemoryCheckpoints& copies) { copies.settle(true); });
  EXPECT_EQ(last.found, 8);
  EXPECT_FALSE(last.on);
  EXPECT_TRUE(fs::is_empty(root(0)));
}

TEST_F(Copies, AFolderIsRemovedOnceNobodyHoldsIt) {
  using Use = CopiesFolder::Use;
  fs::create_directories(root(0));
  std::string name;
  {
    const CopiesFolder job("1-1", Use::job, root(0));
    name = job.path();
    const CopiesFolder rank("1-1", Use::start, root(0));
    EXPECT_EQ(rank.path(), name) << "the one that is there";
    std::ofstream(name + "/text") << "copy";
    remove_abandoned_copies(root(0));
    EXPECT_TRUE(fs::exists(name + "/text"));
  }
  EXPECT_FALSE(fs::exists(name));
  // remove_abandoned_copies() must remove the folder of a killed process, and keep a folder that is not lockstep's.
  fs::create_directory(name);
  fs::create_directory(root(0) + "/lockstep-copies-of-mine");
  remove_abandoned_copies(root(0));
  EXPECT_FALSE(fs::exists(name));
  EXPECT_TRUE(fs::exists(root(0) + "/lockstep-copies-of-mine"));
  // Between two starts no process holds the lock of a rank's folder. remove_abandoned_copies() must still keep the
  // folder until it is old.
  std::string away;
  {
    CopiesFolder rank("1-1", Use::start, root(0));
    away = rank.path();
  }
  EXPECT_EQ(away, name + ".away");
  remove_abandoned_copies(root(0));
  EXPECT_TRUE(fs::exists(away));
  const std::array<timespec, 2> old{timespec{.tv_sec = 1, .tv_nsec = 0}, timespec{.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, away.c_str(), old.data(), 0), 0);
  remove_abandoned_copies(root(0));
  EXPECT_FALSE(fs::exists(away));
  // Errors: the folder's name is a file, or the parent folder is missing.
  std::ofstream(name) << "a file";
  EXPECT_THROW(CopiesFolder("1-1", Use::job, root(0)), FileError);
  EXPECT_THROW(CopiesFolder("1-1", Use::job, root(0) + "/missing"), FileError);
}

}  // namespace
}  // namespace lockstep::nn
