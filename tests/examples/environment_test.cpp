// Tests programs in environments that batch systems, shells and launchers create: OpenMP gives fewer threads than
// requested, OpenMP binds threads to processors, or variables name ranks that do not exist.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <lockstep/runtime/detail/control_groups.hpp>

#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep {
namespace {

using testing::Ended;
using testing::run_command;

const std::string kHello = std::string(HELLO_RANKS) + " --devices cpu";

/// Trains one step of ResNet-20 and keeps the parameters. The threads of a convolution wait for each other, so the run
/// would hang if a thread were missing. `launcher` is the beginning of the command line, before the program.
class Trained {
 public:
  explicit Trained(const std::string& environment, const std::string& options = "", const std::string& launcher = "") {
    ended = run_command(launcher + "env -u OMP_NUM_THREADS " + environment + " timeout 60 " + TRAIN_RESNET +
                        " --devices cpu --model resnet20 --train-images 32 --test-images 16 --batch-size 16 --steps 1"
                        " --workers 1 --out " +
                        folder / "run" + options);
    EXPECT_EQ(ended.code, 0) << environment << '\n' << ended.output;
    parameters = ended.code == 0 ? testing::get_file(folder / "run/last/model.safetensors") : "";
  }
  /// Returns true if the program's header shows this number of threads.
  [[nodiscard]] bool says(const std::string& threads) const {
    return ended.count("compute    cpu, " + threads + " a rank (") == 1;
  }
  const testing::TemporaryFolder folder;
  Ended ended;
  std::string parameters;
};

TEST(Environment, AsManyThreadsAsOpenMPGives) {
  const Trained one("OMP_NUM_THREADS=1");
  EXPECT_TRUE(one.says("1 thread")) << one.ended.output;
  for (const Trained& limited :
       {Trained("OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=2"), Trained("OMP_THREAD_LIMIT=1", " --threads 2"),
        Trained("OMP_NUM_THREADS=2 OMP_MAX_ACTIVE_LEVELS=0")}) {
    EXPECT_TRUE(limited.says("1 thread")) << limited.ended.output;
    EXPECT_EQ(limited.parameters, one.parameters);
  }
  const Trained two("OMP_NUM_THREADS=2");
  for (const char* environment : {"OMP_DYNAMIC=true", "OMP_PROC_BIND=false OMP_PLACES=cores", "OMP_PROC_BIND=true",
                                  "OMP_PROC_BIND=primary OMP_PLACES=threads", "OMP_PROC_BIND=master OMP_PLACES='{0}'",
                                  "OMP_PROC_BIND=close OMP_PLACES=cores", "OMP_PROC_BIND=close OMP_PLACES=sockets",
                                  "OMP_PROC_BIND=spread OMP_PLACES='{0},{1}'",
                                  "OMP_NUM_THREADS=2,2 OMP_PROC_BIND=spread,close OMP_MAX_ACTIVE_LEVELS=3"}) {
    const Trained same(std::string("OMP_NUM_THREADS=2 ") + environment);
    EXPECT_TRUE(same.says("2 threads")) << environment << '\n' << same.ended.output;
    EXPECT_EQ(same.parameters, two.parameters) << environment;
  }
}

/// Two ranks must give the right result even if OpenMP binds the threads of both to the same processors.
TEST(Environment, RanksThatOpenMPBinds) {
  if (LOCKSTEP_HAS_MPI == 0) {
    GTEST_SKIP() << "this build has no MPI";
  }
  const auto ranks = [](const std::string& environment) {
    return Trained("OMP_NUM_THREADS=2 " + environment, " --devices cpu:2").parameters;
  };
  EXPECT_EQ(ranks("OMP_PROC_BIND=primary OMP_PLACES=threads"), ranks("OMP_PROC_BIND=false"));
}

/// The header must show the origin of the number of threads.
TEST(Environment, WhereTheNumberOfThreadsComesFrom) {
  const auto origin = [](const std::string& environment, const std::string& options = "") {
    const Ended ended = run_command("env -u OMP_NUM_THREADS " + environment + " " + TRAIN_RESNET +
                                    " --devices cpu --model resnet20 --batch-size 16 --dry-run" + options);
    EXPECT_EQ(ended.code, 0) << environment << '\n' << ended.output;
    const std::string compute = ended.from("compute    cpu, ");
    return compute.substr(0, compute.find(';'));
  };
  EXPECT_EQ(origin("OMP_NUM_THREADS=1"), "compute    cpu, 1 thread a rank (OMP_NUM_THREADS)");
  EXPECT_EQ(origin("OMP_NUM_THREADS=3,2"), "compute    cpu, 3 threads a rank (OMP_NUM_THREADS)");
  const std::string limit = "OMP_THREAD_LIMIT=2 ";
  EXPECT_EQ(origin(limit + "OMP_NUM_THREADS=2"), "compute    cpu, 2 threads a rank (OMP_NUM_THREADS)");
  EXPECT_EQ(origin(limit + "OMP_NUM_THREADS=3"), "compute    cpu, 2 threads a rank (OMP_THREAD_LIMIT)");
  EXPECT_EQ(origin(limit, " --threads 2"), "compute    cpu, 2 threads a rank (as asked)");
  EXPECT_EQ(origin(limit, " --threads 3"), "compute    cpu, 2 threads a rank (OMP_THREAD_LIMIT)");
  EXPECT_EQ(origin("OMP_MAX_ACTIVE_LEVELS=0", " --threads 3"),
            "compute    cpu, 1 thread a rank (all that OpenMP gives)");
  // OpenMP ignores an invalid value of OMP_NUM_THREADS and prints a warning.
  const std::string own = origin("");
  testing::expect_holds(own, "(its part of the processors)");
  for (const char* text : {"abc", "0", "2x"}) {
    EXPECT_EQ(origin(std::string("OMP_NUM_THREADS=") + text), own) << text;
  }
}

/// Makes a control group (cgroup) with a quota of half a processor, inside a group of this process. Deletes it at the
/// end.
class HalfAProcessor {
 public:
  HalfAProcessor() {
    detail::visit_control_groups("", "cpu", [&](bool version2, const std::string& parent) {
      const std::string made = parent + "/lockstep_test_" + std::to_string(::getpid());
      std::error_code error;
      if (!folder.empty() || !std::filesystem::is_directory(parent, error) ||
          !std::filesystem::create_directory(made, error)) {
        return;
      }
      const std::string limit = made + (version2 ? "/cpu.max" : "/cpu.cfs_quota_us");
      // The file `limit` is missing if the parent group does not delegate the cpu controller.
      const bool there = std::filesystem::exists(limit, error);
      if (there && (std::ofstream(limit) << (version2 ? "50000 100000" : "50000") << std::flush).good() &&
          run_command(start(made) + "true").code == 0) {
        folder = made;
      } else {
        std::filesystem::remove(made, error);
      }
    });
  }
  ~HalfAProcessor() {
    if (!folder.empty()) {
      EXPECT_EQ(::rmdir(folder.c_str()), 0) << folder << ": " << std::strerror(errno);
    }
  }
  HalfAProcessor(const HalfAProcessor&) = delete;
  HalfAProcessor& operator=(const HalfAProcessor&) = delete;
  [[nodiscard]] static std::string start(const std::string& group) {
    return "sh -c 'echo $$ > " + group + "/cgroup.procs && exec \"$@\"' sh ";
  }
  std::string folder;
};

TEST(Environment, UnderAQuotaOfAControlGroup) {
  const HalfAProcessor group;
  if (group.folder.empty()) {
    GTEST_SKIP() << "this process may make no control group with a quota (cpu.max, cpu.cfs_quota_us)";
  }
  const std::string start = HalfAProcessor::start(group.folder);
  const Trained part("", "", start);
  EXPECT_TRUE(part.says("1 thread")) << part.ended.output;
  part.ended.has({{"(its part of the processors); 1 processor (", 1}, {", a quota of 0.5", 1}});
  EXPECT_EQ(part.parameters, Trained("OMP_NUM_THREADS=1").parameters);
  const Trained two("OMP_NUM_THREADS=2", "", start);
  EXPECT_TRUE(two.says("2 threads")) << two.ended.output;
  EXPECT_EQ(two.parameters, Trained("OMP_NUM_THREADS=2").parameters);
}

TEST(Environment, OpenMPThatBindsLeavesTheRankItsProcessors) {
  const Ended plain = run_command("env -u OMP_NUM_THREADS " + kHello).finished({"  cpu, "});
  for (const char* bind : {"close", "spread", "true"}) {
    const Ended bound =
        run_command(std::string("env -u OMP_NUM_THREADS OMP_PLACES=cores OMP_PROC_BIND=") + bind + " " + kHello);
    EXPECT_EQ(bound.from("  cpu, "), plain.from("  cpu, ")) << bind;
  }
  const Ended two = run_command("env -u OMP_NUM_THREADS OMP_PROC_BIND=close OMP_PLACES=cores " + kHello + ":2");
  EXPECT_TRUE(LOCKSTEP_HAS_MPI == 0 || two.code == 0) << two.output;
}

/// In every environment that a launcher may leave behind, a program must either succeed or print an error.
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
  struct Started {
    std::string environment;
    std::string program;
    Ended ended{};  ///< exit code and standard error of the program
  };
  std::vector<Started> all;
  const std::string hello = std::string(HELLO_RANKS);
  const std::string train = std::string(TRAIN_RESNET) + " --dry-run --devices cpu --model resnet20 --batch-size 16";
  const std::string alone = std::string(FIRST_STEPS) + " > /dev/full";
  for (const std::string& environment : left) {
    for (const std::string& program : {hello + " --devices cpu > /dev/null", train + " > /dev/null", alone}) {
      all.push_back({environment, program});
    }
  }
  for (const std::string& environment : {std::string("PMI_RANK=1 PMI_SIZE=4"), left.front()}) {
    for (const char* arguments : {" --help", " --lr abc", " --devices 7,"}) {
      all.push_back({environment, hello + arguments});
    }
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {  // in parallel, because many programs wait for ranks that do not exist
    threads.emplace_back([&] {
      for (std::size_t k = next++; k < all.size(); k = next++) {
        all[k].ended = run_command("env " + all[k].environment + " sh -c 'exec " + all[k].program + "'");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Started& each : all) {
    const bool refused = each.program.starts_with(hello) && each.program.find("/dev/null") == std::string::npos;
    EXPECT_TRUE(each.ended.code == 0 || each.ended.count("lockstep: error: ") > 0)
        << each.environment << ' ' << each.program << ": code " << each.ended.code << '\n'
        << each.ended.output;
    EXPECT_TRUE(!refused || each.ended.code == 2) << each.environment << ' ' << each.program;
    EXPECT_TRUE(each.program != alone || each.ended.code == 3) << each.environment << ' ' << each.ended.output;
  }
}

}  // namespace
}  // namespace lockstep
