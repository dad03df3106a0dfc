#include "bench/support/runner.hpp"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "bench/support/report.hpp"

namespace lockstep::bench {
namespace {

const std::vector<std::string> kNames{"copy/host/4", "copy/host/64", "copy/device/4"};

TEST(Filter, IsARegularExpressionOnAnyPartOfTheName) {
  EXPECT_EQ(filtered(kNames, ""), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(filtered(kNames, "all"), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(filtered(kNames, "host"), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(filtered(kNames, "/4$"), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(filtered(kNames, "host/4|device"), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(filtered(kNames, "-host"), (std::vector<std::size_t>{2}));
}

TEST(Filter, RefusesWhatIsNoExpressionAndWhatLeavesNothing) {
  EXPECT_THROW((void)filtered(kNames, "("), UsageError);
  EXPECT_THROW((void)filtered(kNames, "peer"), UsageError);
  EXPECT_THROW((void)filtered(kNames, "-copy"), UsageError);
}

TEST(MinTime, SecondsOrIterations) {
  EXPECT_EQ(parse_min_time("0.5").target_seconds, 0.5);
  EXPECT_EQ(parse_min_time("2s").target_seconds, 2);
  EXPECT_EQ(parse_min_time("1e-3").target_seconds, 1e-3);
  EXPECT_EQ(parse_min_time("20x").min_iterations, 20);
  EXPECT_EQ(parse_min_time("20x").max_iterations, 20);
  EXPECT_EQ(parse_min_time("20x").target_seconds, 0);
  for (const char* text : {"", "s", "x", "-1", "0x", "1.5x", "-3x", "fast", "1 s", "nan", "inf", "1e99", "0.5ss"}) {
    EXPECT_THROW((void)parse_min_time(text), UsageError) << text;
  }
}

TEST(SizeSweep, EndsWithTheLargest) {
  EXPECT_EQ(size_sweep(4, 64, 4), (std::vector<std::int64_t>{4, 16, 64}));
  EXPECT_EQ(size_sweep(4, 100, 4), (std::vector<std::int64_t>{4, 16, 64, 100}));
  EXPECT_EQ(size_sweep(7, 7, 2), (std::vector<std::int64_t>{7}));
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_EQ(size_sweep(1, most, std::int64_t{1} << 40), (std::vector<std::int64_t>{1, std::int64_t{1} << 40, most}));
  EXPECT_THROW((void)size_sweep(8, 4, 2), UsageError);
  EXPECT_THROW((void)size_sweep(0, 4, 2), UsageError);
  EXPECT_THROW((void)size_sweep(4, 8, 1), UsageError);
}

Line hundred_values() {
  Line line;
  for (int i = 1; i <= 100; ++i) {
    line.measurement.samples.seconds.push_back(i * 1e-6);
  }
  line.measurement.samples.rank_medians = {1e-6, 2e-6};
  line.measurement.samples.cpu_seconds = 3e-6;
  line.measurement.bytes = 101;
  line.measurement.payload_bytes = 101;
  line.measurement.traffic_bytes = 202;
  line.counters = {{"algbw", 5e9, true}, {"busbw", std::nan(""), true}};
  return line;
}

TEST(Report, JsonIsThatOfGoogleBenchmark) {
  const std::string text = report_json({{"host_name", "node7"}, {"num_cpus", "2"}, {"load_avg", "[1, 2.5]"}},
                                       {report_line("copy/4", hundred_values(), 1, 0)});
  const nlohmann::json root = nlohmann::json::parse(text);
  EXPECT_EQ(root["context"]["host_name"], "node7");
  EXPECT_EQ(root["context"]["num_cpus"], 2);
  EXPECT_EQ(root["context"]["load_avg"][1], 2.5);
  ASSERT_EQ(root["benchmarks"].size(), 1U);
  const nlohmann::json& line = root["benchmarks"][0];
  EXPECT_EQ(line["name"], "copy/4");
  EXPECT_EQ(line["run_name"], "copy/4");
  EXPECT_EQ(line["run_type"], "iteration");
  EXPECT_EQ(line["iterations"], 100);
  EXPECT_EQ(line["repetitions"], 1);
  EXPECT_EQ(line["repetition_index"], 0);
  EXPECT_EQ(line["time_unit"], "ns");
  EXPECT_NEAR(line["real_time"], 50500, 1e-6);
  EXPECT_NEAR(line["cpu_time"], 3000, 1e-6);
  EXPECT_NEAR(line["p50_ns"], 50000, 1e-6);
  EXPECT_NEAR(line["p95_ns"], 95000, 1e-6);
  EXPECT_NEAR(line["p99_ns"], 99000, 1e-6);
  EXPECT_EQ(line["ranks"], 2);
  EXPECT_EQ(line["rank_spread"], 2);
  EXPECT_NEAR(line["bytes_per_second"], 101 / 50.5e-6, 1);
  EXPECT_NEAR(line["traffic_bytes_per_second"], 202 / 50.5e-6, 1);
  EXPECT_EQ(line["algbw"], 5e9);
  EXPECT_FALSE(line.contains("busbw")) << "a number that does not apply";
}

TEST(Report, ConclusionsStandBesideTheLines) {
  const auto root = nlohmann::json::parse(report_json(
      {}, {}, {{"crossover/cuda:0", "from 812 on", {{"from_size", 812.5}, {"crossings", std::nan("")}}}, {"b", "c"}}));
  EXPECT_TRUE(root["benchmarks"].empty());
  ASSERT_EQ(root["conclusions"].size(), 2U);
  EXPECT_EQ(root["conclusions"][0]["name"], "crossover/cuda:0");
  EXPECT_EQ(root["conclusions"][0]["text"], "from 812 on");
  EXPECT_EQ(root["conclusions"][0]["from_size"], 812.5);
  EXPECT_FALSE(root["conclusions"][0].contains("crossings"));
  EXPECT_FALSE(nlohmann::json::parse(report_json({}, {})).contains("conclusions"));
}

TEST(Report, FewValuesHaveNoHighPercentiles) {
  Line line = hundred_values();
  line.measurement.samples.seconds.resize(19);
  const auto entry = nlohmann::json::parse(report_json({}, {report_line("a", line, 1, 0)}))["benchmarks"][0];
  EXPECT_TRUE(entry.contains("p50_ns"));
  EXPECT_FALSE(entry.contains("p95_ns"));
  EXPECT_FALSE(entry.contains("p99_ns"));
  const std::string row = console_row(report_line("a", line, 1, 0), 9);
  EXPECT_NE(row.find("n/a"), std::string::npos) << row;
}

TEST(Report, RepetitionsHaveAggregates) {
  std::vector<ReportLine> runs;
  for (int i = 0; i < 3; ++i) {
    Line line;
    line.measurement.samples.seconds = {static_cast<double>(i + 1)};
    line.counters = {{"rate", i + 2.0}};
    runs.push_back(report_line("a/1", line, 3, i));
  }
  const std::vector<ReportLine> all = aggregates(runs);
  ASSERT_EQ(all.size(), 4U);
  const auto root = nlohmann::json::parse(report_json({}, all))["benchmarks"];
  EXPECT_EQ(root[0]["name"], "a/1_mean");
  EXPECT_EQ(root[0]["run_name"], "a/1");
  EXPECT_EQ(root[0]["run_type"], "aggregate");
  EXPECT_EQ(root[0]["aggregate_name"], "mean");
  EXPECT_EQ(root[0]["aggregate_unit"], "time");
  EXPECT_EQ(root[0]["iterations"], 3);
  EXPECT_EQ(root[0]["real_time"], 2e9);
  EXPECT_EQ(root[0]["rate"], 3);
  EXPECT_EQ(root[1]["real_time"], 2e9);
  EXPECT_EQ(root[2]["aggregate_name"], "stddev");
  EXPECT_EQ(root[2]["real_time"], 1e9);
  EXPECT_EQ(root[3]["aggregate_name"], "cv");
  EXPECT_EQ(root[3]["aggregate_unit"], "percentage");
  EXPECT_EQ(root[3]["real_time"], 0.5);
}

TEST(Report, NumbersForPeople) {
  EXPECT_EQ(time_text(1.234e-9), "1.23 ns");
  EXPECT_EQ(time_text(12.34e-6), "12.3 us");
  EXPECT_EQ(time_text(0.9999), "1000 ms");
  EXPECT_EQ(time_text(2), "2.00 s");
  EXPECT_EQ(time_text(std::nan("")), "n/a");
  EXPECT_EQ(rate_text(12.345e9), "12.35 GB/s");
  EXPECT_EQ(rate_text(4000), "4.00 kB/s");
  EXPECT_EQ(rate_text(0.5), "0.5 B/s");
}

}  // namespace
}  // namespace lockstep::bench
