#include <lockstep/comm/cost/cost_file.hpp>

#include <filesystem>
#include <functional>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

CostFile made_up() {
  CostFile file;
  file.about = {{"date", "2030-01-01T00:00:00Z"}, {"cpu", "a \"fast\" one"}};
  file.ranks = 2;
  file.nodes = 1;
  CostPath path{.name = "all_reduce",
                .text = "all-reduce, 2 ranks",
                .bus_factor = 1,
                .limit_text = "copy",
                .limit_bytes_per_s = 1.25e10};
  path.points = {{8, 100, 1e-6, 0.9e-6, 3e-6, 2e-6, 2.5e-6}, {64, 7, 2e-6, 1e-6, 3e-6, {}, {}}};
  path.model.pieces = {{0, 1e-6, 1.0 / 3}, {32, -1, 0.5}};
  path.held_out = {1, 0.125, 0.25, 0.5};
  file.paths = {path, {.name = "copy/host_to_host", .text = "copy", .model = {{{0, 1e-7, 1e-10}}}}};
  file.pairs = {1024, {0, 1}, {{0, 1e-6}, {2e-6, 0}}};
  file.left_out = {"GPUs: there are none"};
  return file;
}

TEST(CostFile, WhatIsWrittenIsRead) {
  const CostFile file = made_up();
  EXPECT_EQ(parse_cost(cost_text(file), "here"), file);
  CostFile other = file;
  other.paths[0].points[1].median_s *= 1 + 1e-15;
  EXPECT_NE(parse_cost(cost_text(other), "here"), file);  // control: a tiny change makes a difference
  EXPECT_EQ(parse_cost(cost_text(CostFile{}), "here"), CostFile{});

  const std::string path = ::testing::TempDir() + "lockstep_cost_file_test.json";
  replace_file(path, cost_text(file));
  EXPECT_EQ(read_cost(path), file);
  std::filesystem::remove(path);
  EXPECT_THROW((void)read_cost(path), DataError);
}

TEST(CostFile, TheModelOfTheRanksThatTrain) {
  const CostFile file = made_up();
  EXPECT_EQ(all_reduce_cost(file, GradientPath::host, 2, 1, "f"), file.paths[0].model);
  EXPECT_THROW((void)all_reduce_cost(file, GradientPath::host, 4, 1, "f"), DataError);
  EXPECT_THROW((void)all_reduce_cost(file, GradientPath::host, 2, 2, "f"), DataError);
  CostFile without = file;
  without.paths.erase(without.paths.begin());
  EXPECT_THROW((void)all_reduce_cost(without, GradientPath::host, 2, 1, "f"), DataError);
}

TEST(CostFile, GradientsOnGpusHaveAModelOfTheirOwn) {
  CostFile file = made_up();
  EXPECT_EQ(testing::error_of<DataError>([&] { (void)all_reduce_cost(file, GradientPath::nccl, 2, 1, "f"); }),
            "f: has no path 'all_reduce/nccl', expected one: run lockstep-cost with 2 ranks and the GPUs that train "
            "(--devices), in a build with NCCL");
  file.paths.push_back({.name = all_reduce_name(GradientPath::nccl), .text = "nccl", .model = {{{0, 2e-5, 1e-11}}}});
  EXPECT_EQ(all_reduce_cost(file, GradientPath::nccl, 2, 1, "f"), file.paths.back().model);
  EXPECT_EQ(all_reduce_cost(file, GradientPath::host, 2, 1, "f"), file.paths[0].model);
  EXPECT_THROW((void)all_reduce_cost(file, GradientPath::nccl, 4, 1, "f"), DataError);
}

TEST(CostFile, DamagedAndForeignFilesAreNamed) {
  const auto replaced = [](const std::string& from, const std::string& to) {
    std::string text = cost_text(made_up());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const auto replaced_pair = [](double seconds) {
    CostFile file = made_up();
    file.pairs.seconds[1][0] = seconds;
    return cost_text(file);
  };
  const auto replaced_rank = [](int rank) {
    CostFile file = made_up();
    file.pairs.ranks[1] = rank;
    return cost_text(file);
  };
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", "f.json"},
      {"[1, 2]", "is no cost file, expected \"format\": \"lockstep-cost\""},
      {R"({"epoch": 3})", "is no cost file"},
      {R"({"format": 3})", "is no cost file"},
      {cost_text(made_up()).substr(0, 300), "f.json"},
      {replaced("\"version\": 1", "\"version\": 2"), "is of version 2, expected 1"},
      {replaced("\"ranks\": 2", "\"ranks\": 0"), "'ranks' is 0"},
      {replaced("\"bytes\": 64", "\"bytes\": 8"), "point 1: 'bytes' is 8, expected more than 8"},
      {replaced("\"samples\": 7", "\"samples\": 0"), "'samples' is 0"},
      {replaced("\"median_s\": 1e-06", "\"median_s\": -1"), "point 0: 'median_s' is -1, expected seconds above 0"},
      {replaced("\"alpha_s\": 1e-06", "\"alpha_s\": -1"), "alpha_s of piece 0 is -1"},
      {replaced("\"alpha_s\": 1e-06", "\"alpha_s\": 1e305"), "alpha_s of piece 0 is 1e+305, expected seconds, at most"},
      {replaced("\"p95_s\": 2e-06", "\"p95_s\": -1"), "point 0: 'p95_s' is -1, expected seconds above 0"},
      {replaced("\"p99_s\": 2.5e-06", "\"p99_s\": 0"), "point 0: 'p99_s' is 0, expected seconds above 0"},
      {replaced("\"min_s\": 9e-07", "\"min_s\": 2e-06"), "'min_s' is 2e-06, 'median_s' 1e-06, 'max_s' 3e-06, expected"},
      {replaced("\"max_s\": 3e-06", "\"max_s\": 5e-07"), "'max_s' 5e-07, expected them to ascend"},
      {replaced("\"p95_s\": 2e-06", "\"p95_s\": 2.75e-06"), "a percentile is 2.5e-06, expected 2.75e-06 to 3e-06"},
      {replaced("\"p99_s\": 2.5e-06", "\"p99_s\": 4e-06"), "a percentile is 4e-06, expected 2e-06 to 3e-06"},
      {replaced("\"p90\": 0.25", "\"p90\": 0.75"), "'p90' 0.75, 'worst' 0.5, expected them to ascend"},
      {replaced("copy/host_to_host", "all_reduce"), "path 'all_reduce' stands twice"},
      {replaced_rank(7), "'pairs': rank 7, expected 0 to 1"},
      {replaced("\"count\": 1", "\"count\": -3"), "'count' is -3, expected at least 0"},
      {replaced("\"bytes\": 1024", "\"bytes\": -5"), "'pairs': 'bytes' is -5, expected at least 0"},
      {replaced_pair(-1), "'pairs': time 0 of row 1 is -1, expected seconds above 0"},
      {replaced_pair(0), "'pairs': time 0 of row 1 is 0, expected seconds above 0"},
      {replaced("\"left_out\"", "\"left_over\""), "left_out"},
  };
  for (const auto& item : cases) {
    const std::string text = testing::error_of<DataError>([&] { (void)parse_cost(item.text, "f.json"); });
    testing::expect_holds(text, item.says);
    EXPECT_EQ(text.rfind("f.json", 0), 0U) << text << ", expected: " << item.says;
  }
}

}  // namespace
}  // namespace lockstep::comm
