// Tests lockstep-cost as users call it, with very little time. Also tests the functions that plan the survey.
#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tools/lockstep_cost/survey.hpp"

namespace lockstep::tools {
namespace {

using testing::Ended;
using testing::run_command;

TEST(CostSurvey, AtMost24Sizes) {
  EXPECT_EQ(survey_sizes(8), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(survey_sizes(100), (std::vector<std::int64_t>{8, 16, 32, 64}));
  const auto all = survey_sizes(std::int64_t{64} << 20);
  EXPECT_EQ(all.size(), 24U);
  EXPECT_EQ(all.back(), std::int64_t{64} << 20);
  const auto wide = survey_sizes(std::int64_t{1} << 34);
  EXPECT_LE(wide.size(), 24U);
  EXPECT_EQ(wide[1], 32);
  EXPECT_THROW((void)survey_sizes(7), UsageError);
}

TEST(CostSurvey, TimeLeft) {
  EXPECT_NEAR(seconds_left(0, 6, 0, 60), 60, 1e-9);
  EXPECT_NEAR(seconds_left(2, 6, 25, 60), 35, 1e-9);
  // After 60 s, two of six paths are finished and a third path is being measured. So six paths take 120 s, and 60 s are
  // left, although 60 s were planned for all paths.
  EXPECT_NEAR(seconds_left(2, 6, 60, 60), 60, 1e-9);
  EXPECT_GT(seconds_left(5, 6, 60, 60), 0);
}

TEST(CostSurvey, PercentilesNeedSinglyTimedCalls) {
  measure::Samples samples;
  samples.seconds.assign(50, 1e-3);
  samples.seconds[7] = 2e-3;
  const comm::CostPoint point = cost_point(64, samples);
  EXPECT_EQ(point.samples, 50);
  EXPECT_EQ(point.median_s, 1e-3);
  EXPECT_EQ(point.max_s, 2e-3);
  EXPECT_TRUE(point.p95_s);
  EXPECT_FALSE(point.p99_s);  // 100 samples are needed.
  samples.calls = 2;
  EXPECT_FALSE(cost_point(64, samples).p95_s);
}

TEST(CostSurvey, NoiseIsThatOfTheMedians) {
  measure::Samples quiet;
  quiet.seconds.assign(100, 1e-3);
  EXPECT_EQ(noise_of({quiet, quiet}), 0.05);
  EXPECT_EQ(noise_of({}), 0.05);
  measure::Samples wild;
  for (int i = 0; i < 8; ++i) {
    wild.seconds.push_back(i % 2 == 0 ? 1e-3 : 3e-3);
  }
  EXPECT_EQ(noise_of({wild, wild, quiet}), 0.3);
}

TEST(CostSurvey, PeersAreAmongTheGpusThatWereGiven) {
  const std::vector<GpuInfo> gpus{{.index = 0, .uuid = "a"}, {.index = 1, .uuid = "b"}, {.index = 2, .uuid = "c"}};
  // GPU 1 was not requested, so GPU 2 is the next one.
  EXPECT_EQ(peer_gpu(gpus, "a", {"a", "c"}), Device::cuda(2));
  EXPECT_EQ(peer_gpu(gpus, "c", {"a", "c"}), Device::cuda(0));
  EXPECT_EQ(peer_gpu(gpus, "b", {"c", "b", "a"}), Device::cuda(0));
  EXPECT_EQ(peer_gpu(gpus, "a", {"a"}), std::nullopt);
  EXPECT_EQ(peer_gpu({gpus[0]}, "a", {"a", "b"}), std::nullopt);  // each rank sees only its own GPU
  EXPECT_EQ(peer_gpu(gpus, "a", {"a", "a"}), std::nullopt);
}

TEST(CostProgram, TwoRanksWriteAFileThatThePlannerReads) {
  const lockstep::testing::TemporaryFolder folder;
  const std::string out = folder / "cost";
  const bool mpi = LOCKSTEP_HAS_MPI != 0;
  const Ended ended =  // the program starts its two ranks itself
      run_command(std::string(LOCKSTEP_COST) + " --devices " + (mpi ? "cpu:2" : "cpu") +
                  " --seconds 0.6 --max-bytes 65536 --out " + out)
          .finished();
  EXPECT_LT(ended.seconds, 60);
  const comm::CostFile file = comm::read_cost(out + "/cost.json");
  EXPECT_EQ(file.ranks, mpi ? 2 : 1);
  std::set<std::string> names;
  for (const comm::CostPath& path : file.paths) {
    names.insert(path.name);
    ASSERT_GE(path.points.size(), 4U) << path.name << '\n' << ended.output;
    EXPECT_EQ(path.points[3].bytes, 64);
    const std::size_t sizes = path.points.size();
    EXPECT_EQ(path.held_out.count, static_cast<std::int64_t>(sizes / 2));
    const bool said = std::any_of(file.left_out.begin(), file.left_out.end(),
                                  [&](const std::string& text) { return text.starts_with(path.text + " from "); });
    EXPECT_EQ(said, sizes < 14) << path.name << '\n' << ended.output;  // on a busy machine large sizes may be left out
    EXPECT_GT(path.limit_bytes_per_s, 0);
    // At half of the sizes or more, the model must agree within a factor of 2 with the times to which it was fitted.
    // This must hold on a busy machine, too.
    const auto close = std::count_if(path.points.begin(), path.points.end(), [&](const comm::CostPoint& p) {
      const double ratio = path.model.predict(static_cast<double>(p.bytes)) / p.median_s;
      return ratio > 0.5 && ratio < 2;
    });
    EXPECT_GE(close, static_cast<std::ptrdiff_t>(sizes / 2)) << path.name;
  }
  std::set<std::string> expected{"copy/host/memcpy", "copy/host/streaming", "copy/host/copy"};
  if (mpi) {
    expected.insert({"all_reduce", "send_recv/0_1"});
    EXPECT_GT(comm::all_reduce_cost(file, comm::GradientPath::host, 2, 1, "cost.json").predict(1e6), 0);
    ASSERT_EQ(file.pairs.seconds.size(), 2U);
    EXPECT_GT(file.pairs.seconds[0][1], 0);
  }
  EXPECT_EQ(names, expected);
  ASSERT_FALSE(file.left_out.empty());
  testing::expect_holds(file.left_out.back(), "The GPU half: the host was asked for");
  ended.says({"left: memcpy, 8 B"});
  EXPECT_EQ(file_exists(out + "/all_reduce.svg"), mpi);
  EXPECT_TRUE(file_exists(out + "/copies.svg"));
  const std::string report = read_file(out + "/cost.md", 1 << 20);
  testing::expect_holds(report, {"## To remember", "- threads: "});

  const std::string config = folder / "cost.toml";
  replace_file(config, "devices = \"cpu\"\nseconds = 0.05\nmax-bytes = 32\n");
  run_command(std::string(LOCKSTEP_COST) + " --config " + config + " --max-bytes 64 --out " + out).finished();
  EXPECT_FALSE(file_exists(out + "/all_reduce.svg")) << "of the run before";
  EXPECT_FALSE(file_exists(out + "/pairs.svg"));
  const comm::CostFile alone = comm::read_cost(out + "/cost.json");
  EXPECT_TRUE(alone.about.at("command").starts_with("lockstep-cost --config "));
  EXPECT_EQ(alone.paths.at(0).points.back().bytes, 64) << "the command line before the file";
}

TEST(CostProgram, BadInputIsNamed) {
  const lockstep::testing::TemporaryFolder folder;
  const std::string config = folder / "cost.toml";
  replace_file(config, "seconds = 1\nsizes = 3\n");
  testing::expect_refusals([](const std::string& options) { return run_command(LOCKSTEP_COST " " + options); },
                           {{"", {"--out"}},
                            {"--out x --max-bytes 4", {"--max-bytes"}},
                            {"--out x --config " + config, {config + ":2: sizes is no option"}}});
  const Ended nowhere = run_command(LOCKSTEP_COST " --devices cpu --out /dev/null/cost");
  EXPECT_NE(nowhere.code, 0);
  EXPECT_LT(nowhere.seconds, 30) << "before the minute of measuring";
  nowhere.says({"/dev/null/cost: cannot be made"});
}

}  // namespace
}  // namespace lockstep::tools
