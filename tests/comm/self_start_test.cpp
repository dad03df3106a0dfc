#include <lockstep/comm/launch/self_start.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/comm/launch/detail/banner_filter.hpp>
#include <lockstep/comm/launch/detail/process_start.hpp>
#include <lockstep/comm/launch/detail/run_launcher.hpp>
#include <lockstep/comm/launch/detail/standard_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/child.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::comm {
namespace {

using testing::error_of;
using testing::expect_holds;

std::string joined(const std::optional<SelfStart>& start) {
  std::string text;
  if (start) {
    for (const std::string& word : start->arguments) {
      text += (text.empty() ? "" : " ") + word;
    }
  }
  return text;
}

/// kSite: a machine with 4 GPUs and 8 cores. kNoGpu: without GPUs.
const StartSite kSite{.count_gpus = [] { return 4; }, .cores = 8};
const StartSite kNoGpu{.count_gpus = [] { return 0; }, .cores = 8};

RanksRequest ask(const char* devices) {
  return {.devices = DeviceRequest::parse(devices)};
}

TEST(SelfStart, RanksOfEveryFormOfDevices) {
  constexpr int kRefused = -1;
  struct Case {
    const char* devices;
    int ranks;  ///< 0: nothing is started
    int without_gpus;
  };
  for (const Case& c : {Case{"auto", 4, 0}, Case{"gpu", 4, 0}, Case{"-1", 4, 0}, Case{"cpu", 0, 0}, Case{"cpu:1", 0, 0},
                        Case{"cpu:4", 4, 4}, Case{"3", 3, kRefused}, Case{"1", 0, 0}, Case{"1,3", 2, kRefused},
                        Case{"1,", 0, 0}, Case{"GPU-1234", 0, 0}, Case{"GPU-12,GPU-34", 2, kRefused},
                        Case{"usable:2", 2, kRefused}, Case{"usable", 0, 0}}) {
    for (const auto& [site, ranks] : {std::pair(kSite, c.ranks), std::pair(kNoGpu, c.without_gpus)}) {
      if (ranks == kRefused) {
        EXPECT_THROW((void)plan_self_start(ask(c.devices), {}, site), UsageError) << c.devices;
        continue;
      }
      const std::string expected = ranks == 0 ? "" : concat("mpirun -np ", ranks, " --bind-to none");
      EXPECT_EQ(joined(plan_self_start(ask(c.devices), {}, site)), expected) << c.devices;
    }
  }
  const StartSite one{.count_gpus = [] { return 1; }};
  EXPECT_FALSE(plan_self_start(ask("auto"), {}, one));
  const StartSite never{.count_gpus = []() -> int { throw std::runtime_error("asked"); }, .cores = 8};
  EXPECT_TRUE(plan_self_start(ask("cpu:3"), {}, never)) << "the number of GPUs does not matter";
}

TEST(SelfStart, GpusThatAreNotThereAreRefusedBeforeRanksAreStarted) {
  testing::expect_error<UsageError>([] { (void)plan_self_start(ask("3"), {}, kNoGpu); },
                                    {"'3'", "3 GPUs", "has none", "cpu:3"});
  // With a hostfile or under Slurm, other nodes may have GPUs. So a node without GPUs must not refuse the request.
  RanksRequest elsewhere = ask("3");
  elsewhere.hostfile = "hosts";
  EXPECT_TRUE(plan_self_start(elsewhere, {}, kNoGpu));
  EXPECT_TRUE(plan_self_start(ask("3"), {{"SLURM_JOB_ID", "7"}}, kNoGpu));
}

TEST(SelfStart, NotWhereALauncherIsAlready) {
  EXPECT_FALSE(plan_self_start(ask("cpu:4"), {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, kSite));
  EXPECT_FALSE(plan_self_start(
      ask("cpu:4"), {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
      kSite));
  RanksRequest alone = ask("cpu:4");
  alone.launcher = Launcher::none;
  EXPECT_FALSE(plan_self_start(alone, {}, kSite));
  // If mpirun sets only variables that lockstep does not know, the started program would start mpirun again and again.
  // So it must throw.
  EXPECT_THROW((void)plan_self_start(ask("cpu:4"), {{kStartedWith, "mpirun -np 4"}}, kSite), UsageError);
}

TEST(SelfStart, WhatIsAllowedIsSaid) {
  StartSite small = kSite;
  small.cores = 2;
  small.root = true;
  const auto start = plan_self_start(ask("cpu:4"), {}, small);
  EXPECT_EQ(joined(start), "mpirun --allow-run-as-root -np 4 --oversubscribe --bind-to none");
  EXPECT_EQ(start->variables.at("OMPI_MCA_plm"), "isolated");
  EXPECT_EQ(start->note, "--allow-run-as-root since this process is root's; --oversubscribe for 4 ranks on 2 cores");
  const Environment set{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                        {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                        {"OMPI_MCA_plm", "isolated"},
                        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                        {"OMPI_MCA_hwloc_base_binding_policy", "none"}};
  const auto quiet = plan_self_start(ask("cpu:4"), set, small);
  EXPECT_EQ(joined(quiet), "mpirun -np 4") << "what the environment says is not said again";
  EXPECT_TRUE(quiet->variables.empty());
  EXPECT_EQ(quiet->note, "");
}

TEST(SelfStart, ANumberThatCannotBeMeantIsRefused) {
  StartSite small = kSite;
  small.cores = 2;
  EXPECT_NE(joined(plan_self_start(ask("cpu:128"), {}, small)).find("-np 128 "), std::string::npos);
  testing::expect_error<UsageError>([&] { (void)plan_self_start(ask("cpu:129"), {}, small); },
                                    {"'cpu:129'", "at most 64", "(2)", "mpirun"});
  RanksRequest elsewhere = ask("cpu:129");
  elsewhere.hostfile = "hosts";
  EXPECT_TRUE(plan_self_start(elsewhere, {}, small)) << "the nodes may have more cores than this one";
}

TEST(SelfStart, RanksThatMeetWithoutMpiNeedAPlace) {
  RanksRequest request = ask("cpu:2");
  request.backend = Backend::gloo;
  for (const Environment& place : {Environment{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
                                   Environment{{"MASTER_ADDR", "a"}, {"LOCKSTEP_PORT", "1"}}}) {
    EXPECT_EQ(joined(plan_self_start(request, place, kSite)), "mpirun -np 2 --bind-to none");
  }
  for (const Environment& none : {Environment{}, Environment{{"MASTER_ADDR", "a"}}, Environment{{"MASTER_PORT", "1"}},
                                  Environment{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65536"}}}) {
    testing::expect_error<UsageError>([&] { (void)plan_self_start(request, none, kSite); },
                                      {"--backend is gloo", "'cpu:2'", "MASTER_"});
  }
}

TEST(SelfStart, LightningsRanksOfANodeAreThoseOfDevices) {
  const Environment second{
      {"NODE_RANK", "1"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  const auto ranks = [&](const char* devices, const Environment& environment) {
    return missing_local_size(DeviceRequest::parse(devices), environment).value_or(0);
  };
  for (const char* devices : {"cpu:2", "2", "1,3", "usable:2"}) {
    EXPECT_EQ(ranks(devices, second), 2) << devices;
  }
  for (const char* devices : {"auto", "gpu", "cpu", "usable"}) {
    EXPECT_EQ(ranks(devices, second), 0) << devices;
  }
  Environment known = second;
  known["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_EQ(detect_launch(known).rank, 3);
  EXPECT_EQ(ranks("cpu:2", known), 0);
  known["RANK"] = "3";
  EXPECT_EQ(ranks("cpu:2", known), 0);
  EXPECT_EQ(ranks("cpu:2", {}), 0);
}

TEST(SelfStart, SeveralNodes) {
  RanksRequest request = ask("cpu:2");
  request.nodes = 3;
  EXPECT_THROW((void)plan_self_start(request, {}, kSite), UsageError);
  request.hostfile = "hosts";
  EXPECT_EQ(joined(plan_self_start(request, {{"OMP_NUM_THREADS", "2"}, {"HOME", "/"}, {"UCX_TLS", "tcp"}}, kSite)),
            "mpirun --hostfile hosts -np 6 --map-by ppr:2:node -x LOCKSTEP_STARTED_WITH -x OMP_NUM_THREADS -x UCX_TLS "
            "--bind-to none");
  EXPECT_EQ(joined(plan_self_start(request,
                                   {{"LOCKSTEP_MEET_SECONDS", "9"},
                                    {"LOCKSTEP_PORT", "4711"},
                                    {"LOCKSTEP_TEST", "1"},
                                    {"MASTER_ADDR", "a"},
                                    {"MASTER_PORT", "4710"}},
                                   kSite)),
            "mpirun --hostfile hosts -np 6 --map-by ppr:2:node -x LOCKSTEP_STARTED_WITH -x LOCKSTEP_MEET_SECONDS -x "
            "LOCKSTEP_PORT -x MASTER_ADDR -x MASTER_PORT --bind-to none")
      << "where ranks meet without MPI";
  RanksRequest too_many = ask("cpu:2147483647");
  too_many.hostfile = "hosts";
  too_many.nodes = 2;
  EXPECT_THROW((void)plan_self_start(too_many, {}, kSite), UsageError);
  request.nodes = 0;
  EXPECT_EQ(joined(plan_self_start(request, {}, kSite)),
            "mpirun --hostfile hosts --map-by ppr:2:node -x LOCKSTEP_STARTED_WITH --bind-to none");
  RanksRequest one_each = ask("cpu");
  one_each.nodes = 2;
  EXPECT_EQ(joined(plan_self_start(one_each, {{"PBS_NODEFILE", "f"}}, kSite)),
            "mpirun -np 2 --map-by ppr:1:node -x LOCKSTEP_STARTED_WITH --bind-to none");
  request.nodes = -1;
  EXPECT_THROW((void)plan_self_start(request, {}, kSite), UsageError);
}

TEST(SelfStart, InAnAllocation) {
  const Environment batch{{"SLURM_JOB_ID", "7"},
                          {"SLURM_NNODES", "2"},
                          {"SLURM_CPUS_ON_NODE", "16"},
                          {"SLURM_CPUS_PER_TASK", "4"},
                          {"SLURM_GPUS_ON_NODE", "3"}};
  EXPECT_EQ(joined(plan_self_start(ask("auto"), batch, kNoGpu)),
            "srun --ntasks-per-node=3 --nodes=2 --ntasks=6 --mpi=pmix --cpus-per-task=4 --gpu-bind=none --wait=60");
  EXPECT_EQ(joined(plan_self_start(ask("1"), batch, kNoGpu)),
            "srun --ntasks-per-node=1 --nodes=2 --ntasks=2 --mpi=pmix --cpus-per-task=4 --gpu-bind=none --wait=60")
      << "one rank for the GPU of each node";
  EXPECT_NE(joined(plan_self_start(ask("cpu:8"), batch, kNoGpu)).find(" --cpus-per-task=2 "), std::string::npos)
      << "8 ranks share the 16 processors that the job has of a node";
  EXPECT_EQ(plan_self_start(ask("1"), batch, kNoGpu)->variables, (Environment{{"SLURM_PMIX_FENCE", "ring"}}));
  Environment chosen = batch;
  chosen["SLURM_PMIX_FENCE"] = "tree";
  EXPECT_TRUE(plan_self_start(ask("1"), chosen, kNoGpu)->variables.empty());
  RanksRequest here = ask("cpu:20");
  here.nodes = 1;
  const auto start =
      plan_self_start(here, {{"SLURM_JOB_ID", "7"}, {"SLURM_CPUS_ON_NODE", "16"}, {"SLURM_MPI_TYPE", "pmix"}}, kNoGpu);
  EXPECT_EQ(joined(start), "srun --ntasks-per-node=20 --nodes=1 --ntasks=20 --cpu-bind=none --overcommit --wait=60");
  EXPECT_TRUE(start->variables.empty()) << "one node";
  EXPECT_EQ(start->note, "--overcommit for 20 ranks on 16 processors of a node");
  EXPECT_FALSE(plan_self_start(ask("cpu"), batch, kNoGpu));
  EXPECT_FALSE(plan_self_start(ask("auto"), {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}}, kNoGpu));
  expect_holds(joined(plan_self_start(ask("auto"), {{"SLURM_JOB_ID", "7"}, {"SLURM_GPUS_PER_NODE", "a100:2"}}, kNoGpu)),
               "--ntasks=2 ");

  RanksRequest request = ask("cpu:2");
  request.launcher = Launcher::mpirun;
  EXPECT_EQ(joined(plan_self_start(request, batch, kNoGpu)),
            "mpirun --map-by ppr:2:node -x LOCKSTEP_STARTED_WITH --bind-to none");
  request.launcher = Launcher::srun;
  EXPECT_THROW((void)plan_self_start(request, {}, kNoGpu), UsageError);
  request.hostfile = "hosts";
  EXPECT_THROW((void)plan_self_start(request, batch, kNoGpu), UsageError);
}

TEST(SelfStart, RestartsThatCannotBe) {
  const auto refused = [](const char* devices, RestartPolicy policy, int nodes = 0) {
    return error_of<UsageError>([&] {
      (void)plan_self_start({.devices = DeviceRequest::parse(devices), .nodes = nodes, .restart = policy}, {},
                            {.cores = 8});
    });
  };
  expect_holds(refused("cpu:4", {.most = -1}), "--max-restarts is -1");
  expect_holds(refused("cpu:4", {.most = 1, .min_ranks = -2}), "--min-ranks is -2");
  expect_holds(refused("cpu:4", {.min_ranks = 2}), "--max-restarts above 0");
  expect_holds(refused("cpu:4", {.most = 1, .min_ranks = 5}), "at most the 4 ranks");
  expect_holds(refused("1,2", {.most = 1, .min_ranks = 1}), "'1,2', expected cpu:N or usable:N");
  expect_holds(refused("cpu:4", {.most = 1, .min_ranks = 2}, 2), "on one node");
}

/// Runs a shell script with self_start(), in a child process. Returns its output, followed by its exit code.
std::string supervised(const std::string& script, const std::string& folder, const RestartPolicy& policy,
                       const char* devices = "cpu", double watchdog_s = 300) {
  const std::string printed = folder + "/printed";
  const pid_t runner = testing::start_child([&] {
    const int file = ::open(printed.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::unsetenv(kAttempt);
    std::string words[] = {"sh", "-c", script, "sh", folder};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), words[4].data(), nullptr};
    const auto request = [&] {
      return RanksRequest{.devices = DeviceRequest::parse(devices), .restart = policy, .watchdog_s = watchdog_s};
    };
    return self_start(5, argv, request).value_or(99);
  });
  const int code = testing::end_of(runner);
  return concat(read_file(printed, 10000), "code ", code, '\n');
}

TEST(SelfStart, AJobThatBreaksIsStartedAgain) {
  const testing::TemporaryFolder folder;
  // The script prints and records the number of each start. Starts 0 and 1 fail, start 2 succeeds.
  const std::string count =
      "set -- $1 $LOCKSTEP_ATTEMPT; echo $3 >> $1/starts; echo start $3; [ -e $1/job ] || echo $2 > $1/job; "
      "[ $(cat $1/job) = $2 ] || echo another job; ";
  EXPECT_EQ(supervised(count + "case $3 in 0) exit 3;; 1) kill -9 $$;; esac", folder.path(), {.most = 3}),
            "start 0\nlockstep: the job ended with code 3: restart 1 of 3\n"
            "start 1\nlockstep: the job ended with code 137 (signal 9): restart 2 of 3\nstart 2\ncode 0\n");
  std::filesystem::remove(folder / "job");
  EXPECT_EQ(supervised(count + "exit 76", folder.path(), {.most = 1}),
            "start 0\nlockstep: the job ended with code 76: restart 1 of 1\nstart 1\ncode 76\n");
  for (const int code : {0, 2, 75}) {  // success, invalid input, stopped on request
    std::filesystem::remove(folder / "job");
    EXPECT_EQ(supervised(concat(count, "exit ", code), folder.path(), {.most = 3}),
              concat("start 0\ncode ", code, '\n'));
  }
  EXPECT_EQ(supervised("kill -9 $$", folder.path(), {.most = 1}),
            "lockstep: the job ended with code 137 (signal 9): restart 1 of 1\n"
            "lockstep: error: the job ended with code 137 (signal 9); no rank and no launcher said why\ncode 137\n");
  EXPECT_EQ(supervised("echo why >&2; kill -9 $$", folder.path(), {.most = 1}),
            "why\nlockstep: the job ended with code 137 (signal 9): restart 1 of 1\nwhy\ncode 137\n");
  EXPECT_EQ(supervised("exit 3", folder.path(), {}), "code 99\n") << "one rank without restarts is this process";
}

#if LOCKSTEP_HAS_MPI
TEST(SelfStart, ALauncherThatHangsIsEndedAndStartedAgain) {
  const testing::TemporaryFolder folder;
  testing::put_file(folder / "mpirun", "#!/bin/sh\ncd ${0%/*}\n[ -e once ] && exit 0\n: > once\nexec sleep 100\n");
  ASSERT_EQ(::chmod((folder / "mpirun").c_str(), 0700), 0);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder.path() + ":" + path).c_str(), 1);
  const std::string printed = supervised("exit 9", folder.path(), {.most = 1}, "cpu:2", 1);
  ::setenv("PATH", path.c_str(), 1);
  expect_holds(printed, ") has had no living rank for 5 s: it is ended\n");
  expect_holds(printed, "lockstep: the job ended with code 76: restart 1 of 1\ncode 0\n");
}

TEST(SelfStart, ALauncherThatSaysNothingIsSpokenFor) {
  const testing::TemporaryFolder folder;
  testing::put_file(folder / "mpirun", "#!/bin/sh\nexit 1\n");
  ASSERT_EQ(::chmod((folder / "mpirun").c_str(), 0700), 0);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder.path() + ":" + path).c_str(), 1);
  EXPECT_EQ(supervised("", folder.path(), {}, "cpu:2"),
            "lockstep: error: the job ended with code 1; no rank and no launcher said why\ncode 1\n");
  ::setenv("PATH", path.c_str(), 1);
}

TEST(SelfStart, FewerRanksAfterAStartThatKeptNothing) {
  const testing::TemporaryFolder folder;
  write_file(folder / "mpirun",
             "#!/bin/sh\n"
             "while [ $1 != -np ]; do shift; done\n"
             "set -- $2 $LOCKSTEP_ATTEMPT\n"
             "echo $1 ranks, start $3, $4\n"
             "[ $3 != 1 ] || echo > $(dirname $0)/kept\n"
             "exit 3\n");
  ASSERT_EQ(::chmod((folder / "mpirun").c_str(), 0700), 0);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder.path() + ":" + path).c_str(), 1);
  const RestartPolicy policy{
      .most = 4, .min_ranks = 2, .progress = [&] { return file_exists(folder / "kept") ? "kept" : "nothing"; }};
  EXPECT_EQ(supervised("", folder.path(), policy, "cpu:4"),
            "4 ranks, start 0, -\nlockstep: the job ended with code 3: restart 1 of 4 on cpu:3\n"
            "3 ranks, start 1, cpu:3\nlockstep: the job ended with code 3: restart 2 of 4 on cpu:3\n"
            "3 ranks, start 2, cpu:3\nlockstep: the job ended with code 3: restart 3 of 4 on cpu:2\n"
            "2 ranks, start 3, cpu:2\nlockstep: the job ended with code 3: restart 4 of 4 on cpu:2\n"
            "2 ranks, start 4, cpu:2\ncode 3\n");
  // This job may have 8, 4 or 2 ranks.
  const RestartPolicy halves{.most = 3,
                             .min_ranks = 2,
                             .fits = [](int ranks) { return 8 % ranks == 0; },
                             .progress = [] { return "nothing"; }};
  EXPECT_EQ(supervised("", folder.path(), halves, "cpu:8"),
            "8 ranks, start 0, -\nlockstep: the job ended with code 3: restart 1 of 3 on cpu:4\n"
            "4 ranks, start 1, cpu:4\nlockstep: the job ended with code 3: restart 2 of 3 on cpu:2\n"
            "2 ranks, start 2, cpu:2\nlockstep: the job ended with code 3: restart 3 of 3 on cpu:2\n"
            "2 ranks, start 3, cpu:2\ncode 3\n");
  ::setenv("PATH", path.c_str(), 1);
}
#endif

TEST(SelfStart, Launchers) {
  EXPECT_EQ(parse_launcher("auto"), Launcher::automatic);
  EXPECT_EQ(parse_launcher("mpirun"), Launcher::mpirun);
  EXPECT_EQ(parse_launcher("srun"), Launcher::srun);
  EXPECT_EQ(parse_launcher("none"), Launcher::none);
  EXPECT_THROW((void)parse_launcher("mpiexec"), UsageError);
}

int shell(const std::string& script, const std::string& value = "") {
  return detail::run_launcher({"sh", "-c", script}, {{std::string(kStartedWith), value}}).code;
}

TEST(RunLauncher, ExitCodesComeThrough) {
  EXPECT_EQ(shell("exit 0"), 0);
  EXPECT_EQ(shell("exit 75"), 75);
  EXPECT_EQ(shell("kill -9 $$"), 128 + SIGKILL);
  EXPECT_EQ(shell("kill -USR1 $$"), 128 + SIGUSR1);
  EXPECT_EQ(shell("test \"$LOCKSTEP_STARTED_WITH\" = 'mpirun -np 4'", "mpirun -np 4"), 0);
  EXPECT_EQ(std::getenv(kStartedWith), nullptr);
  EXPECT_EQ(detail::run_launcher({"no-such-program"}, {}).code, 127);
}

/// Runs run_launcher() in a child process that ignores the signals `ignored` and no others. Sends signals[i] to the
/// child after `script` has created the file ${1}i and, for i > 0, after a further `pause`. Returns the exit code.
int with_signals(const std::string& script, const std::vector<int>& signals, std::chrono::milliseconds pause = {},
                 const std::vector<int>& ignored = {}, const detail::LauncherLimit& limit = {}) {
  testing::TemporaryFolder folder;
  const std::string ready = folder / "ready";
  const pid_t runner = testing::start_child([&] {
    for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD}) {
      ::signal(number, std::find(ignored.begin(), ignored.end(), number) == ignored.end() ? SIG_DFL : SIG_IGN);
    }
    return detail::run_launcher({"sh", "-c", script, "sh", ready}, {}, limit).code;
  });
  for (std::size_t i = 0; i < signals.size(); ++i) {
    const std::string name = ready + std::to_string(i);
    while (::access(name.c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (i > 0) {
      std::this_thread::sleep_for(pause);
    }
    ::kill(runner, signals[i]);
  }
  return testing::end_of(runner);
}

TEST(RunLauncher, SignalsArePassedOn) {
  const std::string wait = "; : > ${1}0; while :; do sleep 0.02; done";
  // A signal that requests a stop must reach the program as SIGUSR1.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    EXPECT_EQ(with_signals("trap 'exit 75' USR1" + wait, {number}), 75) << number;
  }
  EXPECT_EQ(with_signals("trap 'exit 7' USR2" + wait, {SIGUSR2}), 7);
  // A program without a handler for SIGUSR1 must end by the signal that was sent.
  EXPECT_EQ(with_signals("true" + wait, {SIGTERM}), 128 + SIGTERM);
  EXPECT_EQ(with_signals("true" + wait, {SIGUSR1}), 128 + SIGUSR1);
  // A second signal must end the launcher. But two signals at nearly the same time count as one request, as when a
  // terminal closes.
  EXPECT_EQ(with_signals("trap ': > ${1}1' USR1; trap 'exit 9' TERM" + wait, {SIGTERM, SIGTERM},
                         std::chrono::milliseconds(1100)),
            9);
  EXPECT_EQ(with_signals("trap ': > ${1}1; sleep 0.2; exit 75' USR1" + wait, {SIGHUP, SIGHUP}), 75);
}

constexpr detail::LauncherLimit kSoon{.seconds = 1, .children = true};

TEST(RunLauncher, OneWithoutLivingRanksIsEnded) {
  const auto run = [](const char* script) { return detail::run_launcher({"sh", "-c", script}, {}, kSoon).code; };
  ::testing::internal::CaptureStderr();
  const int never = run("exec sleep 100");
  const int dead = run("sleep 0 & exec sleep 100");  // starts a child that ends and remains a zombie
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(never, exit_code::kWatchdog);
  EXPECT_EQ(dead, exit_code::kWatchdog);
  expect_holds(said, "lockstep: error: sh (pid ");
  expect_holds(said, ") has had no living rank for 1 s: it is ended\n");
  EXPECT_EQ(detail::run_launcher({"sh", "-c", "sleep 5; exit 5"}, {}, {.seconds = 3, .children = true}).code, 5)
      << "a rank lives";
  EXPECT_EQ(detail::run_launcher({"sh", "-c", "exec sleep 2"}, {}, {.seconds = 1}).code, 0)
      << "its ranks are elsewhere";
}

TEST(RunLauncher, OneThatIsStoppedIsEndedWithItsRanks) {
  const testing::TemporaryFolder folder;
  const std::string script = "sleep 100 & echo $! > " + folder.path() + "/rank; kill -STOP $$; wait";
  ::testing::internal::CaptureStderr();
  const int code = detail::run_launcher({"sh", "-c", script}, {}, kSoon).code;
  expect_holds(::testing::internal::GetCapturedStderr(), ") has been stopped for 1 s: it is ended\n");
  EXPECT_EQ(code, exit_code::kWatchdog);
  const std::string stat = concat("/proc/", std::stoi(read_file(folder / "rank", 100)), "/cmdline");
  for (int i = 0; i < 100 && file_exists(stat) && !testing::get_file(stat).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(!file_exists(stat) || testing::get_file(stat).empty()) << "empty: ended, and nobody has taken notice";
}

TEST(RunLauncher, OneRequestToStopIsEnough) {
  const detail::LauncherLimit hour{.seconds = 3600, .children = true};
  EXPECT_EQ(with_signals("trap '' USR1 TERM; : > ${1}0; exec sleep 100", {SIGTERM}, {}, {}, hour), 128 + SIGTERM);
  EXPECT_EQ(with_signals("trap 'exit 75' USR1; : > ${1}0; kill -STOP $$; while :; do sleep 0.02; done", {SIGTERM}, {},
                         {}, hour),
            75)
      << "it was stopped";
}

TEST(RunLauncher, WhatIsIgnoredFromTheStart) {
  // nohup ignores SIGHUP.
  EXPECT_EQ(with_signals("trap 'exit 9' USR1; : > ${1}0; sleep 0.2; exit 0", {SIGHUP}, {}, {SIGHUP}), 0);
  // With SIGCHLD ignored, the parent would not learn that the launcher has ended. So run_launcher() must not leave
  // SIGCHLD ignored.
  EXPECT_EQ(with_signals("exit 5", {}, {}, {SIGCHLD}), 5);
  EXPECT_EQ(with_signals("(exit 6) & wait $!", {}, {}, {SIGCHLD}), 6) << "the launcher waits for processes too";
}

TEST(RunLauncher, AnswersOfAChild) {
  EXPECT_EQ(detail::ask_in_a_child([] { return 5; }), 5);
  EXPECT_EQ(detail::ask_in_a_child([]() -> int { throw DeviceError("a broken driver"); }), 0);
  EXPECT_EQ(detail::ask_in_a_child([]() -> int { std::abort(); }), 0);
  expect_holds(error_of<StateError>([] { (void)detail::ask_in_a_child([] { return ::pause(); }, 1); }),
               "longer than 1 s");
  const pid_t self = ::getpid();
  EXPECT_NE(detail::ask_in_a_child([] { return static_cast<int>(::getpid()); }), self);
}

/// Writes the text to a BannerFilter in pieces of `size` characters, and returns the text that passes.
std::string filtered(const std::string& text, bool show, std::size_t size) {
  std::string passed;
  detail::BannerFilter filter([&](std::string_view part) { passed += part; });
  for (std::size_t at = 0; at < text.size(); at += size) {
    filter.write(std::string_view(text).substr(at, size));
  }
  filter.finish(show);
  return passed;
}

TEST(BannerFilter, TheLineThatMattersIsTheLast) {
  const std::string dashes(74, '-');
  const auto banner = [&](const std::string& text) { return dashes + '\n' + text + '\n' + dashes + '\n'; };
  const std::string line = "lockstep: error: rank 1: no\n";
  const std::string exit = banner("mpirun detected that one or more processes exited with non-zero status, thus");
  const std::string job = banner("Primary job  terminated normally, but 1 process returned\na non-zero exit code.");
  const std::string abort = banner("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD");
  const std::string aggregate = "[a:12] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n";
  const std::string signal = banner("mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9");
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{4096}}) {
    EXPECT_EQ(filtered(job + line + exit + abort + aggregate, false, size), line);
    EXPECT_EQ(filtered(line + exit, true, size), line + exit) << "a code that nobody has explained";
    EXPECT_EQ(filtered(signal + line, false, size), signal + line) << "who was killed is said by nobody else";
    EXPECT_EQ(filtered(line + dashes + "\nhalf a banner", false, size), line + dashes + "\nhalf a banner");
    EXPECT_EQ(filtered("-----\n[12] no banner\nend", false, size), "-----\n[12] no banner\nend");
  }
}

TEST(RunLauncher, CtrlZStopsAndFgContinues) {
  // The command records the signals that it gets. The runner stops itself after it has passed SIGTSTP on.
  testing::TemporaryFolder folder;
  const std::string got = folder / "got";
  const pid_t runner = testing::start_child([&] {
    ::signal(SIGTSTP, SIG_DFL);
    const char* script =
        "trap 'echo stop >> $1' TSTP; trap 'echo go >> $1; exit 5' CONT; : > $1.ready; while :; do sleep 0.02; done";
    return detail::run_launcher({"sh", "-c", script, "sh", got}, {}).code;
  });
  while (!file_exists(got + ".ready")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(::kill(runner, SIGTSTP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(runner, &status, WUNTRACED), runner);
  EXPECT_TRUE(WIFSTOPPED(status)) << status;
  while (!file_exists(got)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(::kill(runner, SIGCONT), 0);
  EXPECT_EQ(testing::end_of(runner), 5);
  EXPECT_EQ(read_file(got, 100), "stop\ngo\n");
}

#if !defined(LOCKSTEP_SANITIZED)  // sanitizers have their own SIGBUS handler
TEST(StartProcess, AMappedFileThatBecomesShorterIsNamedAsTheReason) {
  const testing::TemporaryFolder folder;
  testing::put_file(folder / "a", std::string(1 << 20, 'x'));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = testing::start_child([&] {
    ::dup2(ends[1], STDERR_FILENO);
    detail::start_process();
    const MappedFile file(folder / "a");
    const auto bytes = file.bytes(0, file.size());
    std::filesystem::resize_file(folder / "a", 0);
    return bytes.back() == std::byte{'x'} ? 1 : 2;
  });
  ::close(ends[1]);
  std::string said(1000, 0);
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], said.data(), said.size()))));
  ::close(ends[0]);
  EXPECT_EQ(testing::end_of(child), exit_code::kFailure);
  expect_holds(said, "lockstep: error: a page of a mapped file cannot be read (SIGBUS): the file has become shorter");
}
#endif

TEST(RunLauncher, ClosedStandardFilesAreNoHarm) {
  testing::TemporaryFolder folder;
  const std::string result = folder / "result";
  const pid_t runner = testing::start_child([&] {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    detail::open_standard_files();
    // This process must get an error from a write to its closed output, but the command's writes must succeed.
    if (::write(STDOUT_FILENO, "x", 1) != -1) {
      return 99;
    }
    const char* script = "cat && echo output && readlink /proc/self/fd/0 > $1";
    return detail::run_launcher({"sh", "-c", script, "sh", result}, {}).code;
  });
  EXPECT_EQ(testing::end_of(runner), 0);
  EXPECT_EQ(read_file(result, 100), "/dev/null\n");
}

TEST(RunLauncher, PathSearch) {
  EXPECT_NE(detail::find_on_path("sh"), "");
  EXPECT_EQ(detail::find_on_path("no-such-program"), "");
}

}  // namespace
}  // namespace lockstep::comm
