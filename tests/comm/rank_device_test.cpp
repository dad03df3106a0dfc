// Tests which device each rank of a node gets, with made-up nodes.
#include <lockstep/comm/launch/rank_device.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using testing::expect_holds;
using Uuids = std::vector<std::string>;

constexpr const char* kUuids[] = {"GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3"};

std::vector<GpuInfo> gpus_of(const Uuids& uuids) {
  std::vector<GpuInfo> gpus;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    gpus.push_back({.index = static_cast<int>(i), .uuid = uuids[i], .pci = "0000:00:00.0", .name = "Made-up"});
  }
  return gpus;
}

/// Returns the devices of ranks. visible: the GPUs that each rank sees. nodes: the node of each rank; empty: node 0.
std::vector<RankDevice> place(std::string_view request, const std::vector<Uuids>& visible,
                              const std::vector<int>& nodes = {}) {
  std::vector<RankView> ranks;
  for (std::size_t rank = 0; rank < visible.size(); ++rank) {
    ranks.push_back({.node = nodes.empty() ? 0 : nodes[rank], .gpus = visible[rank]});
  }
  std::vector<RankDevice> result;
  for (std::size_t rank = 0; rank < visible.size(); ++rank) {
    result.push_back(
        device_of_rank(DeviceRequest::parse(request), gpus_of(visible[rank]), static_cast<int>(rank), ranks));
  }
  return result;
}

std::vector<Uuids> all_see(int ranks, int gpus) {
  return std::vector<Uuids>(static_cast<std::size_t>(ranks), Uuids(kUuids, kUuids + gpus));
}

void expect_devices(const std::vector<RankDevice>& placed, const std::vector<int>& indices) {
  ASSERT_EQ(placed.size(), indices.size());
  for (std::size_t rank = 0; rank < placed.size(); ++rank) {
    const Device expected = indices[rank] < 0 ? Device::cpu() : Device::cuda(indices[rank]);
    EXPECT_EQ(placed[rank].device, expected) << "rank " << rank;
  }
}

void expect_refused(std::string_view request, const std::vector<Uuids>& visible, const std::vector<std::string>& says,
                    const std::vector<int>& nodes = {}) {
  SCOPED_TRACE(request);
  testing::expect_error<UsageError>([&] { (void)place(request, visible, nodes); }, says);
}

TEST(RankDevice, OneGpuEachInTheOrderNamed) {
  expect_devices(place("auto", all_see(4, 4)), {0, 1, 2, 3});
  expect_devices(place("gpu", all_see(4, 4)), {0, 1, 2, 3});
  expect_devices(place("3", all_see(3, 4)), {0, 1, 2});
  expect_devices(place("3,1", all_see(2, 4)), {3, 1});
  expect_devices(place("GPU-c2", all_see(1, 4)), {2});
  expect_devices(place("1,", all_see(1, 4)), {1});
  for (const RankDevice& placed : place("auto", all_see(4, 4))) {
    EXPECT_EQ(placed.note, "");
  }
}

TEST(RankDevice, AutoTakesTheFirstAndSaysSo) {
  const std::vector<RankDevice> placed = place("auto", all_see(2, 4));
  expect_devices(placed, {0, 1});
  EXPECT_EQ(placed[1].note, "2 of 4 GPUs of the node are used, one a rank");
  expect_devices(place("auto", all_see(3, 0)), {-1, -1, -1});
}

TEST(RankDevice, GpusThatAJobWasGiven) {
  EXPECT_EQ(promised_gpus({}), "");
  EXPECT_EQ(promised_gpus({{"CUDA_VISIBLE_DEVICES", ""}, {"SLURM_JOB_GPUS", ""}}), "");
  EXPECT_EQ(promised_gpus({{"CUDA_VISIBLE_DEVICES", "-1"}}), "");
  EXPECT_EQ(promised_gpus({{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}), "");
  EXPECT_EQ(promised_gpus({{"CUDA_VISIBLE_DEVICES", "0,1"}}), "CUDA_VISIBLE_DEVICES=0,1");
  EXPECT_EQ(promised_gpus({{"CUDA_VISIBLE_DEVICES", ""}, {"SLURM_JOB_GPUS", "3"}}), "SLURM_JOB_GPUS=3");
}

TEST(RankDevice, TheHost) {
  expect_devices(place("cpu", all_see(2, 4)), {-1, -1});
  expect_devices(place("cpu:2", all_see(2, 0)), {-1, -1});
  expect_devices(place("cpu", {{"GPU-a0"}, {"GPU-a0"}}), {-1, -1});
  expect_refused("cpu:4", all_see(2, 0), {"'cpu:4'", "2 ranks on this node", "expected 4"});
  expect_refused("gpu", all_see(2, 0), {"no GPU"});
}

TEST(RankDevice, RanksAndGpusThatDoNotMatch) {
  expect_refused("3", all_see(2, 4), {"'3'", "2 ranks on this node for 3 GPUs", "start 3 ranks", "name 2 GPUs"});
  expect_refused("gpu", all_see(2, 4), {"2 ranks on this node for 4 GPUs"});
  expect_refused("1,3", all_see(3, 4), {"3 ranks on this node for 2 GPUs", "name 3 GPUs"});
  expect_refused("1,", all_see(2, 4), {"2 ranks on this node for 1 GPU,"});
  expect_refused("auto", all_see(4, 3), {"4 ranks on this node for 3 GPUs", "take cpu"});
  // Here each rank sees all GPUs of the node; the launcher has not assigned one GPU to each rank.
  for (const char* request : {"auto", "gpu", "1", "0,"}) {
    expect_refused(request, all_see(2, 1), {"2 ranks on this node for 1 GPU,", "start 1 rank on", "take cpu"});
  }
  expect_refused("auto", {{"GPU-a0", "GPU-b1"}, {"GPU-a0"}}, {"local ranks 0 and 1 see different GPUs (2 and 1)"});
  expect_refused("auto", {{"GPU-a0", "GPU-b1"}, {"GPU-a0", "GPU-c2"}}, {"different GPUs (2 and 2)"});
  expect_refused("auto", {{"GPU-a0", "GPU-b1"}, {"GPU-b1", "GPU-a0"}}, {"in another order"});
}

TEST(RankDevice, RanksShareGpusOnlyWhereThatIsAllowed) {
  const auto share = [](std::string_view request, int ranks, int gpus) {
    const std::vector<RankView> views(static_cast<std::size_t>(ranks),
                                      {.node = 0, .gpus = Uuids(kUuids, kUuids + gpus)});
    std::vector<RankDevice> placed;
    for (int rank = 0; rank < ranks; ++rank) {
      placed.push_back(
          device_of_rank(DeviceRequest::parse(request), gpus_of(views[0].gpus), rank, views, Sharing::allowed));
    }
    return placed;
  };
  const auto two = share("gpu", 5, 2);
  expect_devices(two, {0, 1, 0, 1, 0});
  EXPECT_TRUE(two[0].shared);
  EXPECT_EQ(two[0].note, "5 ranks share 2 GPUs, for tests only");
  expect_devices(share("1,", 3, 4), {1, 1, 1});
  EXPECT_FALSE(share("gpu", 2, 2)[0].shared);
  expect_devices(share("auto", 2, 4), {0, 1});
  expect_refused("gpu", all_see(5, 2), {"5 ranks", "2 GPUs"});
}

TEST(RankDevice, NodesByThemselves) {
  const std::vector<int> nodes{0, 1, 0, 1};
  expect_devices(
      place("auto", {{"GPU-a0", "GPU-b1"}, {"GPU-c2", "GPU-d3"}, {"GPU-a0", "GPU-b1"}, {"GPU-c2", "GPU-d3"}}, nodes),
      {0, 0, 1, 1});
  expect_devices(
      place("1,0", {{"GPU-a0", "GPU-b1"}, {"GPU-c2", "GPU-d3"}, {"GPU-a0", "GPU-b1"}, {"GPU-c2", "GPU-d3"}}, nodes),
      {1, 1, 0, 0});
  // One node has no GPUs, another node has. A run must never mix CPUs and GPUs silently.
  expect_refused("auto", {{"GPU-a0"}, {}}, {"rank 1 on node 1 sees no GPU", "rank 0 on node 0 sees 1", "cpu"}, {0, 1});
  expect_refused("auto", {{}, {"GPU-a0"}}, {"rank 0 on node 0 sees no GPU"}, {0, 0});
  expect_devices(place("cpu", {{"GPU-a0"}, {}}, {0, 1}), {-1, -1});
}

TEST(RankDevice, GpusHandedOutByTheLauncher) {
  const std::vector<Uuids> handed{{"GPU-c2"}, {"GPU-a0"}};
  expect_devices(place("auto", handed), {0, 0});
  expect_devices(place("gpu", handed), {0, 0});
  expect_devices(place("2", handed), {0, 0});
  expect_devices(place("GPU-c2,GPU-a0", handed), {0, 0});
  expect_refused("1", handed, {"2 ranks on this node for 1 GPU"});
  expect_refused("0,1", handed, {"local rank 0 was handed GPU-c2", "expected auto"});
  expect_refused("GPU-a0,GPU-c2", handed, {"local rank 0 was handed GPU-c2"});
  expect_refused("GPU-a,GPU-aa", {{"GPU-a1"}, {"GPU-aa"}}, {"GPU-a is the beginning of several UUIDs"});
  expect_refused("auto", {{"GPU-c2"}, {"GPU-b1"}, {"GPU-c2"}}, {"local ranks 0 and 2 both see GPU-c2"});
}

/// Returns the error text of check_usable(); empty if it does not throw.
std::string unusable(std::string_view request, const std::vector<RankView>& ranks, int rank = 0) {
  try {
    check_usable(DeviceRequest::parse(request), rank, ranks);
    return {};
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(RankDevice, UsableGpus) {
  const RankView sees_four{.node = 0, .gpus = {"GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3"}};
  const RankView elsewhere{.node = 1, .gpus = {"GPU-e4", "GPU-f5"}};
  const std::vector<RankView> ranks{sees_four, elsewhere, sees_four, elsewhere};
  EXPECT_EQ(unusable("usable:2", ranks), "");
  EXPECT_EQ(unusable("usable:2", ranks, 3), "");
  EXPECT_EQ(unusable("usable", ranks), "") << "how many there are shows later";
  EXPECT_EQ(unusable("3", ranks), "") << "another request is not its matter";
  const std::string few = unusable("usable:3", ranks);
  EXPECT_NE(few.find("'usable:3': 2 ranks on this node for 3 GPUs"), std::string::npos) << few;
  EXPECT_NE(unusable("usable:1", ranks).find("2 ranks on this node for 1 GPU"), std::string::npos);
  EXPECT_NE(unusable("usable:2", {elsewhere, {.node = 0}}).find("rank 1 on node 0 sees no GPU"), std::string::npos);
  EXPECT_NE(unusable("usable", {{.node = 0}, {.node = 0}}).find("can use no GPU"), std::string::npos);
  EXPECT_NE(unusable("usable:2", {{0, {"GPU-a0"}}, {0, {"GPU-b1"}}}).find("handed each rank a GPU"), std::string::npos);
  expect_holds(unusable("usable:2", {{0, {"GPU-a0", "GPU-b1"}}, {0, {"GPU-b1", "GPU-a0"}}}), "another order");
  EXPECT_THROW(check_usable(DeviceRequest::parse("usable"), 4, ranks), UsageError);

  // The usable GPUs that were found are assigned in the order of the local ranks, as with a list of GPUs.
  const DeviceRequest found = DeviceRequest::parse("usable:2").with_gpus({"GPU-b1", "GPU-d3"});
  EXPECT_EQ(device_of_rank(found, gpus_of(sees_four.gpus), 0, ranks).device, Device::cuda(1));
  EXPECT_EQ(device_of_rank(found, gpus_of(sees_four.gpus), 2, ranks).device, Device::cuda(3));
  EXPECT_THROW((void)device_of_rank(DeviceRequest::parse("usable:2"), gpus_of(sees_four.gpus), 0, ranks), StateError);
}

TEST(RankDevice, NodesMustBeEqual) {
  const std::vector<RankView> ranks{{.node = 0}, {.node = 0}, {.node = 1}, {.node = 1}};
  const DeviceRequest request = DeviceRequest::parse("auto");
  EXPECT_NO_THROW(require_equal_nodes(request, ranks, {"A", "A", "A", "A"}));
  EXPECT_NO_THROW(require_equal_nodes(request, ranks, {"A", "B", "B", "A"})) << "the same two on both";
  EXPECT_NO_THROW(require_equal_nodes(request, {{.node = 0}, {.node = 0}}, {"A", "B"})) << "one node";
  const auto refused = [&](const std::vector<RankView>& views, const std::vector<std::string>& gpus) {
    return testing::error_of<UsageError>([&] { require_equal_nodes(request, views, gpus); });
  };
  EXPECT_EQ(refused(ranks, {"A", "A", "A", "B"}),
            "devices 'auto': node 0 computes on 2 x A, node 1 on 1 x A and 1 x B; expected equal GPUs on all nodes");
  expect_holds(refused({{.node = 0}, {.node = 0}, {.node = 1}}, {"A", "A", "A"}),
               "node 0 computes on 2 x A, node 1 on 1 x A");
  EXPECT_NE(refused(ranks, {"A"}), "");
}

TEST(RankDevice, ItsArgumentsMustFit) {
  const std::vector<RankView> ranks{{.node = 0, .gpus = {"GPU-a0"}}};
  EXPECT_THROW((void)device_of_rank({}, gpus_of({"GPU-a0"}), 1, ranks), UsageError);
  EXPECT_THROW((void)device_of_rank({}, gpus_of({"GPU-a0"}), -1, ranks), UsageError);
  EXPECT_THROW((void)device_of_rank({}, gpus_of({"GPU-a0"}), 0, {}), UsageError);
  EXPECT_THROW((void)device_of_rank({}, {}, 0, ranks), UsageError);
}

}  // namespace
}  // namespace lockstep::comm
