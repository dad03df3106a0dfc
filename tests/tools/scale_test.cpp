// Tests lockstep-scale. Compares its model of NCCL with times computed by hand and with published measurements. Also
// tests steps of made-up timelines.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/json.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"
#include "tools/lockstep_scale/cluster.hpp"
#include "tools/lockstep_scale/scaling.hpp"
#include "tools/lockstep_scale/step_profile.hpp"

namespace lockstep::tools {
namespace {

constexpr double kMiB = 1 << 20;

double microseconds(int gpus, double bytes, SumAlgorithm algorithm, std::string_view protocol) {
  for (const SumCost& each : sum_costs(known_cluster("h100"), gpus, bytes)) {
    if (each.algorithm == algorithm && each.protocol == protocol) {
      return each.seconds * 1e6;
    }
  }
  return std::nan("");
}

TEST(Cluster, FollowsNcclsModel) {
  struct Row {
    double mib;
    int gpus;
    // Microseconds, computed by hand with the formulas of NCCL's tuning.cc.
    double ring_ll128, ring_simple, tree_ll128, nvls_tree;
  };
  for (const Row& row :
       {Row{25, 128, 707, 1801, 275, 328}, Row{25, 1024, 4583, 13656, 326, 454}, Row{25, 8192, 35585, 108489, 377, 580},
        Row{100, 1024, 5028, 14066, 854, 863}, Row{1024, 1024, 10508, 19107, 6634, 5905}}) {
    SCOPED_TRACE(row.gpus);
    const double bytes = row.mib * kMiB;
    EXPECT_NEAR(microseconds(row.gpus, bytes, SumAlgorithm::ring, "LL128") / row.ring_ll128, 1, 0.01);
    EXPECT_NEAR(microseconds(row.gpus, bytes, SumAlgorithm::ring, "Simple") / row.ring_simple, 1, 0.01);
    EXPECT_NEAR(microseconds(row.gpus, bytes, SumAlgorithm::tree, "LL128") / row.tree_ll128, 1, 0.01);
    EXPECT_NEAR(microseconds(row.gpus, bytes, SumAlgorithm::nvls_tree, "Simple") / row.nvls_tree, 1, 0.01);
  }
  // For two nodes, NCCL's model uses the bandwidth of the links inside a node.
  EXPECT_NEAR(microseconds(16, 25 * kMiB, SumAlgorithm::ring, "LL128"), 214, 2);
  EXPECT_NEAR(microseconds(16, 25 * kMiB, SumAlgorithm::ring, "Simple"), 312, 3);
  EXPECT_NEAR(microseconds(16, 25 * kMiB, SumAlgorithm::tree, "LL128"), 224, 2);
}

TEST(Cluster, IsNearToMeasuredSums) {
  // Compares with the times of 8 H100 with NVLink SHARP in NVIDIA's logs of nccl-tests.
  EXPECT_NEAR(microseconds(8, kMiB, SumAlgorithm::nvls, "Simple") / 26.9, 1, 0.1);
  EXPECT_NEAR(microseconds(8, 128 * kMiB, SumAlgorithm::nvls, "Simple") / 586, 1, 0.15);
  // The time of 1024 H100 over RoCE for 16 GiB, with a ring and LL128, is 93.4 ms (nccl-tests issue 322).
  EXPECT_NEAR(microseconds(1024, 16384 * kMiB, SumAlgorithm::ring, "LL128") / 93.4e3, 1, 0.1);
}

TEST(Cluster, HierarchicalSumsSendEachByteBetweenNodesOnceANode) {
  // The size is so large that latencies do not matter. A sum has two passes inside each node. Between them, each eighth
  // of the bytes is summed in a ring over 4 nodes, on an eighth of the network.
  const double bytes = 16384 * kMiB;
  const double node = bytes * 7 / 8 / 384e9;
  const double network = bytes / 8 * (2 * 3) / 4 / (384e9 / 8);
  EXPECT_NEAR(microseconds(32, bytes, SumAlgorithm::hierarchical, "Simple") / ((2 * node + network) * 1e6), 1, 0.01);
}

TEST(Cluster, BestSumIsTheFastestAndTheModelGoesThroughIt) {
  const Cluster cluster = known_cluster("a100");
  for (const int gpus : {2, 8, 16, 4096}) {
    const comm::CostModel model = sum_model(cluster, gpus);
    double before = 0;
    for (double bytes = 1024; bytes <= 1 << 30; bytes *= 2) {
      const double best = best_sum(cluster, gpus, bytes).seconds;
      for (const SumCost& each : sum_costs(cluster, gpus, bytes)) {
        EXPECT_LE(best, each.seconds);
      }
      EXPECT_GE(model.predict(bytes), before);
      EXPECT_NEAR(model.predict(bytes), std::max(best, before), 1e-9 + 1e-6 * best);
      before = model.predict(bytes);
    }
  }
}

TEST(Cluster, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(testing::error_of<UsageError>([] { static_cast<void>(known_cluster("v100")); }),
            "system 'v100', expected a100 or h100");
  EXPECT_EQ(testing::error_of<UsageError>([] { static_cast<void>(sum_model(known_cluster("h100"), 12)); }),
            "12 GPUs, expected a multiple of the 8 GPUs of a node, or fewer");
}

StepProfile three_tensors() {
  return {.ranks = 1,
          .steps = 5,
          .compute_s = 10e-3,
          .backward_s = 6e-3,
          .jitter_s = 0.1e-3,
          .gradients = {{1'000'000, 2e-3}, {1'000'000, 4e-3}, {1'000'000, 6e-3}}};
}
/// Returns a cost model of 1 ms latency and 1 ns per byte.
comm::CostModel one_line() {
  return {.pieces = {{.first_bytes = 0, .alpha_s = 1e-3, .beta_s = 1e-9}}};
}

TEST(Scaling, SumsWaitForGradientsAndForEachOther) {
  // With one tensor in each bucket, sums end at 4, 6 and 8 ms; backward ends at 6 ms.
  const ScalingPoint point = predict(three_tensors(), 2, one_line(), {.bucket_bytes = 1'000'000});
  EXPECT_EQ(point.buckets, 3);
  EXPECT_NEAR(point.communication_s, 6e-3, 1e-12);
  EXPECT_NEAR(point.exposed_s, 2e-3, 1e-12);
  EXPECT_NEAR(point.step_s(), 12e-3 + point.waiting_s, 1e-12);
  // Without overlap all sums run after backward.
  EXPECT_NEAR(predict(three_tensors(), 2, one_line(), {.bucket_bytes = 1'000'000, .overlap = false}).exposed_s, 6e-3,
              1e-12);
  // Four ranks on two processors compute for twice as long: sums end at 6, 10 and 14 ms, backward at 12 ms.
  const ScalingPoint shared = predict(three_tensors(), 4, one_line(), {.bucket_bytes = 1'000'000, .processors = 2});
  EXPECT_NEAR(shared.compute_s, 20e-3, 1e-12);
  EXPECT_NEAR(shared.exposed_s, 2e-3, 1e-12);
  EXPECT_NEAR(shared.waiting_s, expected_largest(4) * 0.2e-3, 1e-12);
}

TEST(Scaling, BestBucketsAreNoWorseThanAnyCap) {
  const double best = predict(three_tensors(), 2, one_line(), {}).exposed_s;
  for (const std::int64_t cap : {1'000'000, 2'000'000, 3'000'000}) {
    EXPECT_LE(best, 1.001 * predict(three_tensors(), 2, one_line(), {.bucket_bytes = cap}).exposed_s);
  }
}

TEST(Scaling, OneRankWaitsForNobody) {
  const ScalingPoint alone = predict(three_tensors(), 1, {}, {});
  EXPECT_EQ(alone.step_s(), 10e-3);
  EXPECT_EQ(alone.efficiency(10e-3), 1);
}

TEST(Scaling, TheSlowestOfManyIsAsNormalDeviationsSay) {
  // The expected largest of n values, from Harter, "Expected values of normal order statistics", 1961.
  EXPECT_EQ(expected_largest(1), 0);
  EXPECT_NEAR(expected_largest(2), 0.5642, 0.03);
  EXPECT_NEAR(expected_largest(10), 1.5388, 0.02);
  EXPECT_NEAR(expected_largest(100), 2.5076, 0.02);
}

std::string event(const std::string& kind, const std::string& phase, double begin, double length, int step,
                  const std::string& more = "") {
  return concat("{\"name\":\"n\",\"cat\":\"", kind, "\",\"pid\":0,\"tid\":1,\"ts\":", begin, ",\"ph\":\"", phase, "\",",
                phase == "X" ? concat("\"dur\":", length, ",") : std::string(), "\"args\":{\"step\":", step, more,
                "}}");
}

/// Returns a timeline of steps of 1000 us. A step has forward until 300, backward from 300 to 700 with a wait of 100 us
/// in it, and an update until 800.
std::string timeline(int steps, const std::string& last = "") {
  std::string text = R"({"traceEvents":[{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}})";
  for (int step = 1; step <= steps; ++step) {
    const double at = 1000.0 * step;
    for (const std::string& each :
         {event("forward", "X", at, 300, step), event("backward", "X", at + 300, 100, step),
          event("ready", "i", at + 400, 0, step, R"(,"bucket":0,"bytes":64)"), event("wait", "X", at + 400, 100, step),
          event("backward", "X", at + 500, 200, step),
          event("ready", "i", at + 700, 0, step, R"(,"bucket":1,"bytes":32)"),
          event("update", "X", at + 700, 100, step)}) {
      text += "," + each;
    }
  }
  return text + last + "]}";
}

StepProfile profile_of(const std::string& text) {
  return step_profile(parse_json(text, "t.json"), "t.json");
}
std::string refused(const std::string& text) {
  return testing::error_of<DataError>([&] { static_cast<void>(profile_of(text)); });
}

TEST(Profile, LeavesOutWhatTheStepWaitedFor) {
  const StepProfile profile = profile_of(timeline(4));
  EXPECT_EQ(profile.ranks, 1);
  EXPECT_EQ(profile.steps, 4);
  EXPECT_NEAR(profile.compute_s, 900e-6, 1e-12);
  EXPECT_NEAR(profile.backward_s, 300e-6, 1e-12);
  EXPECT_NEAR(profile.jitter_s, 0, 1e-12);
  ASSERT_EQ(profile.gradients.size(), 2U);
  EXPECT_EQ(profile.gradients[0].bytes, 64);
  EXPECT_NEAR(profile.gradients[0].ready_s, 100e-6, 1e-12);
  EXPECT_NEAR(profile.gradients[1].ready_s, 300e-6, 1e-12);
  EXPECT_EQ(profile.bytes(), 96);
}

TEST(Profile, RefusesOtherFiles) {
  EXPECT_EQ(refused("{}"), "t.json: has no 'traceEvents', expected a timeline of train_resnet --trace");
  EXPECT_EQ(refused(timeline(2)),
            "t.json: has 1 steps with another step after them, expected 2 or more (--trace-steps A:B)");
  EXPECT_EQ(refused(timeline(3, "," + event("graph", "X", 5000, 10, 4))),
            "t.json: captured steps show no times within a step, expected a timeline with --cuda-graph off");
  const std::string other = "," + event("forward", "X", 4000, 10, 4) + "," + event("backward", "X", 4010, 10, 4) + "," +
                            event("ready", "i", 4020, 0, 4, R"(,"bucket":0,"bytes":96)");
  EXPECT_EQ(refused(timeline(3, other)),
            "t.json: step 4 of rank 0 has other buckets than the first step, expected the same in all");
}

/// train_resnet writes the timeline of a predicted step of two micro-batches, on a GPU that this machine need not have.
/// step_profile() must read this timeline, and lockstep-scale must accept it for 8 and 64 ranks.
TEST(Program, ReadsAPredictedTimeline) {
  const testing::TemporaryFolder folder;
  const auto plan = [&](const std::string& more) {
    return testing::run_command(
        concat(TRAIN_RESNET, " --devices cpu --model resnet20 --train-images 256 --dry-run ", more));
  };
  plan("--batch-size 64 --accumulate 2 --describe-gpu h200 --trace " + (folder / "t.json"))
      .finished({"on one NVIDIA H200", "one of 2 micro-batches"});
  const StepProfile profile = step_profile(read_json(folder / "t.json"), "t.json");
  EXPECT_EQ(profile.ranks, 1);
  EXPECT_GE(profile.steps, 2);
  EXPECT_NEAR(profile.jitter_s, 0, 1e-6);
  EXPECT_GT(profile.backward_s, 0);
  EXPECT_GT(profile.compute_s, 2 * profile.backward_s) << "two forwards and two backwards";
  EXPECT_EQ(profile.gradients.size(), 59U) << "19 convolutions, two of each of 19 norms, two of a linear layer";
  EXPECT_NEAR(profile.gradients.back().ready_s, profile.backward_s, 1e-6);
  testing::run_command(concat(LOCKSTEP_TEST_PROGRAM, " ", folder / "t.json", " --ranks 8,64")).finished();

  testing::expect_refusals(plan, {{"--describe-gpu h300", {"GPU 'h300' is not described, expected one of a100, "}},
                                  {"--trace " + (folder / "u.json"), {"or --describe-gpu"}}});
}

TEST(Program, WritesTableFileAndPlot) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder / "t.json") << timeline(4);
  testing::run_command(concat(LOCKSTEP_TEST_PROGRAM, " ", folder / "t.json", " --ranks 1,8,64 --out ", folder / "out"))
      .finished({"efficiency"});
  const Json file = read_json(folder / "out/scale.json");
  const auto points = file.get<Json::Array>("points", "scale.json");
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[2].get<int>("ranks", "scale.json"), 64);
  EXPECT_NEAR(points[0].get<double>("step_s", "scale.json"), 900e-6, 1e-12);
  EXPECT_GT(points[2].get<double>("step_s", "scale.json"), points[1].get<double>("step_s", "scale.json"));
  testing::run_command("cat " + (folder / "out/scale.svg")).finished({"</svg>"});
  testing::expect_refused(testing::run_command(concat(LOCKSTEP_TEST_PROGRAM, " ", folder / "t.json", " --ranks 12")),
                          {"12 GPUs, expected a multiple of the 8 GPUs of a node"});
}

}  // namespace
}  // namespace lockstep::tools
