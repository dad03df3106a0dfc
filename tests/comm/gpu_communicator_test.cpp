#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/launch/rank_device.hpp>

#include <cstdlib>
#include <set>

#include <gtest/gtest.h>

#include <lockstep/comm/error.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/error_of.hpp"

// These tests need neither NCCL nor a GPU.

namespace lockstep::comm {
namespace {

constexpr int kBuilt = 22809;

std::vector<NcclRank> two_ranks() {
  return {{.host = "a", .gpu = "GPU-1", .version = kBuilt}, {.host = "b", .gpu = "GPU-2", .version = kBuilt}};
}

/// Returns the text of the error of type E that check_nccl_ranks() throws on every rank. Returns "nothing" if there is
/// no error.
template <class E>
std::string refused(const std::vector<NcclRank>& ranks) {
  try {
    check_nccl_ranks(ranks, kBuilt);
  } catch (const CollectiveError<E>& error) {
    return error.what();
  }
  return "nothing";
}

TEST(NcclRanks, AreGoodWithAGpuEachAndOneVersion) {
  EXPECT_NO_THROW(check_nccl_ranks(two_ranks(), kBuilt));
  auto ranks = two_ranks();
  ranks[0].version = ranks[1].version = 23007;
  EXPECT_NO_THROW(check_nccl_ranks(ranks, kBuilt));
  ranks[0].version = ranks[1].version = 22803;  // patch version differs from that of the build
  EXPECT_NO_THROW(check_nccl_ranks(ranks, kBuilt));
}

TEST(NcclRanks, TwoOnOneGpuAreNamed) {
  auto ranks = two_ranks();
  ranks.push_back({.host = "b", .gpu = "GPU-2", .version = kBuilt});
  EXPECT_EQ(refused<UsageError>(ranks),
            "nccl: ranks 1 and 2 on b both have GPU-2, expected a GPU for each rank (for tests: "
            "LOCKSTEP_ALLOW_SHARED_GPU=1)");
  for (NcclRank& rank : ranks) {
    rank.allow_shared_gpu = true;
  }
  testing::expect_holds(refused<UsageError>(ranks), "NCCL_HOSTID is '' and ''");
  ranks[1].host_id = ranks[2].host_id = "x";
  EXPECT_NE(refused<UsageError>(ranks).find("NCCL_HOSTID is 'x' and 'x'"), std::string::npos);
  ranks[2].host_id = "y";
  EXPECT_EQ(refused<UsageError>(ranks),
            "nccl: ranks 1 and 2 share GPU-2, and ranks are on a and b; expected one host for ranks that share a GPU");
  ranks[0].host = "b";
  EXPECT_NO_THROW(check_nccl_ranks(ranks, kBuilt));
  ranks[2].allow_shared_gpu = false;
  EXPECT_NE(refused<UsageError>(ranks).find("rank 2 forbids ranks that share a GPU, rank 0 allows"), std::string::npos);
}

TEST(NcclRanks, OtherVersionsAreRefused) {
  auto ranks = two_ranks();
  ranks[1].version = 22709;
  EXPECT_EQ(refused<UsageError>(ranks), "nccl: rank 0 on a loaded 2.28.9, rank 1 on b 2.27.9, expected one version");
  ranks[0].version = 22709;
  EXPECT_EQ(refused<UsageError>(ranks),
            "nccl: 2.27.9 was loaded, expected 2.28 or a later 2.x: lockstep was built with 2.28.9");
  ranks[0].version = ranks[1].version = 22801;  // only the patch version is lower than that of the build
  EXPECT_NO_THROW(check_nccl_ranks(ranks, kBuilt));
  ranks[0].version = ranks[1].version = 30000;
  EXPECT_NE(refused<UsageError>(ranks), "nothing");
}

TEST(NcclRanks, ARankWithoutAGpuIsEverybodysError) {
  auto ranks = two_ranks();
  ranks[1].failure = "cuda:7 does not exist";
  EXPECT_EQ(refused<DeviceError>(ranks), "nccl: rank 1 on b: cuda:7 does not exist");
}

TEST(SharedGpu, IsAllowedByAVariable) {
  unsetenv("LOCKSTEP_ALLOW_SHARED_GPU");
  EXPECT_FALSE(shared_gpu_allowed());
  for (const char* value : {"", "0"}) {
    setenv("LOCKSTEP_ALLOW_SHARED_GPU", value, 1);
    EXPECT_FALSE(shared_gpu_allowed());
  }
  setenv("LOCKSTEP_ALLOW_SHARED_GPU", "1", 1);
  EXPECT_TRUE(shared_gpu_allowed());
  setenv("LOCKSTEP_ALLOW_SHARED_GPU", "yes", 1);
  EXPECT_THROW((void)shared_gpu_allowed(), UsageError);
  unsetenv("LOCKSTEP_ALLOW_SHARED_GPU");
}

TEST(SharedGpu, EveryRankIsAHostOfItsOwnForNccl) {
  const auto first = shared_gpu_environment(0);
  const auto second = shared_gpu_environment(1);
  std::set<std::string> names;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].first, second[i].first);
    EXPECT_EQ(first[i].second != second[i].second, first[i].first == "NCCL_HOSTID");
    EXPECT_TRUE(names.insert(first[i].first).second) << first[i].first;
    unsetenv(first[i].first.c_str());
  }
  setenv("NCCL_SOCKET_IFNAME", "mine", 1);
  set_shared_gpu_environment(1);
  EXPECT_STREQ(std::getenv("NCCL_HOSTID"), "lockstep-rank-1");
  EXPECT_STREQ(std::getenv("NCCL_NET"), "Socket");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "mine");
}

}  // namespace
}  // namespace lockstep::comm
