// Tests the benchmark programs as users call them, with tiny sizes. They run with one rank, with ranks that the program
// starts, and under mpirun. The tests also read the files of results.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/runtime/machine/processors.hpp>

#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::bench {
namespace {

using testing::Ended;
using testing::expect_refused;
using testing::run_as_ranks;
using testing::run_command;
using testing::TemporaryFolder;

const std::string kFolder = BENCH_FOLDER;
const std::string kMpirun = MPIRUN;

/// Runs a command with `ranks` ranks; 0: without mpirun.
Ended run_ranks(int ranks, const std::string& command) {
  return run_command((ranks == 0 ? "" : kMpirun + " -np " + std::to_string(ranks) + " ") + command);
}
Ended run(int ranks, const std::string& program, const std::string& options) {
  return run_ranks(ranks, kFolder + "/" + program + " " + options);
}

nlohmann::json read(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

/// Exit and output of a program, and the file of results that it wrote.
struct Measured {
  Ended ended;
  nlohmann::json root;
};
Measured measure(const std::string& program, const std::string& options) {
  const TemporaryFolder folder;
  const std::string file = folder / "results.json";
  Ended ended = run(0, program, options + " --benchmark_out=" + file);
  ended.finished();
  return {std::move(ended), read(file)};
}

/// Expects that each program refuses its options. In each Refusal, `options` begins with the program's name.
void expect_refusals(const std::vector<testing::Refusal>& refusals, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
  testing::expect_refusals([](const std::string& call) { return run_command(kFolder + "/" + call); }, refusals, file,
                           line);
}

/// Expects that `root` has the fields by which compare.py of Google Benchmark (gbench/report.py) pairs entries of two
/// files.
void expect_comparable(const nlohmann::json& root) {
  ASSERT_TRUE(root.is_object() && root.contains("context") && root.contains("benchmarks")) << root;
  EXPECT_TRUE(root["context"].at("date").is_string());
  EXPECT_TRUE(root["context"].at("num_cpus").is_number_integer());
  std::vector<std::string> names;
  for (const auto& entry : root["benchmarks"]) {
    EXPECT_TRUE(entry.at("name").is_string()) << entry;
    EXPECT_TRUE(entry.at("real_time").is_number() && entry.at("cpu_time").is_number()) << entry;
    EXPECT_EQ(entry.at("time_unit"), "ns") << entry;
    EXPECT_TRUE(entry.at("run_type") == "iteration" || entry.at("run_type") == "aggregate") << entry;
    EXPECT_TRUE(entry.at("repetitions").is_number_integer()) << entry;
    if (entry.at("run_type") == "aggregate") {
      EXPECT_TRUE(entry.at("aggregate_name").is_string()) << entry;
    } else {
      names.push_back(entry.at("name"));
    }
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << "two cases have one name: " << root;
}

const std::string kTiny = " --iterations 3 --pool-bytes 65536 ";
const std::string kSuffix = "/iterations:3/manual_time";

/// Checks the results of runs of three iterations. Returns the names of the cases without the suffixes that Google
/// Benchmark adds.
std::vector<std::string> expect_results(const nlohmann::json& root, int ranks) {
  expect_comparable(root);
  std::vector<std::string> names;
  EXPECT_EQ(root["context"]["ranks"], std::to_string(ranks));
  for (const auto& entry : root["benchmarks"]) {
    const std::string name = entry.at("name");
    EXPECT_TRUE(name.ends_with(kSuffix)) << name;
    names.push_back(name.substr(0, name.size() - kSuffix.size()));
    EXPECT_EQ(entry.at("run_type"), "iteration") << entry;
    EXPECT_EQ(entry.at("iterations"), 3) << entry;
    EXPECT_GT(entry.at("real_time"), 0) << entry;
    EXPECT_GE(entry.at("max_s"), entry.at("min_s")) << entry;
    EXPECT_EQ(entry.contains("rank_spread"), ranks > 1) << entry;
    EXPECT_FALSE(entry.contains("p95_s")) << "three values have no 95th percentile: " << entry;
  }
  return names;
}

const nlohmann::json& entry(const nlohmann::json& root, const std::string& name) {
  for (const auto& each : root["benchmarks"]) {
    if (each["name"] == name + kSuffix) {
      return each;
    }
  }
  ADD_FAILURE() << "no " << name << " in " << root;
  return root;
}

TEST(Ranks, MakeTheSameCallsAndReportTheSlowest) {
  if (kMpirun.empty()) {
    GTEST_SKIP() << "this build has no MPI";
  }
  const TemporaryFolder folder;
  const std::string program = std::string(RANKS_PROGRAM) + " --devices cpu --benchmark_out=" + folder / "ranks.json";
  // Google Benchmark would choose the number of iterations in each rank separately. The program must make the ranks
  // call the slow function equally often.
  const Ended ended =
      run_ranks(2, program + " --benchmark_min_time=0.03 --benchmark_repetitions=2 --benchmark_filter=-fails")
          .finished();
  std::istringstream calls(ended.output.substr(ended.output.find("calls:") + 6));
  long first = 0;
  long second = 0;
  calls >> first >> second;
  EXPECT_GE(first, 6) << "two runs, each with a warm-up and a call that shows how long it takes: " << ended.output;
  EXPECT_EQ(first, second) << ended.output;
  EXPECT_EQ(ended.count("UserCounters"), 1) << "one rank reports: " << ended.output;

  const nlohmann::json root = read(folder / "ranks.json");
  ASSERT_TRUE(root.is_object()) << "one rank writes";
  EXPECT_EQ(root["context"]["ranks"], "2");
  EXPECT_EQ(root["context"]["about"], "ranks");
  std::vector<std::string> aggregates;
  for (const auto& each : root["benchmarks"]) {
    if (each["run_name"] == "unsupported/rank_1/manual_time") {
      EXPECT_EQ(each["error_message"], "rank 1 cannot") << "and rank 0 does not wait for it";
      continue;
    }
    EXPECT_EQ(each["run_name"], "slow/rank_1/manual_time");
    if (each["run_type"] == "aggregate") {
      aggregates.push_back(each["aggregate_name"]);
      continue;
    }
    const double seconds = each.at("real_time").get<double>() * 1e-9;
    EXPECT_GE(seconds, 2e-3) << "the time of rank 1: " << each;
    EXPECT_LT(each.at("mean_over_ranks_s"), seconds) << each;
    EXPECT_GT(each.at("rank_spread"), 1) << each;
    EXPECT_NEAR(each.at("things_per_second"), 10 / seconds, 1e-3 / seconds) << each;
    EXPECT_NEAR(each.at("share"), 1 / seconds, 1e-3 / seconds) << each;
    EXPECT_EQ(each.at("fixed"), 5);
    EXPECT_FALSE(each.contains("nothing") || each.contains("nothing_either")) << "NaN is no JSON: " << each;
  }
  EXPECT_EQ(aggregates, (std::vector<std::string>{"mean", "median", "stddev", "cv"}));

  testing::expect_error(run_ranks(2, program + " --benchmark_filter=fails"), 3, {"rank 1: a wrong result"});
}

TEST(BenchCopy, OneRank) {
  const auto [ended, root] =
      measure("bench_copy", "--devices cpu --min-bytes 4 --max-bytes 4096 --factor 1024 --pieces-bytes 65536" + kTiny +
                                "--benchmark_filter=-numa");
  ended.says({"no GPU"});
  const auto names = expect_results(root, 1);
  // Expects 7 cases for each of the 2 sizes. Expects 6 * 3 cases for copies in pieces: with a wait for each piece, with
  // one wait for all pieces, and grouped. Expects one case of a copy beside a matmul.
  EXPECT_EQ(names.size(), 7U * 2 + 6 * 3 + 1);
  if (numa_nodes().size() < 2) {
    ended.says({"numa: the processors of this process are on one node"});
  }
  const auto& line = entry(root, "copy/host_to_host/pageable/one_way/memcpy/4096");
  EXPECT_EQ(line.at("bytes"), 4096);
  EXPECT_NEAR(line.at("bytes_per_second"), 4096e9 / line.at("real_time").get<double>(), 1e6);
  EXPECT_NEAR(line.at("traffic_bytes_per_second"), 2 * line.at("bytes_per_second").get<double>(), 1);
  EXPECT_TRUE(entry(root, "copy/host_to_host/pageable/one_way/copy/65536/beside:matmul").contains("slowdown"));
  entry(root, "copy/host_to_host/pageable/one_way/copy_worker/65536/pieces:4096/wait:each");
  entry(root, "copy/host_to_host/pageable/one_way/copy_worker/65536/pieces:4096/grouped");
}

TEST(BenchCopy, NamesAndBadInput) {
  const Ended listed =
      run(0, "bench_copy", "--devices cpu --benchmark_list_tests --benchmark_filter=both_ways.*/4/").finished();
  EXPECT_EQ(listed.output,
            "copy/host_to_host/pageable/both_ways/memcpy/4/manual_time\n"
            "copy/host_to_host/pageable/both_ways/streaming/4/manual_time\n"
            "copy/host_to_host/pageable/both_ways/copy/4/manual_time\n");
  EXPECT_EQ(run_command("env BENCHMARK_FILTER=none " + kFolder +
                        "/bench_copy --devices cpu --benchmark_list_tests --benchmark_filter=both_ways.*/4/")
                .output,
            listed.output)
      << "the environment decides nothing: it may differ between ranks";
  // Ranks with different sizes must be refused, because they would wait for each other forever.
  if (!kMpirun.empty()) {
    const std::string program = "exec " + kFolder + "/bench_copy --devices cpu --benchmark_list_tests";
    expect_refused(run_as_ranks(kMpirun, {program, program + " --min-bytes 8"}), {"the ranks do not agree"});
  }
  const TemporaryFolder folder;
  const auto configured = [&](const std::string& text) {
    std::ofstream(folder / "bench.toml") << text;
    return run(0, "bench_copy", "--benchmark_list_tests --config " + folder / "bench.toml");
  };
  EXPECT_EQ(configured("devices = \"cpu\"\nmin-bytes = 8\nmax-bytes = 8\nbenchmark_filter = \"memcpy/8/m\"\n").output,
            "copy/host_to_host/pageable/one_way/memcpy/8/manual_time\n"
            "copy/host_to_host/pageable/both_ways/memcpy/8/manual_time\n");
  expect_refused(configured("devices = 0\n"), {"0,"});
  expect_refused(configured("device = 1\n"), {"bench.toml:1: device is no option"});
  expect_refusals({{"bench_copy --min-bytes 64 --max-bytes 4", {"sizes are 64 to 4 bytes"}},
                   {"bench_copy --min-bytes -4", {"--min-bytes"}},
                   {"bench_copy --devices cpu --benchmark_filter='('", {"--benchmark_filter is '('"}},
                   {"bench_copy --devices cpu --benchmark_filter=nothing", {"--benchmark_filter is 'nothing'"}},
                   {"bench_copy --benchmark_min_time=20x", {"'20x', expected seconds"}},
                   {"bench_copy --benchmark_out_format=xml", {"xml"}},
                   {"bench_copy --devices cpu --benchmark_context=a", {"'--benchmark_context=a'"}},
                   {"bench_copy --benchmark_nonsense=1", {"--benchmark_nonsense=1"}},
                   {"bench_copy --devices cpu --benchmark_out=/nonexistent/x.json", {"cannot be written"}},
                   {"bench_matmul --min-size 9 --max-size 8", {"9 to 8"}},
                   {"bench_kernels --nonsense", {"--nonsense"}},
                   {"bench_embedding --gates nothing", {"no gate"}},
                   {"bench_embedding --gates '('", {"regular expression"}},
                   {"bench_allreduce --collectives reduce", {"reduce_scatter"}}});
}

TEST(BenchMatmul, OneRank) {
  const nlohmann::json root =
      measure("bench_matmul", "--devices cpu --min-size 4 --max-size 8 --pair-size 16 --products 5 --iterations 3")
          .root;
  expect_results(root, 1);
  EXPECT_GT(entry(root, "matmul/cpu/f32/reference/n:8").at("flop_per_second"), 0);
  EXPECT_EQ(entry(root, "matmul/cpu/norms/logged_each").at("products"), 5);
  entry(root, "matmul/cpu/norms/kept");
  entry(root, "matmul/cpu_and_cpu/two_halves/n:16/at_once");
  entry(root, "matmul/cpu_and_cpu/two_halves/n:16/one_after_the_other");
  EXPECT_EQ(root.at("context").at("left_out"), "there is no GPU to compare the CPU with");
}

TEST(BenchKernels, OneRank) {
  const std::string options = "--devices cpu --threads 1 --benchmark_filter=";
  const nlohmann::json root = measure("bench_kernels", options + "relu_forward --iterations 3").root;
  for (const std::string& name : expect_results(root, 1)) {
    const auto& line = entry(root, name);
    EXPECT_EQ(line.at("label"), "f32");
    EXPECT_GT(line.at("percent_of_copy"), 0) << line;
    EXPECT_FALSE(line.contains("flop_per_second")) << "nobody counts those of relu: " << line;
    EXPECT_FALSE(line.contains("percent_of_fma")) << line;
  }
  EXPECT_EQ(root["context"]["threads"], "1");
  EXPECT_GT(std::stod(root["context"]["copy_bytes_per_second"].get<std::string>()), 1e8);
  const double limit = std::stod(root["context"]["fma_flop_per_second"].get<std::string>());
  EXPECT_GT(limit, 1e9);
  const nlohmann::json products = measure("bench_kernels", options + "128x10x64 --iterations 3").root;
  int counted = 0;
  for (const std::string& name : expect_results(products, 1)) {
    const auto& line = entry(products, name);
    if (!line.contains("flop_per_second")) {
      continue;
    }
    EXPECT_EQ(line.contains("percent_of_fma"), line.at("label") == "f32") << line;
    counted += line.contains("percent_of_fma") ? 1 : 0;
  }
  EXPECT_GT(counted, 0);

  // The time limit leaves no time for the first case. The file must be valid and report this case as left out.
  const nlohmann::json late = measure("bench_kernels", options + "relu_forward --max-seconds 1e-9").root;
  expect_comparable(late);
  ASSERT_EQ(late["benchmarks"].size(), root["benchmarks"].size());
  EXPECT_EQ(late["benchmarks"][0]["error_message"], "left out: 1e-09 s were over");
}

TEST(BenchLoader, SmallImages) {
  const nlohmann::json root = measure("bench_loader", "--iterations 3 --benchmark_filter='memory/32/(none|all)'").root;
  EXPECT_EQ(expect_results(root, 1), (std::vector<std::string>{"loader/memory/32/none", "loader/memory/32/all"}));
  for (const auto& entry : root["benchmarks"]) {
    EXPECT_GT(entry.at("images_per_second"), 0) << entry;
  }
}

TEST(BenchLoader, PackedFilesBesideTheFolder) {
  const TemporaryFolder folder;
  const Ended ended =
      run(0, "bench_loader", "--iterations 3 --benchmark_filter='/224/middle' --benchmark_out=" + folder / "l.json");
  if (ended.count("this build has no libjpeg-turbo") > 0) {
    GTEST_SKIP() << "this build decodes no pictures";
  }
  ended.finished();
  EXPECT_EQ(expect_results(read(folder / "l.json"), 1),
            (std::vector<std::string>{"loader/folder/224/middle", "loader/packed/files/224/middle",
                                      "loader/packed/pixels/224/middle"}));
}

// Every implementation must give the result of plain loops; otherwise the program stops.
TEST(BenchEmbedding, CasesAndGates) {
  auto [ended, root] = measure("bench_embedding",
                               "--iterations 3 "
                               "'--benchmark_filter=f32/(n:8/(c|cpp|outputs|samples|exact)/"
                               "|boxes|threads|(strided|train|convolution)/n:32/)|f64/n:32/(fortran|torch)/'");
  std::vector<std::string> missing;
  nlohmann::json there = nlohmann::json::array();
  for (const auto& each : root["benchmarks"]) {
    if (each.value("error_occurred", false)) {
      missing.push_back(each.at("error_message"));
    } else {
      there.push_back(each);
    }
  }
  // A case of an implementation that this build lacks must report the reason.
  for (const std::string& reason : missing) {
    EXPECT_TRUE(reason.find("libtorch") == 0 || reason == "this build has no Fortran compiler") << reason;
  }
  root["benchmarks"] = there;
  EXPECT_EQ(expect_results(root, 1).size() + missing.size(), 14U) << ended.output;

  run(0, "bench_embedding", "--gates f64/n:32 --slack 1e6").finished({}, {{"holds  f64/n:32/c over loop", 1}});
  run(0, "bench_embedding", "--gates f64/n:32 --slack 0").exits(3, {}, {{"FAILS  f64/n:32/c over loop", 1}});
}

TEST(BenchAllReduce, OneRankHasNoBusBandwidth) {
  const nlohmann::json root =
      measure("bench_allreduce", "--max-bytes 4 --model resnet20 --collectives all_reduce" + kTiny).root;
  expect_results(root, 1);
  for (const auto& line : root["benchmarks"]) {
    EXPECT_TRUE(line.contains("algbw")) << line;
    EXPECT_FALSE(line.contains("busbw") || line.contains("percent_of_copy")) << line;
  }
}

TEST(BenchPrograms, TwoRanks) {
  if (kMpirun.empty()) {
    GTEST_SKIP() << "this build has no MPI";
  }
  const auto [reduced, root] =  // the program starts its ranks itself
      measure("bench_allreduce",
              "--devices cpu:2 --min-bytes 4 --max-bytes 1024 --factor 256 --dtypes f32,bf16 --model resnet20 "
              "--benchmark_filter='-beside'" +
                  kTiny);
  const auto names = expect_results(root, 2);
  // Six collectives give 7 rows, because all_gather is measured in place and out of place. Each row exists for 2 types,
  // 2 streams and 2 sizes. In addition, 4 bucket plans are measured on 2 streams.
  EXPECT_EQ(names.size(), (7U + 7) * 2 * 2 + 4 * 2) << reduced.output;
  const auto& line = entry(root, "all_gather/mpi/f32/out_of_place/stream/1024");
  EXPECT_NEAR(line.at("busbw"), line.at("algbw").get<double>() / 2, 1);
  EXPECT_GT(line.at("percent_of_copy"), 0);
  EXPECT_GE(line.at("rank_spread"), 1);
  EXPECT_GT(entry(root, "ddp_buckets/mpi/f32/resnet20/one_a_tensor/stream").at("buckets"), 50);
  EXPECT_EQ(entry(root, "ddp_buckets/mpi/f32/resnet20/one_bucket/blocking").at("buckets"), 1);

  expect_results(
      measure("bench_copy", "--devices cpu:2 --pieces-bytes 4096 --benchmark_filter=beside:all_reduce" + kTiny).root,
      2);

  expect_refused(run(0, "bench_allreduce", "--devices cpu:2 --min-bytes 64 --max-bytes 4"),
                 {"sizes are 64 to 4 bytes"});
  expect_refused(run(2, "bench_allreduce", "--devices cpu:4"), {"cpu:4"});
  expect_refused(run(1, "bench_copy", "--devices cpu:4"), {"cpu:4"});
}

}  // namespace
}  // namespace lockstep::bench
