// Tests the report, plots and limits of lockstep-cost from made-up data.
#include "tools/lockstep_cost/report.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/cost/cost_fit.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "tests/support/error_of.hpp"
#include "tools/lockstep_cost/limits.hpp"
#include "tools/svg/plot.hpp"

namespace lockstep::tools {
namespace {

using testing::expect_holds;
using testing::expect_lacks;

using comm::CostFile;
using comm::CostPath;

CostPath path_of(const std::string& name, const std::string& text, double alpha, double beta) {
  CostPath path{.name = name, .text = text};
  std::vector<comm::TimedSize> points;
  for (int i = 3; i <= 26; ++i) {
    const double bytes = std::ldexp(1.0, i);
    const double seconds = alpha + beta * bytes;
    path.points.push_back({.bytes = std::int64_t{1} << i,
                           .samples = 200,
                           .median_s = seconds,
                           .min_s = seconds * 0.9,
                           .max_s = seconds * 3});
    points.push_back({bytes, seconds});
  }
  path.points.back().p95_s = 2 * path.points.back().median_s;
  path.model = comm::fit_cost(points);
  path.held_out = comm::held_out_errors(points);
  return path;
}

CostFile made_up() {
  CostFile file;
  file.about = {{"host", "node<1>&"}, {"cpu", "A \"fast\" one"}, {"mpi", "Some MPI"}, {"command", "lockstep-cost"}};
  file.ranks = 4;
  file.paths = {path_of("copy/host/copy", "copy(), 2 threads", 1e-7, 1e-10),
                path_of("all_reduce", "all-reduce", 2e-6, 5e-10)};
  file.paths[1].bus_factor = 1.5;
  file.paths[1].limit_text = "streaming copy";
  file.paths[1].limit_bytes_per_s = 6e9;
  file.pairs = {1 << 20, {0, 1, 2, 3}, {}};
  for (int i = 0; i < 4; ++i) {
    file.pairs.seconds.emplace_back(4, 1e-4);
    file.pairs.seconds.back()[static_cast<std::size_t>(i)] = 0;
  }
  file.left_out = {"The GPU half: there is none."};
  return file;
}

/// Returns the first fault of an SVG text: tags must be closed in order, attributes quoted, & and < escaped. Checks
/// only the parts of SVG that lockstep uses.
std::string fault_of(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const std::size_t end = xml.find(';', at);
      const std::string name = xml.substr(at + 1, end - at - 1);
      if (name != "amp" && name != "lt" && name != "gt" && name != "quot") {
        return "a bare & at " + std::to_string(at);
      }
    }
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) {
      return "a tag without an end";
    }
    std::string tag = xml.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != std::string::npos) {
      return "a broken tag: " + tag;
    }
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) {
        return "closed in the wrong order: " + tag;
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

TEST(CostPlot, EverythingDrawnIsWellFormedAndInside) {
  ASSERT_EQ(fault_of("<a b=\"c\"><d/>&lt;</a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a>&</a>", "<a b=\"></a>", "<a", "<a><b></a></b>"}) {
    EXPECT_NE(fault_of(bad), "") << bad;  // the control
  }
  const auto drawn = plots(made_up());
  ASSERT_EQ(drawn.size(), 3U);
  EXPECT_EQ(drawn[0].first, "copies.svg");
  EXPECT_EQ(drawn[1].first, "all_reduce.svg");
  EXPECT_EQ(drawn[2].first, "pairs.svg");
  for (const auto& [name, svg] : drawn) {
    EXPECT_EQ(fault_of(svg), "") << name;
    EXPECT_EQ(svg.rfind("<svg xmlns=", 0), 0U);
    EXPECT_EQ(svg.find("nan"), std::string::npos) << name;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << name;
    expect_lacks(svg, {"<script", "href"});
  }
  expect_holds(drawn[0].second, "A &quot;fast&quot; one");
  expect_holds(drawn[1].second, "streaming copy: 6.00 GB/s");
  // Each curve must have 24 dots, and 12 cells must have a number.
  const auto count = [](const std::string& text, const std::string& what) {
    int n = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++n;
    }
    return n;
  };
  EXPECT_EQ(count(drawn[0].second, "<circle"), 24);
  EXPECT_EQ(count(drawn[1].second, "<circle"), 48);
  EXPECT_EQ(count(drawn[2].second, "class=\"value\""), 12);
}

TEST(CostPlot, NineCopiesAreTwoPanels) {
  CostFile file = made_up();
  file.paths.clear();
  for (const char* name : {"host/memcpy", "host/streaming", "host/copy", "pinned_to_device", "pageable_to_device",
                           "device_to_pinned", "device_to_pageable", "device_to_device", "peer"}) {
    file.paths.push_back(path_of(std::string("copy/") + name, name, 1e-7, 1e-10));
  }
  const auto both = plots(file);
  ASSERT_EQ(both.at(0).first, kPlotNames[0]);
  const std::string& svg = both[0].second;
  EXPECT_EQ(fault_of(svg), "");
  expect_holds(svg, {"of one rank, host memory", "of one rank, GPU"});
  for (const CostPath& path : file.paths) {
    EXPECT_NE(svg.find(path.text), std::string::npos) << path.text;
  }
  file.paths.resize(3);
  expect_lacks(plots(file).at(0).second, {"of one rank, GPU"});  // the control
}

TEST(CostPlot, OddDataDraw) {
  Panel one{.title = "one", .curves = {{"a <b>", {{8, 1e-6}}}}};
  Panel none{.title = "none", .curves = {{"empty", {}}}};
  const std::string svg = line_plots("t", "s", {one, none});
  EXPECT_EQ(fault_of(svg), "");
  expect_lacks(svg, {"nan"});
  expect_holds(svg, {"nothing measured", "a &lt;b&gt;"});
  EXPECT_EQ(fault_of(line_plots("t", "s", {})), "");
  expect_holds(heat_map({}), "nothing measured");
  HeatMap large{.title = "64"};
  for (int i = 0; i < 64; ++i) {
    large.ranks.push_back(i);
    large.bytes_per_second.emplace_back(64, 1e9);
  }
  EXPECT_EQ(fault_of(heat_map(large)), "");
}

/// On a linear axis, a percentage has the same height everywhere. On a logarithmic axis it has not.
TEST(CostPlot, PerCentsAreOnALinearAxis) {
  const std::string svg =
      line_plots("t", "s",
                 {{.title = "e",
                   .y = {.scale = Axis::Scale::counted, .text = [](double value) { return digits(value, 1) + " %"; }},
                   .curves = {{"e", {{8, 100}, {16, 97.5}, {32, 50}}}}}});
  EXPECT_EQ(fault_of(svg), "");
  std::vector<double> heights;
  for (std::size_t at = svg.find(" cy=\""); at != std::string::npos; at = svg.find(" cy=\"", at + 1)) {
    heights.push_back(std::stod(svg.substr(at + 5)));
  }
  ASSERT_EQ(heights.size(), 3U);
  EXPECT_NEAR((heights[2] - heights[0]) / (heights[1] - heights[0]), 20, 0.3);
  expect_holds(svg, ">60 %<");
  expect_lacks(svg, {">200 %<"});
}

TEST(CostReport, ANegativeAlphaIsNoLatency) {
  CostFile file = made_up();
  expect_lacks(report(file), {"A negative alpha"});
  file.paths[1].model.pieces = {{0, 2e-6, 5e-10}, {1 << 20, -9.4e-3, 1e-8}};
  const std::string text = report(file);
  expect_holds(text, {"-9.40 ms", "A negative alpha is where the line of its piece meets 0 bytes, not a latency"});
}

TEST(CostReport, SaysWhatIsInTheFile) {
  const CostFile file = made_up();
  const std::string text = report(file);
  expect_holds(text, {"# What moving data costs on node<1>&", "over 4 ranks takes **2.00 us**", "runs at **2.00 GB/s**",
                      "(busbw 3.00 GB/s)", "copy(), 2 threads", "costs **102 ns** up to 64 B", "runs at **10.0 GB/s**",
                      "![copies](copies.svg)", "(`all_reduce`)", "| 64 MiB | 33.6 ms |",
                      "Limit: streaming copy, 6.00 GB/s, of which 64 MiB reaches 50 %",
                      "| 0 B | 2.00 us | 2.00 GB/s | 3.91 KiB |", "misses the 12 others by 0.0 % in the median",
                      "The GPU half: there is none.", "| 3 | 10.49 | 10.49 | 10.49 |  |"});
  EXPECT_EQ(remember(file).size(), 3U);

  CostFile one = file;
  one.ranks = 1;
  one.paths.pop_back();
  one.pairs = {};
  EXPECT_EQ(remember(one).size(), 1U);
  EXPECT_EQ(plots(one).size(), 1U);
  expect_lacks(report(one), {"all_reduce"});
  EXPECT_NO_THROW((void)report(CostFile{}));
}

TEST(CostReport, ABusyMachineIsSaidFirst) {
  const CostFile quiet = made_up();
  for (const auto& [median, p90, busy] : {std::tuple{0.149, 0.349, false}, {0.16, 0.2, true}, {0.1, 0.36, true}}) {
    CostFile file = quiet;
    for (CostPath& path : file.paths) {
      if (path.name == "all_reduce") {
        path.held_out = {.count = 12, .median = median, .p90 = p90, .worst = 289};
      }
    }
    EXPECT_EQ(remember(file).size(), busy ? 4U : 3U);
    EXPECT_EQ(remember(file).at(0).find("**Not reliable**: the machine was busy") == 0, busy);
    EXPECT_EQ(report(file).find("# What moving data costs on node<1>& (not reliable)\n") == 0, busy);
  }
}

TEST(CostReport, AllReducesBetweenGpusComeFirst) {
  CostFile file = made_up();
  file.paths.push_back(path_of("all_reduce/nccl", "all-reduce between GPUs", 2e-5, 1e-11));
  file.paths.back().bus_factor = 1.5;
  EXPECT_EQ(remember(file).at(0), "A small all-reduce (8 B) between GPUs over 4 ranks takes **20.0 us**.");
  EXPECT_EQ(remember(file).size(), 3U);
  const std::string svg = plots(file).at(1).second;
  EXPECT_EQ(fault_of(svg), "");
  expect_holds(svg, {"GPUs, 4 ranks", "host, 4 ranks", "streaming copy: 6.00 GB/s"});
  expect_lacks(plots(made_up()).at(1).second, {"GPUs, 4 ranks"});  // the control
  const std::string text = report(file);
  expect_holds(text, {"### All-reduce between GPUs (`all_reduce/nccl`)", "### All-reduce (`all_reduce`)",
                      "between more than two GPUs depends"});
  expect_lacks(report(made_up()), {"No limit"});
  file.ranks = 2;
  expect_holds(report(file), "what connects the two GPUs is not known");
  file.paths.back().limit_text = "18 NVLinks";
  file.paths.back().limit_bytes_per_s = 450e9;
  expect_lacks(report(file), {"No limit"});
  expect_holds(report(file), "Limit: 18 NVLinks, 450 GB/s");
}

TEST(CostReport, PercentilesOnlyWhereThereAreSome) {
  CostFile file = made_up();
  expect_holds(report(file), {"p95", "67.1 ms | - |"});  // the path has a p95 but no p99
  for (CostPath& path : file.paths) {
    path.points.back().p95_s.reset();
  }
  expect_lacks(report(file), {"p95"});
}

TEST(CostLimits, WhatLinksCarry) {
  EXPECT_EQ(pcie_limit(5, 16).text, "PCIe 5.0 x16");
  EXPECT_NEAR(pcie_limit(5, 16).bytes_per_s * 1e-9, 63.0, 0.1);
  EXPECT_NEAR(pcie_limit(3, 8).bytes_per_s * 1e-9, 7.877, 0.01);
  EXPECT_NEAR(pcie_limit(1, 1).bytes_per_s * 1e-9, 0.25, 1e-9);
  EXPECT_NEAR(pcie_limit(6, 16).bytes_per_s * 1e-9, 121.0, 0.1);
  for (const auto& [generation, lanes] : std::vector<std::pair<std::optional<int>, std::optional<int>>>{
           {0, 16}, {7, 16}, {5, 0}, {5, 33}, {{}, 16}, {5, {}}}) {
    EXPECT_EQ(pcie_limit(generation, lanes).bytes_per_s, 0);
    EXPECT_EQ(pcie_limit(generation, lanes).text, "");
  }
  EXPECT_NEAR(nvlink_limit(9, 18).bytes_per_s, 450e9, 1);
  EXPECT_EQ(nvlink_limit(9, 18).text, "18 NVLinks");
  EXPECT_NEAR(nvlink_limit(8, 12).bytes_per_s, 300e9, 1);
  EXPECT_NEAR(nvlink_limit(10, 18).bytes_per_s, 900e9, 1);
  EXPECT_EQ(nvlink_limit(9, 0).text, "");
  EXPECT_EQ(nvlink_limit(9, {}).text, "");
}

TEST(CostLimits, WhatTwoGpusSendEachOther) {
  const KnownLimit fast = pcie_limit(5, 16);
  const KnownLimit slow = pcie_limit(4, 8);
  EXPECT_EQ(peer_limit(9, 18, fast, slow).text, "18 NVLinks");
  EXPECT_EQ(peer_limit(9, 0, fast, slow).text, "PCIe 4.0 x8");
  EXPECT_EQ(peer_limit(9, 0, slow, fast).text, "PCIe 4.0 x8");
  EXPECT_EQ(peer_limit(9, 0, fast, {}).text, "");
  EXPECT_EQ(peer_limit(9, {}, fast, fast).text, "") << "there may be NVLinks";

  EXPECT_EQ(all_reduce_limit(2, 1, fast).bytes_per_s, fast.bytes_per_s);
  EXPECT_EQ(all_reduce_limit(2, 1, {}).text, "");
  EXPECT_EQ(all_reduce_limit(2, 2, fast).text, "") << "a network is between them";
  EXPECT_EQ(all_reduce_limit(4, 1, fast).text, "");
}

TEST(CostLimits, WhatTheMemoryOfAGpuMoves) {
  // A copy reads and writes, so its payload is half of the memory bandwidth. An H100 has 3.35 TB/s, a T4 has 320 GB/s.
  EXPECT_NEAR(device_memory_limit(2619, 5120).bytes_per_s, 3.35e12 / 2, 0.01e12);
  EXPECT_EQ(device_memory_limit(2619, 5120).text, "memory of 5120 bits at 2619 MHz, read and written");
  EXPECT_NEAR(device_memory_limit(5001, 256).bytes_per_s, 320e9 / 2, 0.1e9);
  for (const auto& [clock, bits] :
       std::vector<std::pair<std::optional<int>, std::optional<int>>>{{{}, 5120}, {2619, {}}, {0, 5120}, {2619, 0}}) {
    EXPECT_EQ(device_memory_limit(clock, bits).text, "");
    EXPECT_EQ(device_memory_limit(clock, bits).bytes_per_s, 0);
  }
}

}  // namespace
}  // namespace lockstep::tools
