// Programs under what batch systems, shells and launchers leave in the environment: fewer threads than asked for,
// threads bound to processors, ranks that are not there.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/machine/processors.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::run_command;

const std::string kHello = std::string(HELLO_RANKS) + " --devices cpu";

/// A few steps with convolutions whose threads wait for each other; the parameters come out.
class Trained {
 public:
  explicit Trained(const std::string& environment, const std::string& options = "") {
    ended = run_command("env -u OMP_NUM_THREADS " + environment + " timeout 60 " + TRAIN_RESNET +
                        " --devices cpu --model resnet20 --train-images 32 --test-images 16 --batch-size 16 --steps 1"
                        " --workers 1 --out " +
                        folder / "run" + options);
    EXPECT_EQ(ended.code, 0) << environment << '\n' << ended.output;
    parameters = ended.code == 0 ? testing::get_file(folder / "run/last/model.safetensors") : "";
  }
  const testing::TemporaryFolder folder;
  Ended ended;
  std::string parameters;
};

TEST(Environment, AsManyThreadsAsOpenMPGives) {
  const Trained one("OMP_NUM_THREADS=1");
  EXPECT_EQ(one.ended.count("compute    cpu, 1 thread a rank (OMP_NUM_THREADS); "), 1) << one.ended.output;
  for (const Trained& limited :
       {Trained("OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=2"), Trained("OMP_THREAD_LIMIT=1", " --threads 2")}) {
    EXPECT_EQ(limited.ended.count("cpu, 1 thread a rank (OMP_THREAD_LIMIT); "), 1) << limited.ended.output;
    EXPECT_EQ(limited.parameters, one.parameters);
  }
  EXPECT_EQ(Trained("OMP_NUM_THREADS=2 OMP_MAX_ACTIVE_LEVELS=0").parameters, one.parameters);
  const Trained two("OMP_NUM_THREADS=2");
  for (const Trained& same :
       {Trained("OMP_NUM_THREADS=2 OMP_DYNAMIC=true"),
        Trained("OMP_NUM_THREADS=2 OMP_PROC_BIND=close OMP_PLACES=cores"),
        Trained("OMP_NUM_THREADS=2 OMP_PROC_BIND=spread"), Trained("OMP_NUM_THREADS=2 OMP_PROC_BIND=master"),
        Trained("OMP_PROC_BIND=true", " --threads 2")}) {
    EXPECT_EQ(same.ended.count("cpu, 2 threads a rank ("), 1) << same.ended.output;
    EXPECT_EQ(same.parameters, two.parameters);
  }
}

TEST(Environment, OpenMPThatBindsLeavesTheRankItsProcessors) {
  const Ended plain = run_command("env -u OMP_NUM_THREADS " + kHello);
  ASSERT_EQ(plain.code, 0) << plain.output;
  const auto place = [](const Ended& ended) {
    const std::size_t at = ended.output.find("  cpu, ");
    return at == std::string::npos ? ended.output : ended.output.substr(at, ended.output.find('\n', at) - at);
  };
  for (const char* bind : {"close", "spread", "true"}) {
    const Ended bound =
        run_command(std::string("env -u OMP_NUM_THREADS OMP_PLACES=cores OMP_PROC_BIND=") + bind + " " + kHello);
    EXPECT_EQ(place(bound), place(plain)) << bind;
  }
  const Ended two = run_command("env -u OMP_NUM_THREADS OMP_PROC_BIND=close OMP_PLACES=cores " + kHello + ":2");
  EXPECT_TRUE(LOCKSTEP_HAS_MPI == 0 || two.code == 0) << two.output;
}

/// Whatever is left in the environment, a program that fails says why.
TEST(Environment, NoProgramFailsWithoutAWord) {
  const std::string torch =
      "WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 LOCKSTEP_MEET_SECONDS=1 ";
  std::vector<std::string> left{torch + "MASTER_PORT=1 RANK=2 LOCAL_RANK=2", torch + "MASTER_PORT=1 LOCAL_RANK=3",
                                torch + "MASTER_PORT=1 RANK=9 LOCAL_RANK=0",
                                torch + "MASTER_PORT=70000 RANK=1 LOCAL_RANK=1"};
  for (const std::string launcher : {"PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", ""}) {
    for (const char* rank : {"1", "x"}) {
      left.push_back(launcher + "RANK=" + rank + " " + launcher + (launcher.empty() ? "WORLD_SIZE=4" : "SIZE=4"));
    }
  }
  left.insert(left.end(), {"SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4", "PMI_RANK=1", "PMIX_RANK=1"});
  const auto expect_a_word = [](const std::string& environment, const std::string& arguments) {
    const Ended ended = run_command("env " + environment + " " + HELLO_RANKS + arguments);
    EXPECT_TRUE(ended.code == 0 || ended.count("lockstep: error: ") > 0)
        << environment << ' ' << arguments << ": code " << ended.code << '\n'
        << ended.output;
    return ended.code;
  };
  for (const std::string& environment : left) {
    expect_a_word(environment, " --devices cpu");
  }
  for (const char* arguments : {" --help", " --lr abc", " --devices 7,"}) {
    EXPECT_EQ(expect_a_word("PMI_RANK=1 PMI_SIZE=4", arguments), 2);
    EXPECT_EQ(expect_a_word(left.front(), arguments), 2);
  }
}

}  // namespace
}  // namespace lockstep
