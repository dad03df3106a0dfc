#include <lockstep/comm/launch/launch.hpp>

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using testing::expect_error;
using testing::expect_holds;

/// The environment variables that torchrun sets.
const Environment kTorchrun{
    {"RANK", "5"},       {"LOCAL_RANK", "1"},     {"WORLD_SIZE", "8"},  {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"}, {"MASTER_ADDR", "node"}, {"MASTER_PORT", "29"}};
const Environment kMpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                          {"OMPI_COMM_WORLD_SIZE", "8"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment kStep{{"SLURM_JOB_ID", "7"},  {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"},
                        {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"},  {"SLURM_NNODES", "2"}};
const Environment kBatch{
    {"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "0"}};

const Environment kLightning{{"NODE_RANK", "1"},        {"LOCAL_RANK", "3"},     {"WORLD_SIZE", "8"},
                             {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node"}, {"MASTER_PORT", "29"}};

/// Returns the environment with these variables changed. An empty value counts as unset.
Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    environment[name] = value;
  }
  return environment;
}

struct Found {
  const char* what;
  Environment environment;
  LaunchSource source;
  int rank, size;
};

TEST(Launch, SourcesAndTheirOrder) {
  using enum LaunchSource;
  const Found cases[] = {
      {"nothing", {}, single, 0, 1},
      {"others", {{"HOME", "/"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, single, 0, 1},
      {"set to nothing", {{"PMI_RANK", ""}, {"PMI_SIZE", ""}, {"WORLD_SIZE", ""}}, single, 0, 1},
      {"Open MPI", kMpirun, mpi, 3, 8},
      {"Open MPI without places", {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, mpi, 0, 1},
      {"MVAPICH", {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}}, mpi, 1, 2},
      {"MPICH", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, mpi, 1, 2},
      {"Intel MPI",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}},
       mpi,
       1,
       2},
      {"two that agree", with(kMpirun, {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}), mpi, 3, 8},
      {"torchrun", kTorchrun, torchrun, 5, 8},
      {"a step", kStep, slurm, 3, 4},
      {"the step's own number of tasks", with(kStep, {{"SLURM_STEP_NUM_TASKS", "6"}}), slurm, 3, 6},
      {"a batch script", kBatch, single, 0, 1},
      {"a batch script's reserved step", with(kBatch, {{"SLURM_STEP_ID", "4294967291"}}), single, 0, 1},
      {"mpirun in a batch script", with(kMpirun, kBatch), mpi, 3, 8},
      {"mpirun whose helpers are a step", with(kMpirun, kStep), mpi, 3, 8},
      {"and have PMI", with(with(kMpirun, kStep), {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), mpi, 3, 8},
      {"a step with PMI", with(kStep, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), mpi, 3, 4},
      {"torchrun under a step", with(kTorchrun, kStep), torchrun, 5, 8},
      {"a wrapper that sets torchrun's", with(kMpirun, {{"RANK", "3"}, {"WORLD_SIZE", "8"}}), mpi, 3, 8},
      {"and a part of them", with(kMpirun, {{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a"}}), mpi, 3, 8},
      {"a script that sets a part", with(kStep, {{"WORLD_SIZE", "4"}}), slurm, 3, 4},
      {"Lightning", kLightning, lightning, 7, 8},
      {"Lightning's first node", with(kLightning, {{"NODE_RANK", "0"}, {"LOCAL_WORLD_SIZE", ""}}), lightning, 3, 8},
      {"Lightning with torchrun's name", with(kLightning, {{"NODE_RANK", ""}, {"GROUP_RANK", "1"}}), lightning, 7, 8},
      {"Lightning on one node", with(kLightning, {{"NODE_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}}), lightning, 3, 8},
      {"mpirun in a script for Lightning", with(kMpirun, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}), mpi, 3, 8},
  };
  for (const Found& c : cases) {
    const Launch launch = detect_launch(c.environment);
    EXPECT_EQ(launch.source, c.source) << c.what;
    EXPECT_EQ(launch.rank, c.rank) << c.what;
    EXPECT_EQ(launch.size, c.size) << c.what;
    EXPECT_EQ(launch.origin.empty(), c.source == single) << c.what;
  }
}

TEST(Launch, PlacesOnTheNode) {
  const Launch mpi = detect_launch(kMpirun);
  EXPECT_EQ(mpi.local_rank, 1);
  EXPECT_EQ(mpi.local_size, 2);
  EXPECT_FALSE(mpi.node || mpi.nodes);
  EXPECT_EQ(
      mpi.origin,
      "OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=8, OMPI_COMM_WORLD_LOCAL_RANK=1, OMPI_COMM_WORLD_LOCAL_SIZE=2");
  const Launch step = detect_launch(kStep);
  EXPECT_EQ(step.local_rank, 1);
  EXPECT_FALSE(step.local_size);
  EXPECT_EQ(step.node, 1);
  EXPECT_EQ(step.nodes, 2);
  const Launch torchrun = detect_launch(kTorchrun);
  EXPECT_EQ(torchrun.local_size, 4);
  EXPECT_EQ(torchrun.node, 1);
}

TEST(Launch, StartsOfAJobThatIsStartedAgain) {
  EXPECT_TRUE(detect_launch({}).attempt.job.empty());
  const Attempt attempt{.job = "7-9", .number = 2, .devices = "cpu:3", .seconds = 90};
  const Launch launch = detect_launch({{kAttempt, attempt_text(attempt)}});
  EXPECT_EQ(launch.attempt.job, "7-9");
  EXPECT_EQ(launch.attempt.number, 2);
  EXPECT_EQ(launch.attempt.devices, "cpu:3");
  EXPECT_EQ(launch.attempt.seconds, 90);
  EXPECT_EQ(detect_launch({{kAttempt, "7 1 -"}}).attempt.seconds, 0);
  EXPECT_EQ(launch.description(), "started alone; restart 2");
  EXPECT_EQ(detect_launch({{kAttempt, attempt_text({.job = "7-9"})}}).attempt.devices, "");
  for (const char* text : {"7", "7 1", "7 x -", "7 -1 -", " 1 -", "7 1 ", "7 1 - -", "7 1 - -3", "7 1 - 3 4"}) {
    EXPECT_THROW((void)detect_launch({{kAttempt, text}}), UsageError) << text;
  }
}

TEST(Launch, ABatchScriptIsToldHowTasksStart) {
  EXPECT_NE(detect_launch(kBatch).note.find("SLURM_NTASKS=4"), std::string::npos);
  EXPECT_NE(detect_launch(kBatch).note.find("srun --mpi=pmix"), std::string::npos);
  EXPECT_TRUE(detect_launch(with(kBatch, {{"SLURM_NTASKS", "1"}})).note.empty());
  EXPECT_TRUE(detect_launch(kStep).note.empty());
}

TEST(Launch, AStepWithFewerTasksThanTheJobAsksForIsNoted) {
  const auto note = [](const char* per_node) {
    return detect_launch(with(kStep, {{"SLURM_NTASKS_PER_NODE", per_node}})).note;  // 4 tasks on 2 nodes
  };
  EXPECT_EQ(note("4"), "the step has 4 tasks on 2 nodes, fewer than the job's SLURM_NTASKS_PER_NODE=4");
  for (const char* fits : {"2", "1", "", "many", "99999999999999999999"}) {
    EXPECT_EQ(note(fits), "") << fits;
  }
  expect_holds(detect_launch(with(kStep, {{"SLURM_NTASKS", "1"},
                                          {"SLURM_PROCID", "0"},
                                          {"SLURM_NODEID", "0"},
                                          {"SLURM_NNODES", "1"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_NTASKS_PER_NODE", "2"}}))
                   .description(),
               "started by srun; the step has 1 task on 1 node");
}

struct Refused {
  Environment environment;
  std::vector<std::string> words;
};

TEST(Launch, EnvironmentsThatContradictThemselves) {
  const Refused cases[] = {
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "8"}}),
       {"OMPI_COMM_WORLD_RANK=8", "OMPI_COMM_WORLD_SIZE=8", "rank < size"}},
      {with(kMpirun, {{"OMPI_COMM_WORLD_SIZE", "0"}}), {"OMPI_COMM_WORLD_SIZE=0"}},
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "x"}}), {"OMPI_COMM_WORLD_RANK=x", "whole number"}},
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "-1"}}), {"OMPI_COMM_WORLD_RANK=-1", "from 0 to 2147483647"}},
      {with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "99999999999"}}), {"OMPI_COMM_WORLD_RANK=99999999999"}},
      {with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}), {"OMPI_COMM_WORLD_LOCAL_RANK=2", "local rank 2 of 2"}},
      {with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "9"}}), {"OMPI_COMM_WORLD_LOCAL_SIZE=9", "of 8 in all"}},
      {{{"OMPI_COMM_WORLD_SIZE", "4"}}, {"OMPI_COMM_WORLD_SIZE=4", "without OMPI_COMM_WORLD_RANK"}},
      {{{"PMI_RANK", "0"}}, {"PMI_RANK=0", "without PMI_SIZE"}},
      {with(kMpirun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), {"disagree", "OMPI_COMM_WORLD_SIZE=8", "PMI_SIZE=2"}},
      {with(kMpirun, {{"WORLD_SIZE", "4"}}), {"OMPI_COMM_WORLD_SIZE=8", "WORLD_SIZE=4", "disagree"}},
      {with(kMpirun, {{"RANK", "0"}}), {"OMPI_COMM_WORLD_RANK=3", "RANK=0", "disagree"}},
      {with(kMpirun, kTorchrun), {"OMPI_COMM_WORLD_RANK=3", "RANK=5", "disagree"}},
      {with(kTorchrun, {{"RANK", "8"}}), {"RANK=8", "WORLD_SIZE=8", "rank < size"}},
      {with(kTorchrun, {{"WORLD_SIZE", "2000000000"}}), {"2000000000 ranks, expected at most 1048576"}},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"}},
      {with(kTorchrun, {{"MASTER_PORT", ""}}), {"without MASTER_PORT", "RANK=5", "torchrun"}},
      {with(kTorchrun, {{"LOCAL_RANK", ""}, {"GROUP_RANK", ""}}), {"without LOCAL_RANK, GROUP_RANK", "WORLD_SIZE=8"}},
      {{{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4 without RANK"}},
      {with(kLightning, {{"LOCAL_WORLD_SIZE", ""}}), {"NODE_RANK=1", "without RANK and LOCAL_WORLD_SIZE", "devices"}},
      {with(kLightning, {{"NODE_RANK", "2"}}), {"NODE_RANK=2", "rank 11 of 8"}},
      {with(kLightning, {{"LOCAL_RANK", "4"}, {"NODE_RANK", "0"}}), {"LOCAL_RANK=4", "local rank 4 of 4"}},
      {with(kLightning, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0", "of 0"}},
      {with(kStep, {{"SLURM_PROCID", "4"}}), {"SLURM_PROCID=4", "SLURM_NTASKS=4"}},
      {with(kStep, {{"SLURM_PROCID", ""}}), {"SLURM_NTASKS=4", "without SLURM_PROCID", "srun"}},
      {with(kStep, {{"SLURM_NODEID", "2"}}), {"SLURM_NODEID=2", "node 2 of 2"}},
      {with(kStep, {{"SLURM_NNODES", "5"}}), {"SLURM_NNODES=5", "of 4 ranks"}},
      {with(kStep, {{"WORLD_SIZE", "8"}}), {"SLURM_NTASKS=4", "WORLD_SIZE=8", "disagree"}},
  };
  for (const Refused& c : cases) {
    expect_error<UsageError>([&] { (void)detect_launch(c.environment); }, c.words);
  }
}

TEST(Launch, WhoMeetsWithoutMpi) {
  using enum Backend;
  constexpr Backends kBoth{.mpi = true, .gloo = true};
  constexpr Backends kMpiOnly{.mpi = true};
  constexpr Backends kGlooOnly{.gloo = true};
  const Environment place{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  const auto meets = [](const Environment& environment, Backend backend, const Backends& have) {
    return meet_by_gloo(detect_launch(environment), environment, backend, have);
  };
  for (const Environment& of_torch : {kTorchrun, kLightning}) {
    EXPECT_TRUE(meets(of_torch, automatic, kBoth));
    EXPECT_TRUE(meets(of_torch, automatic, kGlooOnly));
    EXPECT_FALSE(meets(of_torch, automatic, kMpiOnly));
    EXPECT_FALSE(meets(of_torch, mpi, kBoth));
  }
  for (const Environment& of_mpi : {kMpirun, kStep, with(kMpirun, place)}) {
    EXPECT_FALSE(meets(of_mpi, automatic, kBoth));
    EXPECT_TRUE(meets(of_mpi, gloo, kBoth));
  }
  EXPECT_TRUE(meets(with(kMpirun, place), automatic, kGlooOnly));
  EXPECT_FALSE(meets(kMpirun, automatic, kGlooOnly));
  EXPECT_FALSE(meets({}, gloo, kBoth));  // a single rank needs neither MPI nor gloo
  EXPECT_FALSE(meets({}, mpi, {}));
  expect_error<UsageError>([&] { (void)meets(kTorchrun, gloo, kMpiOnly); },
                           {"--backend is gloo", "no gloo", "--backend mpi"});
  expect_error<UsageError>([&] { (void)meets(kMpirun, mpi, kGlooOnly); },
                           {"--backend is mpi", "no MPI", "--backend gloo"});

  EXPECT_EQ(parse_backend("auto"), automatic);
  EXPECT_EQ(parse_backend("nccl"), automatic);
  EXPECT_EQ(parse_backend("mpi"), mpi);
  EXPECT_EQ(parse_backend("gloo"), gloo);
  expect_error<UsageError>([&] { (void)parse_backend("GLOO"); }, {"--backend is 'GLOO'", "auto, mpi, gloo or nccl"});
}

TEST(Launch, WhereTheyMeet) {
  const MeetingPlace place = meeting_place(kTorchrun);
  EXPECT_EQ(place.host, "node");
  EXPECT_EQ(place.port, 29);
  EXPECT_EQ(place.origin, "MASTER_ADDR=node, MASTER_PORT=29");
  EXPECT_EQ(place.job, "");
  EXPECT_EQ(place.timeout_s, 60);
  const MeetingPlace agent =
      meeting_place(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "none"}}));
  EXPECT_EQ(agent.port, 30);
  EXPECT_EQ(agent.job, "none");
  EXPECT_NE(agent.origin.find("MASTER_PORT=29, at which torchrun listens"), std::string::npos) << agent.origin;
  EXPECT_EQ(meeting_place(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).port, 29);
  const MeetingPlace own = meeting_place(
      with(kTorchrun,
           {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"LOCKSTEP_PORT", "4000"}, {"LOCKSTEP_MEET_SECONDS", "5"}}));
  EXPECT_EQ(own.port, 4000);
  EXPECT_EQ(own.origin, "MASTER_ADDR=node, LOCKSTEP_PORT=4000");
  EXPECT_EQ(own.timeout_s, 5);
  EXPECT_EQ(meeting_place({{"MASTER_ADDR", "::1"}, {"LOCKSTEP_PORT", "1"}}).port, 1);
  const Refused cases[] = {
      {with(kTorchrun, {{"MASTER_ADDR", ""}}), {"MASTER_PORT=29 without MASTER_ADDR", "torchrun"}},
      {with(kTorchrun, {{"MASTER_PORT", ""}}), {"MASTER_ADDR=node without MASTER_PORT"}},
      {with(kTorchrun, {{"MASTER_PORT", "0"}}), {"MASTER_PORT=0", "expected 1 to 65535"}},
      {with(kTorchrun, {{"MASTER_PORT", "65535"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
       {"65536", "LOCKSTEP_PORT"}},
      {with(kTorchrun, {{"LOCKSTEP_PORT", "70000"}}), {"LOCKSTEP_PORT=70000"}},
      {with(kTorchrun, {{"LOCKSTEP_MEET_SECONDS", "0"}}), {"LOCKSTEP_MEET_SECONDS=0"}},
  };
  for (const Refused& c : cases) {
    expect_error<UsageError>([&] { (void)meeting_place(c.environment); }, c.words);
  }
}

TEST(Launch, MpiConfirmsIt) {
  const auto confirm = [](const Environment& environment, int rank, int size) {
    return confirm_launch(detect_launch(environment), environment, rank, size, "Some MPI 4");
  };
  EXPECT_EQ(confirm(kMpirun, 3, 8).origin, detect_launch(kMpirun).origin);
  EXPECT_EQ(confirm(kStep, 3, 4).source, LaunchSource::slurm);
  EXPECT_EQ(confirm({}, 0, 1).source, LaunchSource::single);
  EXPECT_EQ(
      confirm(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "1"}}), 0,
              1)
          .source,
      LaunchSource::torchrun);
  // First test: the launcher sets no variables, so the rank and size of MPI count. Second test: MPI has more ranks (6)
  // than Slurm's variables say, which is valid.
  const Launch silent = confirm({}, 1, 2);
  EXPECT_EQ(silent.source, LaunchSource::mpi);
  EXPECT_EQ(silent.rank, 1);
  EXPECT_EQ(silent.size, 2);
  EXPECT_EQ(silent.origin, "Some MPI 4");
  EXPECT_EQ(confirm(kStep, 3, 6).size, 6);

  expect_error<UsageError>([&] { (void)confirm(kStep, 0, 1); },
                           {"SLURM_NTASKS=4", "MPI reports 1 rank (Some MPI 4)", "srun --mpi=pmix"});
  expect_error<UsageError>([&] { (void)confirm(kMpirun, 0, 1); }, {"OMPI_COMM_WORLD_SIZE=8", "1 rank", "another MPI"});
  expect_error<UsageError>([&] { (void)confirm(kTorchrun, 0, 1); },
                           {"WORLD_SIZE=8", "torchrun", "1 rank", "mpirun -np 8", "srun --mpi=pmix"});
  expect_error<UsageError>([&] { (void)confirm(kTorchrun, 0, 16); }, {"WORLD_SIZE=8", "16 ranks"});
  // The launcher sets no variables of its own, but a variable of another launcher contradicts MPI. This is an error.
  expect_error<UsageError>(
      [&] {
        (void)confirm_launch({}, {{"WORLD_SIZE", "4"}}, 0, 2, "Some MPI 4");
      },
      {"Some MPI 4", "rank 0 of 2", "WORLD_SIZE=4"});
}

TEST(Launch, ARankForMessages) {
  EXPECT_EQ(likely_rank({}), -1);
  EXPECT_EQ(likely_rank(kMpirun), 3);
  EXPECT_EQ(likely_rank(kTorchrun), 5);
  EXPECT_EQ(likely_rank(kLightning), 7);
  EXPECT_EQ(likely_rank(with(kLightning, {{"NODE_RANK", "2"}})), -1);
  EXPECT_EQ(likely_rank(kStep), 3);
  EXPECT_EQ(likely_rank({{"RANK", "3"}}), -1);
  EXPECT_EQ(likely_rank({{"PMI_RANK", "many"}, {"SLURM_PROCID", "2"}}), 2);
}

TEST(Launch, TheEnvironmentOfThisProcess) {
  const Environment environment = process_environment();
  ASSERT_NE(environment.find("PATH"), environment.end());
  EXPECT_EQ(environment.find("PATH")->second, std::getenv("PATH"));
}

}  // namespace
}  // namespace lockstep::comm
