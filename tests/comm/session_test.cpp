#include <lockstep/comm/launch/session.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include <lockstep/comm/launch/run_alone.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::comm {
namespace {

using lockstep::testing::Ended;
using lockstep::testing::run_command;

const std::string kProgram = LOCKSTEP_TEST_PROGRAM;
const std::string kMpirun = LOCKSTEP_TEST_MPIRUN;

/// Runs the program with `ranks` ranks under mpirun. ranks = 0: without a launcher.
Ended run(int ranks, const std::string& mode, const std::string& environment = "") {
  const std::string launcher = ranks == 0 ? "" : kMpirun + " -np " + std::to_string(ranks) + " ";
  return run_command("env " + environment + " " + launcher + kProgram + " " + mode);
}

/// Makes Open MPI wait for all processes and return 0. By default it kills the remaining processes as soon as one
/// process ends with a nonzero code.
const std::string kWaitForAll =
    "OMPI_MCA_orte_abort_on_non_zero_status=0 PRTE_MCA_state_base_error_non_zero_exit=0";  // Open MPI 4 and 5

#define NEEDS_MPI()                          \
  if (kMpirun.empty()) {                     \
    GTEST_SKIP() << "this build has no MPI"; \
  }                                          \
  static_assert(true)

TEST(Session, AloneIsAWorldOfOne) {
  for (const char* environment : {"", "-u OMPI_MCA_plm"}) {
    run(0, "ok", environment)
        .exits(0)
        .has({"rank 0/1 local 0/1 node 0 of 1 0",
              "rank 0 ended with 0",
              {"on one rank without MPI", kMpirun.empty() ? 1 : 0}});
  }
}

TEST(Session, AloneItSharesNoFolderWithOthers) {
  NEEDS_MPI();
  const testing::TemporaryFolder folder;
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  const std::string name(host);
  // A program without a launcher makes Open MPI 4 use a folder of this name, in which jf.0 is a subfolder. Here jf.0 is
  // a file, so Open MPI 4 cannot use the folder.
  const std::string sessions = folder / ("ompi." + name.substr(0, name.find('.')) + "." + std::to_string(::getuid()));
  std::filesystem::create_directory(sessions);
  testing::put_file(sessions + "/jf.0", "");
  const Ended o = run(0, "ok", "TMPDIR=" + folder.path());
  EXPECT_EQ(o.code, 0) << o.output;
  const std::filesystem::directory_iterator left(folder.path());
  EXPECT_EQ(std::distance(begin(left), end(left)), 1) << "its own folder is deleted";
}

// Without a folder for temporary files Open MPI 5 would continue and crash at its next call. So lockstep must check the
// folder.
TEST(Session, AloneItNeedsAFolderForTemporaryFiles) {
  NEEDS_MPI();
  if (run(0, "ok").count("on Open MPI ") == 0) {
    GTEST_SKIP() << "another MPI needs no such folder";
  }
  const testing::TemporaryFolder folder;
  testing::put_file(folder / "file", "");
  const Ended o = run(0, "ok", "TMPDIR=" + folder / "file");
  testing::expect_refused(o, {"the folder for temporary files (TMPDIR) is '" + folder / "file" +
                              "', expected one that can be written: Not a directory"});
}

TEST(Session, RanksUnderALauncher) {
  NEEDS_MPI();
  for (const int ranks : {1, 3}) {
    const Ended o = run(ranks, "ok");
    EXPECT_EQ(o.code, 0) << o.output;
    for (int r = 0; r < ranks; ++r) {
      const std::string n = std::to_string(ranks);
      const std::string me = std::to_string(r);
      EXPECT_EQ(o.count("rank " + me + "/" + n + " local " + me + "/" + n + " node 0 of 1 0"), 1) << o.output;
    }
    o.has({", thread level multiple, communication stream worker", {"ended with 0", ranks}});
  }
}

TEST(Session, AnMpiThatSerializesLeavesCommunicationOnAWorker) {
  NEEDS_MPI();
  run(3, "ok", "LOCKSTEP_TEST_THREAD_LEVEL=serialized")
      .exits(0)
      .has({", thread level serialized, communication stream worker", {"ended with 0", 3}});
}

TEST(Session, AGpuHasAQueueForEachStreamUnlessTheUserSaysOtherwise) {
  EXPECT_EQ(run(0, "connections", "-u CUDA_DEVICE_MAX_CONNECTIONS").count("connections 32"), 1);
  EXPECT_EQ(run(0, "connections", "CUDA_DEVICE_MAX_CONNECTIONS=4").count("connections 4"), 1);
  for (const char* const set : {"", "4"}) {
    std::string seen;
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (*set != '\0') {
      ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", set, 1);
    }
    EXPECT_EQ(run_alone([&] {
                seen = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
                return 0;
              }),
              0);
    EXPECT_EQ(seen, *set != '\0' ? set : "32");
  }
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST(Session, AProgramOfOneProcessNamesWhatWasThrown) {
  const auto printed = [](const auto& thrown, int code) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run_alone([&]() -> int { throw thrown; }), code);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(printed(UsageError("no"), 2), "lockstep: error: no\n");
  EXPECT_EQ(printed(std::runtime_error("broken"), 3), "lockstep: error: broken\n");
  EXPECT_EQ(printed(std::bad_alloc(), 3), "lockstep: error: out of host memory (std::bad_alloc)\n");
}

TEST(Session, TheBodysValueIsTheExitCode) {
  EXPECT_EQ(run(0, "return5").code, 5);
}

TEST(Session, TheHostProgramMayOwnMpi) {
  NEEDS_MPI();
  const Ended o = run(2, "ok host_owns_mpi");
  EXPECT_EQ(o.code, 0) << o.output;
  // At this thread level no two threads may call MPI at once, and the host program may call MPI at any time. So no
  // thread of lockstep may call MPI.
  o.has({", thread level serialized, communication stream inline", "host still counts 2"});
}

TEST(Session, OneFailingRankEndsTheJob) {
  NEEDS_MPI();
  struct Case {
    const char* mode;
    int code;
    const char* text;
  };
  for (const Case& c :
       {Case{"throw", 3, "broken in two lines"}, Case{"throw_data", 2, "bad file"},
        Case{"throw_in_hook", 2, "gradient hook sparse, bucket 1: no table for it"},
        Case{"throw_memory", 3, "out of host memory (std::bad_alloc)"}, Case{"throw_std", 3, "of the standard library"},
        Case{"throw_int", 3, "an exception that is not a std::exception"}, Case{"abort", 76, "gave up"}}) {
    const Ended o = run(3, c.mode);
    EXPECT_EQ(o.code, c.code) << o.output;
    EXPECT_LT(o.seconds, 10) << c.mode;
    o.has({"lockstep: error:", std::string("lockstep: error: rank 1: ") + c.text, {"ended with", 0}});
  }
}

TEST(Session, ARankThatDiesEndsTheJob) {
  NEEDS_MPI();
  for (const char* path : {"shared", "mpi"}) {
    const Ended o = run(2, "die", std::string("LOCKSTEP_HOST_ALL_REDUCE=") + path);
    EXPECT_NE(o.code, 0) << o.output;
    EXPECT_LT(o.seconds, 10) << path;
    EXPECT_EQ(o.count("ended with"), 0) << o.output;
  }
}

TEST(Session, TheEnvironmentChoosesWhatAddsOnTheHost) {
  NEEDS_MPI();
  for (const char* path : {"", "auto", "mpi", "shared"}) {
    const Ended o = run(2, "ok", std::string("LOCKSTEP_HOST_ALL_REDUCE=") + path);
    o.exits(0).has({{"cannot share memory", 0}});
  }
  run(2, "ok", "LOCKSTEP_HOST_ALL_REDUCE=no")
      .exits(2)
      .has({"lockstep: error: LOCKSTEP_HOST_ALL_REDUCE is 'no', expected auto, mpi, shared or hierarchical"});
}

/// Returns the text of operation `number` of a communicator from the recorded operations of a rank, or "none".
std::string recorded(const Json& record, int rank, const std::string& communicator, std::int64_t number) {
  const std::string source = "record";
  for (const Json& each : record.get<Json::Array>("ranks", source)) {
    if (each.get<int>("rank", source) != rank) {
      continue;
    }
    const Json& log = each.member("communicators", source).member(communicator, source);
    for (const Json& operation : log.get<Json::Array>("last", source)) {
      if (operation.get<std::int64_t>("number", source) == number) {
        EXPECT_GE(operation.get<double>("seconds_ago", source), 0);
        EXPECT_LT(operation.get<double>("seconds_ago", source), 600);
        return operation.get<std::string>("operation", source);
      }
    }
  }
  return "none";
}

TEST(Session, RanksThatCallDifferentOperationsAreTold) {
  NEEDS_MPI();
  const testing::TemporaryFolder folder;
  const std::string file = folder / "operations.json";
  const Ended o = run(2, "differ " + file, "LOCKSTEP_TEST_WATCHDOG=600");
  EXPECT_EQ(o.code, 3) << o.output;
  EXPECT_LT(o.seconds, 30);
  o.has({"lockstep: error:",
         "lockstep: error: ranks call different operations: operation 6 of grad is broadcast of 8 f32 from "
         "rank 0 on rank 0 and broadcast of 8 f32 from rank 1 on rank 1"});
  const Json record = read_json(file);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(recorded(record, rank, "grad", 5), "all_reduce of 8 f32");
    EXPECT_EQ(recorded(record, rank, "grad", 6), "broadcast of 8 f32 from rank " + std::to_string(rank));
    EXPECT_EQ(recorded(record, rank, "grad", 7), "none");
  }
}

TEST(Session, TheRankThatHasCalledFewerOperationsIsNamed) {
  NEEDS_MPI();
  const testing::TemporaryFolder folder;
  const std::string file = folder / "operations.json";
  const Ended o = run(3, "linger " + file, "LOCKSTEP_TEST_WATCHDOG=2");
  EXPECT_EQ(o.code, 76) << o.output;
  EXPECT_LT(o.seconds, 40);
  o.has(
      {"rank 1 has not called operation 2 of inline_ops, all_reduce of 3 f32, as rank ", " has not called operation "});
  const Json record = read_json(file);
  EXPECT_EQ(recorded(record, 0, "inline_ops", 2), "all_reduce of 3 f32");
  EXPECT_EQ(recorded(record, 1, "inline_ops", 2), "none");
  EXPECT_EQ(recorded(record, 1, "inline_ops", 1), "barrier");
}

/// A stall must be reported once, after a quarter of the watchdog's time. A run that makes progress must report
/// nothing.
TEST(Session, AStallIsReportedRankByRank) {
  NEEDS_MPI();
  const std::string stopped = "1 of 3 buckets enqueued, conv2.weight, for ";
  run(4, "stall 0", "LOCKSTEP_TEST_WATCHDOG=6").exits(0).has({{" step ", 0}});
  const Ended twice = run(4, "stall 2", "LOCKSTEP_TEST_WATCHDOG=6");
  EXPECT_EQ(twice.code, 0) << twice.output;
  EXPECT_GE(twice.count("lockstep: no progress for 2 s; the ranks of host "), 2) << twice.output;
  for (const char* step : {"3", "6"}) {
    EXPECT_EQ(twice.count(std::string("lockstep:   rank 1: computing step ") + step + ", " + stopped), 1)
        << twice.output;
    for (const char* rank : {"0", "2", "3"}) {
      EXPECT_EQ(twice.count(std::string("lockstep:   rank ") + rank + ": waiting for the gradients of step " + step +
                            ", for "),
                1)
          << twice.output;
    }
  }
  twice.has({{", process is stopped", 2}, {"lockstep: error:", 0}});
  run(2, "stall ever", "LOCKSTEP_TEST_WATCHDOG=5")
      .exits(76)
      .has({"lockstep:   rank 1: computing step 3, " + stopped,
            "lockstep: error: rank 0: no progress for 5 s while waiting for the gradients of step 3",
            "the process is stopped; it was computing step 3, 1 of 3 buckets enqueued, conv2.weight"});
}

TEST(Session, ARankThatFailsLeavesTheRecordOfAll) {
  NEEDS_MPI();
  const testing::TemporaryFolder folder;
  const std::string file = folder / "operations.json";
  run(2, "fail_with_record " + file, "LOCKSTEP_TEST_WATCHDOG=600")
      .exits(3)
      .has({"lockstep: error: rank 1: broken", "lockstep: error:"});
  const Json record = read_json(file);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(recorded(record, rank, "grad", 3), "all_reduce of 1000 f32");
    EXPECT_EQ(recorded(record, rank, "inline_ops", 2), "barrier");
  }
  EXPECT_EQ(run(2, "fail_with_record " + (folder / "other.json")).code, 3);
  EXPECT_FALSE(std::filesystem::exists(folder / "other.json")) << "nothing is noted without a watchdog";
}

TEST(Session, FailingAlone) {
  const Ended o = run(0, "throw");
  o.exits(3).has({"lockstep: error:", "lockstep: error: broken in two lines"});
}

TEST(Session, AgreePrintsTheLowestRanksTextOnce) {
  NEEDS_MPI();
  for (const int ranks : {3, 4}) {
    EXPECT_EQ(run(ranks, "agree").code, 2);
    run(ranks, "agree", kWaitForAll)
        .has({"lockstep: error:", "lockstep: error: rank 2: no such file", {"ended with 2", ranks}});
  }
  EXPECT_EQ(run(2, "agree").code, 0);  // no rank fails
}

TEST(Session, AgreeLeavesTheRankOutWhenAllSayTheSame) {
  NEEDS_MPI();
  run(3, "agree_all").exits(2).has({"lockstep: error:", "lockstep: error: --epochs: expected a number"});
  run(3, "agree_different").exits(3).has({"lockstep: error:", "lockstep: error: rank 0: from 0"});
}

TEST(Session, AnErrorOfEveryRankIsPrintedOnce) {
  run(0, "throw_together").exits(2).has({"lockstep: error: no room for the checkpoint", "ended with 2"});
  NEEDS_MPI();
  EXPECT_EQ(run(3, "throw_together").code, 2);
  const Ended o = run(3, "throw_together", kWaitForAll);
  o.has({"lockstep: error:", "lockstep: error: no room for the checkpoint", {"ended with 2", 3}});
}

TEST(Session, AgreeAlone) {
  run(0, "agree_all").exits(2).has({"lockstep: error: --epochs: expected a number"});
}

TEST(Session, AgreeWithinAgreeAndWhileUnwinding) {
  NEEDS_MPI();
  run(3, "agree_nested", kWaitForAll).has({"lockstep: error:", "lockstep: error: rank 1: inner", {"ended with 2", 3}});
  run(3, "agree_then_leave", kWaitForAll).has({"lockstep: error: rank 0: first", {"ended with 2", 3}});
}

TEST(Session, DevicesOfRanks) {
  NEEDS_MPI();
  run(2, "device cpu:2").exits(0).has({{"on cpu", 2}});
  EXPECT_EQ(run(2, "device cpu:3").code, 2);
  run(2, "device cpu:3", kWaitForAll)
      .has({"lockstep: error: devices 'cpu:3': 2 ranks on this node, expected 3", "lockstep: error:"});
  EXPECT_EQ(run(2, "device 1,,3").code, 2);
  testing::run_as_ranks("env " + kWaitForAll + " " + kMpirun,
                        {"exec " + kProgram + " device cpu", "exec " + kProgram + " device auto"})
      .has({"lockstep: error:", "devices auto", {"ended with 2", 2}});
}

TEST(Session, NoGpuAndATakenGpu) {
  NEEDS_MPI();
  run(2, "taken", kWaitForAll)
      .has({"lockstep: error: devices 'auto': this job was given GPUs (SLURM_JOB_GPUS=0,1), and none can be "
            "used: the driver is away",
            {"does not train on the CPU: 2", 2},
            {"on cpu: devices 'auto': the CPU, because the driver is away", 2},
            "lockstep: error: devices '0,': the driver is away; expected auto or cpu",
            "rank 0: 2",
            "rank 1: 2",
            "lockstep: error: rank 1: cuda:1 is taken",
            {"ended with 2", 2}});
}

TEST(Session, RanksShareAGpuOnlyWhereTheEnvironmentAllowsIt) {
  const Ended alone = run(0, "share", "-u NCCL_HOSTID LOCKSTEP_ALLOW_SHARED_GPU=1");
  // A single rank does not share its GPU, so NCCL_HOSTID is not set.
  EXPECT_EQ(alone.count("rank 0 on cuda:0, NCCL's host (none)"), 1) << alone.output;
  run(0, "share", "LOCKSTEP_ALLOW_SHARED_GPU=yes")
      .exits(2)
      .has({"lockstep: error: LOCKSTEP_ALLOW_SHARED_GPU is 'yes', expected 0 or 1"});
  NEEDS_MPI();
  run(2, "share", "-u NCCL_HOSTID LOCKSTEP_ALLOW_SHARED_GPU=1")
      .exits(0)
      .has({"rank 0 on cuda:0, NCCL's host lockstep-rank-0", "rank 1 on cuda:0, NCCL's host lockstep-rank-1"});
  run(2, "share", "LOCKSTEP_ALLOW_SHARED_GPU=0 " + kWaitForAll)
      .has({"lockstep: error: devices 'gpu': 2 ranks on this node for 1 GPU", {"ended with 2", 2}});
}

TEST(Session, UsableGpusAreClaimedForAllRanksOfTheNode) {
  NEEDS_MPI();
  const lockstep::testing::TemporaryFolder folder;
  run(2, "usable " + folder / "claims", kWaitForAll)
      .has({"rank 0 on cuda:1, holds 2 claims",
            "rank 1 on cuda:2, holds 0 claims",
            "lockstep: error:",
            "error: rank 0: usable GPUs: 1 found, expected 2; GPU 0 (Made-up, GPU-0, ): busy; GPU 1 (Made-up, "
            "GPU-1, ): claimed by pid ",
            {"ended with 2", 2}});
  const Ended none = run(2, "device usable:2", "CUDA_VISIBLE_DEVICES= " + kWaitForAll);
  EXPECT_EQ(none.count("lockstep: error: devices 'usable:2': this process can use no GPU"), 1) << none.output;
}

TEST(Session, ALauncherThatSaysMoreRanksThanThereAre) {
  for (const char* environment : {
         "PMI_SIZE=4 PMI_RANK=0", "SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=0",
             "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0",
#if !LOCKSTEP_TEST_GLOO  // with gloo these ranks meet without MPI
             "RANK=0 LOCAL_RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 MASTER_ADDR=a MASTER_PORT=1"
#endif
       }) {
    SCOPED_TRACE(environment);
    run(0, "ok", environment).exits(2).has({"lockstep: error: launch: ", ", but MPI reports 1 rank ("});
  }
  EXPECT_EQ(run(0, "ok", "SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=0").count("srun --mpi=pmix"), 1);
  // Rank 3 must print the error, too, because it cannot know whether a rank 0 exists.
  EXPECT_EQ(run(0, "ok", "PMI_SIZE=4 PMI_RANK=3").count("lockstep: error:"), 1);
  // RANK without other variables belongs to no launcher.
  run(0, "ok", "RANK=3").exits(2).has({"lockstep: error: launch: RANK=3 without "});
  // In a Slurm allocation without a step, SLURM_NTASKS does not contradict a single process.
  EXPECT_EQ(run(0, "ok", "-u SLURM_STEP_ID SLURM_NTASKS=4").code, 0);
  // A step with a single task needs no other process. Its variables stay set.
  EXPECT_EQ(run(0, "ok", "SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1 SLURM_PROCID=0").code, 0);
  EXPECT_EQ(run(0, "ok", "PMI_SIZE=1 PMI_RANK=0").code, 0);
}

TEST(Session, AContradictionOnOneRankEndsAll) {
  NEEDS_MPI();
  for (const char* environment : {"WORLD_SIZE=3", "WORLD_SIZE=2 RANK=0"}) {
    EXPECT_EQ(run(2, "ok", environment).code, 2) << environment;
  }
  const Ended o = run(2, "ok", kWaitForAll + " WORLD_SIZE=2 RANK=0");  // rank 1 gets RANK=0
  EXPECT_LT(o.seconds, 10);
  EXPECT_EQ(o.count("lockstep: error:"), 1) << o.output;
  EXPECT_EQ(o.count("lockstep: error: rank 1: launch: OMPI_COMM_WORLD_RANK=1") +
                o.count("lockstep: error: rank 1: launch: PMI_RANK=1"),
            1)
      << o.output;
}

}  // namespace
}  // namespace lockstep::comm
