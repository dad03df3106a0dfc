// The benchmarks as people call them: alone, with ranks that they start themselves, and under mpirun, on sizes that
// cost nothing; what they write is read again.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/runtime/machine/processors.hpp>

#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::bench {
namespace {

using testing::Ended;
using testing::run_command;
using testing::TemporaryFolder;

const std::string kFolder = BENCH_FOLDER;
const std::string kMpirun = MPIRUN;

/// The program with `ranks` ranks; 0: without mpirun.
Ended run(int ranks, const std::string& program, const std::string& options) {
  const std::string launcher = ranks == 0 ? "" : kMpirun + " -np " + std::to_string(ranks) + " ";
  return run_command(launcher + kFolder + "/" + program + " " + options);
}

nlohmann::json read(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

/// What every file holds. Returns the entries by name.
std::vector<std::string> expect_results(const nlohmann::json& root, int ranks) {
  std::vector<std::string> names;
  EXPECT_TRUE(root.contains("context") && root.contains("benchmarks")) << root;
  EXPECT_EQ(root["context"]["ranks"], ranks);
  EXPECT_GT(root["context"]["num_cpus"], 0);
  for (const auto& entry : root["benchmarks"]) {
    names.push_back(entry.at("name"));
    EXPECT_EQ(entry.at("run_type"), "iteration") << entry;
    EXPECT_EQ(entry.at("iterations"), 3) << entry;
    EXPECT_GT(entry.at("real_time"), 0) << entry;
    EXPECT_GE(entry.at("max_ns"), entry.at("min_ns")) << entry;
    EXPECT_EQ(entry.at("ranks"), ranks) << entry;
    EXPECT_FALSE(entry.contains("p95_ns")) << "three values have no 95th percentile: " << entry;
  }
  return names;
}

const nlohmann::json& entry(const nlohmann::json& root, const std::string& name) {
  for (const auto& each : root["benchmarks"]) {
    if (each["name"] == name) {
      return each;
    }
  }
  ADD_FAILURE() << "no " << name << " in " << root;
  return root;
}

void expect_refused(const Ended& ended, const std::string& part) {
  EXPECT_EQ(ended.code, 2) << ended.output;
  ASSERT_EQ(ended.error_lines().size(), 1U) << ended.output;
  EXPECT_NE(ended.error_lines()[0].find(part), std::string::npos) << ended.output;
}

const std::string kTiny = " --benchmark_min_time=3x --pool-bytes 65536 ";

TEST(BenchCopy, OneRank) {
  const TemporaryFolder folder;
  const Ended ended = run(0, "bench_copy",
                          "--devices cpu --min-bytes 4 --max-bytes 4096 --factor 1024 --pieces-bytes 65536" + kTiny +
                              "--benchmark_filter=-numa --benchmark_out=" + folder / "copy.json");
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("no GPU"), std::string::npos) << ended.output;
  const nlohmann::json root = read(folder / "copy.json");
  const auto names = expect_results(root, 1);
  EXPECT_EQ(names.size(), 7U * 2 + 6 * 3 + 1);  // sizes; pieces, each waited for, once, and grouped; beside a matmul
  if (numa_nodes().size() < 2) {
    EXPECT_NE(ended.output.find("numa: the processors of this process are on one node"), std::string::npos);
  }
  const auto& line = entry(root, "copy/host_to_host/pageable/one_way/memcpy/4096");
  EXPECT_EQ(line.at("bytes"), 4096);
  EXPECT_NEAR(line.at("traffic_bytes_per_second"), 2 * line.at("bytes_per_second").get<double>(), 1);
  EXPECT_TRUE(entry(root, "copy/host_to_host/pageable/one_way/copy/65536/beside:matmul").contains("slowdown"));
  entry(root, "copy/host_to_host/pageable/one_way/copy_worker/65536/pieces:4096/wait:each");
  entry(root, "copy/host_to_host/pageable/one_way/copy_worker/65536/pieces:4096/grouped");
}

TEST(BenchCopy, NamesAndBadInput) {
  const Ended listed = run(0, "bench_copy", "--devices cpu --benchmark_list_tests --benchmark_filter=both_ways.*/4$");
  EXPECT_EQ(listed.code, 0);
  EXPECT_EQ(listed.output,
            "copy/host_to_host/pageable/both_ways/memcpy/4\ncopy/host_to_host/pageable/both_ways/streaming/4\n"
            "copy/host_to_host/pageable/both_ways/copy/4\n");
  if (!kMpirun.empty()) {  // ranks with other sizes would wait for each other for ever
    const std::string program = " -np 1 " + kFolder + "/bench_copy --devices cpu --benchmark_list_tests";
    expect_refused(run_command(kMpirun + program + " : " + program + " --min-bytes 8"), "the ranks do not agree");
  }
  const TemporaryFolder folder;
  const auto configured = [&](const std::string& text) {
    std::ofstream(folder / "bench.toml") << text;
    return run(0, "bench_copy", "--benchmark_list_tests --benchmark_filter=memcpy/ --config " + folder / "bench.toml");
  };
  EXPECT_EQ(configured("devices = \"cpu\"\nmin-bytes = 8\nmax-bytes = 8\n").output,
            "copy/host_to_host/pageable/one_way/memcpy/8\ncopy/host_to_host/pageable/both_ways/memcpy/8\n");
  expect_refused(configured("devices = 0\n"), "0,");
  expect_refused(configured("device = 1\n"), "bench.toml:1: device is no option");
  expect_refused(run(0, "bench_copy", "--min-bytes 64 --max-bytes 4"), "sizes are 64 to 4 bytes");
  expect_refused(run(0, "bench_copy", "--min-bytes -4"), "--min-bytes");
  expect_refused(run(0, "bench_copy", "--benchmark_filter='('"), "no regular expression");
  expect_refused(run(0, "bench_copy", "--benchmark_out=/nonexistent/x.json"), "cannot be written");
}

TEST(BenchMatmul, OneRank) {
  const TemporaryFolder folder;
  const Ended ended = run(0, "bench_matmul",
                          "--devices cpu --min-size 4 --max-size 8 --pair-size 16 --products 5"
                          " --benchmark_min_time=3x --benchmark_out=" +
                              folder / "matmul.json");
  ASSERT_EQ(ended.code, 0) << ended.output;
  const nlohmann::json root = read(folder / "matmul.json");
  expect_results(root, 1);
  EXPECT_GT(entry(root, "matmul/cpu/f32/reference/n:8").at("gflop_per_second"), 0);
  EXPECT_EQ(entry(root, "matmul/cpu/norms/logged_each").at("products"), 5);
  entry(root, "matmul/cpu/norms/kept");
  entry(root, "matmul/cpu_and_cpu/two_halves/n:16/at_once");
  entry(root, "matmul/cpu_and_cpu/two_halves/n:16/one_after_the_other");
  EXPECT_EQ(root["conclusions"].size(), 1U) << root;
  EXPECT_EQ(root["conclusions"][0]["text"], "there is no GPU to compare the CPU with");
  EXPECT_NE(ended.output.find("crossover: there is no GPU to compare the CPU with"), std::string::npos);
  expect_refused(run(0, "bench_matmul", "--min-size 9 --max-size 8"), "9 to 8");
}

TEST(BenchAllReduce, OneRankHasNoBusBandwidth) {
  const TemporaryFolder folder;
  const Ended ended =
      run(0, "bench_allreduce",
          "--max-bytes 4 --model resnet20 --collectives all_reduce" + kTiny + "--benchmark_out=" + folder / "one.json");
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("busbw_bytes_per_second=n/a"), std::string::npos) << ended.output;
  const nlohmann::json root = read(folder / "one.json");
  expect_results(root, 1);
  for (const auto& line : root["benchmarks"]) {
    EXPECT_FALSE(line.contains("busbw_bytes_per_second")) << line;
  }
  expect_refused(run(0, "bench_allreduce", "--collectives reduce"), "reduce_scatter");
}

TEST(BenchPrograms, TwoRanks) {
  if (kMpirun.empty()) {
    GTEST_SKIP() << "this build has no MPI";
  }
  const TemporaryFolder folder;
  const Ended reduced =
      run(0, "bench_allreduce",  // starts its ranks itself
          "--devices cpu:2 --min-bytes 4 --max-bytes 1024 --factor 256 --dtypes f32,bf16 --model resnet20"
          " --benchmark_filter='-beside'" +
              kTiny + "--benchmark_out=" + folder / "two.json");
  ASSERT_EQ(reduced.code, 0) << reduced.output;
  const nlohmann::json root = read(folder / "two.json");
  const auto names = expect_results(root, 2);
  // Six collectives, all_gather twice, in both types. Two streams, two sizes (8 bytes where parts of 4 bytes are too
  // small). Four bucket plans on two streams.
  EXPECT_EQ(names.size(), (7U + 7) * 2 * 2 + 4 * 2) << reduced.output;
  const auto& line = entry(root, "all_gather/mpi/f32/out_of_place/stream/1024");
  EXPECT_NEAR(line.at("busbw_bytes_per_second"), line.at("algbw_bytes_per_second").get<double>() / 2, 1);
  EXPECT_GE(line.at("rank_spread"), 1);
  EXPECT_GT(entry(root, "ddp_buckets/mpi/f32/resnet20/one_a_tensor/stream").at("buckets"), 50);
  EXPECT_EQ(entry(root, "ddp_buckets/mpi/f32/resnet20/one_bucket/blocking").at("buckets"), 1);

  const Ended copied = run(0, "bench_copy",
                           "--devices cpu:2 --pieces-bytes 4096 --benchmark_filter=beside:all_reduce" + kTiny +
                               "--benchmark_out=" + folder / "beside.json");
  ASSERT_EQ(copied.code, 0) << copied.output;
  expect_results(read(folder / "beside.json"), 2);

  expect_refused(run(0, "bench_allreduce", "--devices cpu:2 --min-bytes 64 --max-bytes 4"), "sizes are 64 to 4 bytes");
  expect_refused(run(2, "bench_allreduce", "--devices cpu:4"), "cpu:4");
  expect_refused(run(1, "bench_copy", "--devices cpu:4"), "cpu:4");
}

}  // namespace
}  // namespace lockstep::bench
