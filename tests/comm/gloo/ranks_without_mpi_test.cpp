// Tests programs whose ranks meet over TCP and communicate with gloo. The programs are those of session_test.cpp and
// train_resnet_test.cpp, but run without MPI.

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::comm {
namespace {

using lockstep::testing::Ended;
using lockstep::testing::run_command;

/// Runs a program under start_ranks. ranks: number of ranks, with options before it ("3", "--without 1 3").
Ended start(const std::string& ranks, const std::string& program, const std::string& environment = "") {
  return run_command("env " + environment + " " + START_RANKS + " " + ranks + " " + program);
}

Ended session(const std::string& ranks, const std::string& mode, const std::string& environment = "") {
  return start(ranks, std::string(SESSION_PROGRAM) + " " + mode, environment);
}

TEST(RanksWithoutMpi, MeetAndCommunicate) {
  for (const int ranks : {2, 3}) {
    for (const char* form : {"", "--lightning "}) {
      const std::string n = std::to_string(ranks);
      const Ended o = session(form + n, "ok");
      EXPECT_EQ(o.code, 0) << o.output;
      for (int r = 0; r < ranks; ++r) {
        const std::string me = std::to_string(r);
        EXPECT_EQ(o.count("rank " + me + "/" + n + " local " + me + "/" + n + " node 0 of 1 0"), 1) << o.output;
      }
      o.has({"on gloo 0.", ", communication stream worker", {"ended with 0", ranks}});
    }
  }
}

TEST(RanksWithoutMpi, ARankAloneNeedsNobody) {
  const Ended o = session("1", "ok", "MASTER_ADDR=no-such-host.invalid");
  o.exits(0).has({"rank 0/1 local 0/1 node 0 of 1 0"});
}

TEST(RanksWithoutMpi, OneFailingRankEndsTheJob) {
  struct Case {
    const char* mode;
    const char* code;
    const char* text;
  };
  for (const Case& c :
       {Case{"throw", "3", "broken in two lines"}, Case{"throw_data", "2", "bad file"},
        Case{"throw_int", "3", "an exception that is not a std::exception"}, Case{"abort", "76", "gave up"}}) {
    const Ended o = session("3", c.mode);
    const std::string code = c.code;
    EXPECT_EQ(o.count("ended: " + code + " " + code + " " + code), 1) << o.output;
    EXPECT_LT(o.seconds, 10) << c.mode;
    o.has({"lockstep: error:", std::string("lockstep: error: rank 1: ") + c.text, {"ended with", 0}});
  }
}

TEST(RanksWithoutMpi, Agree) {
  session("4", "agree").has({"lockstep: error:", "lockstep: error: rank 2: no such file", {"ended with 2", 4}});
  session("3", "throw_together")
      .has({"lockstep: error:", "lockstep: error: no room for the checkpoint", {"ended with 2", 3}});
  session("3", "agree_then_leave").has({"lockstep: error: rank 0: first", {"ended with 2", 3}});
}

/// A rank is killed between operations, in an operation, or after the other ranks have ended their work. The other
/// ranks must name the killed rank within seconds.
TEST(RanksWithoutMpi, AKilledRankIsNamed) {
  for (const char* mode : {"die 1", "die 0", "die_sending 1", "die_sending 0", "die_at_end 1", "die_at_end 0"}) {
    const Ended o = start("3", std::string(LOST_RANK) + " " + mode);
    const bool first = std::string(mode).ends_with('0');
    EXPECT_LT(o.seconds, 20) << mode;
    EXPECT_EQ(o.count(first ? "ended: 137 3 3" : "ended: 3 137 3"), 1) << mode << "\n" << o.output;
    EXPECT_GE(o.count("lockstep: error:"), 1) << o.output;
    o.has({{first ? ": rank 0 (" : ": rank 1 (", o.count("lockstep: error:")},
           {") has ended", o.count("lockstep: error:")}});
  }
}

TEST(RanksWithoutMpi, RanksThatDoNotComeAreNamed) {
  const Ended one = session("--without 2 3", "ok", "LOCKSTEP_MEET_SECONDS=1");
  EXPECT_EQ(one.code, 2) << one.output;
  EXPECT_LT(one.seconds, 10);
  one.has({"lockstep: error:", "lockstep: error: rank 0: launch: rank 2 of 3 has not come to rank 0 at localhost:",
           "ended: 2 2 -"});

  EXPECT_EQ(one.count("lockstep: rank 0: waiting for rank 2 of 3 at localhost:"), 1) << one.output;

  session("--without 0 3", "ok", "LOCKSTEP_MEET_SECONDS=1")
      .has({"lockstep: rank 1: waiting for rank 0 of 3 at localhost:",
            "ended: - 2 2",
            {"lockstep: error:", 2},
            "lockstep: error: rank 1: launch: rank 0 of 3 does not answer at localhost:"});
}

/// The launcher's environment variables are invalid on one host. The processes on this host must report the error
/// themselves, because the other hosts cannot see these variables.
TEST(RanksWithoutMpi, WhatIsWrongOnAnotherHostIsSaidThere) {
  for (const char* local_rank : {"0", "1"}) {
    run_command(std::string("env RANK=2 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=127.0.0.1 "
                            "MASTER_PORT=70000 LOCAL_RANK=") +
                local_rank + " " + SESSION_PROGRAM + " ok")
        .exits(2)
        .has({"lockstep: error:", "MASTER_PORT=70000"});
  }
}

TEST(RanksWithoutMpi, PlacesThatCannotBe) {
  for (const auto& [variable, expected] : {std::pair{"MASTER_PORT=0", "expected 1 to 65535"},
                                           {"MASTER_PORT=x", "whole number"},
                                           {"LOCKSTEP_MEET_SECONDS=0", "expected 1 to 1000000"}}) {
    const Ended o = session("2", "ok", variable);
    EXPECT_EQ(o.count("ended: 2 2"), 1) << o.output;
    EXPECT_EQ(o.error_lines().size(), 2U) << "of ranks that have not met each\n" << o.output;
    o.has({{variable, 2}, {expected, 2}});
  }
  const Ended nowhere = session("2", "ok", "MASTER_ADDR=no-such-host.invalid LOCKSTEP_MEET_SECONDS=2");
  EXPECT_EQ(nowhere.count("ended: 2 2"), 1) << nowhere.output;
  EXPECT_LT(nowhere.seconds, 20);
  EXPECT_EQ(nowhere.count("the name has no address"), 3) << "two errors, and rank 1's note before\n" << nowhere.output;
  EXPECT_EQ(nowhere.count("lockstep: error:"), 2) << nowhere.output;
}

/// A stopped rank sends nothing. The watchdog of the other ranks must name it and end them.
TEST(RanksWithoutMpi, AStoppedRankIsNamed) {
  const Ended o = start("--grace 2 3", std::string(LOST_RANK) + " stop 1");
  o.exits(76).has({"ended: 76 killed 76"});
  EXPECT_GE(o.count("no progress for 2 s"), 1) << o.output;
  o.has({"no word from rank 1 (host ", "the process is stopped"});
}

/// Returns the names of the status tables in /dev/shm. Running jobs have a table for a moment; a failed start must
/// leave none.
std::set<std::string> tables() {
  std::istringstream listing(run_command("ls /dev/shm | grep '^lockstep-' || true").output);
  std::set<std::string> names;
  for (std::string name; std::getline(listing, name);) {
    names.insert(name);
  }
  return names;
}

/// If some ranks never come, the start must delete its status table. Otherwise the table would mislead the next start
/// with the same name. Tables of other jobs on this machine may appear meanwhile, but they disappear.
TEST(RanksWithoutMpi, AStartThatFailedLeavesNoBoard) {
  const std::set<std::string> before = tables();
  const Ended o = session("--without 2 3", "ok", "LOCKSTEP_MEET_SECONDS=1 LOCKSTEP_TEST_WATCHDOG=600");
  EXPECT_EQ(o.count("ended: 2 2 -"), 1) << o.output;
  std::set<std::string> left = tables();
  std::erase_if(left, [&](const std::string& name) { return before.count(name) > 0; });
  constexpr int kLooks = 100;
  for (int look = 0; look < kLooks && !left.empty(); ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::set<std::string> now = tables();
    std::erase_if(left, [&](const std::string& name) { return now.count(name) == 0; });
  }
  EXPECT_EQ(left, std::set<std::string>());
}

/// The watchdog compares and records operations in the same way with gloo as with MPI.
TEST(RanksWithoutMpi, OperationsAreComparedAndKept) {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "operations.json";
  const auto record = [&] {
    const auto bytes = testing::get_file(file);
    return std::string(bytes.begin(), bytes.end());
  };
  const Ended differ = session("2", "differ " + file, "LOCKSTEP_TEST_WATCHDOG=600");
  EXPECT_EQ(differ.count("ended: 3 3"), 1) << differ.output;
  EXPECT_LT(differ.seconds, 30);
  EXPECT_LE(differ.count("lockstep: error:"), 2) << differ.output;  // both ranks may report an error
  EXPECT_EQ(differ.count("lockstep: error: ranks call different operations: operation 6 of grad is broadcast of 8 f32 "
                         "from rank 0 on rank 0 and broadcast of 8 f32 from rank 1 on rank 1"),
            1)
      << differ.output;
  EXPECT_NE(record().find("broadcast of 8 f32 from rank 1"), std::string::npos);

  const Ended linger = session("3", "linger " + file, "LOCKSTEP_TEST_WATCHDOG=2");
  EXPECT_EQ(linger.count("ended: 76 76 76") + linger.count("ended: 76 76 3") + linger.count("ended: 76 3 76") +
                linger.count("ended: 3 76 76"),
            1)
      << linger.output;  // code 3: a rank noticed the end of another rank before its own watchdog acted
  EXPECT_LT(linger.seconds, 40);
  linger.has(
      {"rank 1 has not called operation 2 of inline_ops, all_reduce of 3 f32, as rank ", " has not called operation "});
  EXPECT_NE(record().find("all_reduce of 3 f32"), std::string::npos);
}

#ifdef HELLO_RANKS
TEST(RanksWithoutMpi, TheBackendIsAChoice) {
  const std::string hello = std::string(HELLO_RANKS) + " --devices cpu";
  for (const char* same : {"", " --backend auto", " --backend gloo", " --backend nccl"}) {
    start("2", hello + same)
        .exits(0)
        .has({"2 ranks on 1 node, gloo 0.", "started by torchrun", "all-reduced sum of the ranks: 1, as expected"});
  }
  const Ended mpi = start("2", hello + " --backend mpi");
  mpi.exits(2).has({{"lockstep: error:", 2}, {"--backend", 2}});
  const Ended word = run_command(hello + " --backend smoke");
  testing::expect_refused(word, {"--backend is 'smoke', expected auto, mpi, gloo or nccl"});
  testing::expect_refused(run_command(std::string(HELLO_RANKS) + " --devices cpu:2 --backend gloo"),
                          {"--backend is gloo", "cpu:2", "MASTER_ADDR and MASTER_PORT", "torchrun"});
  const Ended both = start("--lightning 2", hello + ":2");
  EXPECT_EQ(both.count("2 ranks on 1 node, gloo 0."), 1) << both.output;
  const Ended second =
      run_command("env NODE_RANK=1 LOCAL_RANK=1 WORLD_SIZE=4 MASTER_ADDR=10.0.0.300 MASTER_PORT=1 " + hello + ":2");
  EXPECT_EQ(second.count("lockstep: error: rank 3: launch: rank 0's host '10.0.0.300'"), 1) << second.output;
  const Ended alone = run_command(hello + " --backend gloo");
  EXPECT_EQ(alone.code, 0) << alone.output;
  if (LOCKSTEP_HAS_MPI != 0) {
    run_command("env MASTER_ADDR=127.0.0.1 MASTER_PORT=1 LOCKSTEP_PORT=" + std::to_string(20000 + ::getpid() % 10000) +
                " " + MPIRUN + " -np 2 " + hello + " --backend gloo")
        .exits(0)
        .has({"2 ranks on 1 node, gloo 0."});
    const Ended nowhere =
        run_command("env -u MASTER_ADDR " + std::string(MPIRUN) + " -np 2 " + hello + " --backend gloo");
    EXPECT_EQ(nowhere.code, 2) << nowhere.output;
    EXPECT_GE(nowhere.count("without MASTER_ADDR"), 1) << nowhere.output;
  }
}
#endif

#ifdef TRAIN_RESNET
/// With two ranks a sum has only one order. So gloo and MPI must give weights with the same bits.
TEST(RanksWithoutMpi, TrainingHasTheBitsOfMpi) {
  if (LOCKSTEP_HAS_MPI == 0) {
    GTEST_SKIP() << "needs MPI to compare with, this build has none";
  }
  const testing::TemporaryFolder folder;
  const auto program = [&](const std::string& out, const std::string& more) {
    return std::string(TRAIN_RESNET) +
           " --devices cpu --train-images 64 --test-images 30 --image-size 12 --batch-size 16 --epochs 1 --log-every 1 "
           "--threads 1 --workers 0 --out " +
           folder / out + more;
  };
  const auto weights = [&](const std::string& out) {
    return testing::get_file(folder / (out + "/last/model.safetensors"));
  };
  const Ended gloo = start("2", program("gloo", ""));
  ASSERT_EQ(gloo.code, 0) << gloo.output;
  EXPECT_EQ(gloo.count("  ranks      2 on 1 node, gloo 0."), 1) << gloo.output;
  const Ended mpi = run_command(std::string(MPIRUN) + " -np 2 " + program("mpi", ""));
  ASSERT_EQ(mpi.code, 0) << mpi.output;
  const Ended other = start("2", program("other", " --seed 2"));
  ASSERT_EQ(other.code, 0) << other.output;
  EXPECT_FALSE(weights("gloo").empty());
  EXPECT_EQ(weights("gloo"), weights("mpi"));
  EXPECT_NE(weights("gloo"), weights("other"));  // the control
}
#endif

}  // namespace
}  // namespace lockstep::comm
