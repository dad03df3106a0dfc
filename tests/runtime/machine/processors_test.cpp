#include <lockstep/runtime/machine/processors.hpp>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/temporary_folder.hpp"

namespace lockstep::testing {
namespace {

TEST(Processors, ReadAndWritten) {
  for (const char* text : {"0", "0-3,8", "1,3,5", "0-1023", "7-8,10-11"}) {
    EXPECT_EQ(ProcessorSet::parse(text).text(), text);
  }
  EXPECT_EQ(ProcessorSet::parse("3,1-2,2 \n").text(), "1-3");
  EXPECT_EQ(ProcessorSet::parse("0-3,8").count(), 5);
  EXPECT_TRUE(ProcessorSet::parse("\n").empty());
  EXPECT_EQ(ProcessorSet().text(), "none");
  for (const char* text : {"x", "-1", "3-", "3-1", "1,", ",1", "1 2", "0-99999999", "1-2-3"}) {
    EXPECT_THROW((void)ProcessorSet::parse(text), DataError) << text;
  }
}

TEST(Processors, Sets) {
  const ProcessorSet a = ProcessorSet::parse("0-7");
  EXPECT_EQ(a.intersection(ProcessorSet::parse("4-11")), ProcessorSet::parse("4-7"));
  EXPECT_TRUE(a.intersection(ProcessorSet::parse("8-11")).empty());
  EXPECT_TRUE(a.contains(7));
  EXPECT_FALSE(a.contains(8));
}

TEST(Processors, OfThisMachine) {
  const ProcessorSet mine = ProcessorSet::of_this_thread();
  ASSERT_FALSE(mine.empty());
  const ProcessorSet online = online_processors();
  EXPECT_EQ(mine.intersection(online), mine) << mine.text() << " of " << online.text();
  EXPECT_GE(count_cores(mine), 1);
  EXPECT_LE(count_cores(mine), mine.count());
  EXPECT_EQ(count_cores({}), 0);
}

TEST(Processors, AQuotaOfTheControlGroupsOrThoseAbove) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = root / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  EXPECT_EQ(processor_quota(root / "nothing"), std::nullopt);
  write("proc/self/cgroup", "0::/job/step");
  EXPECT_EQ(processor_quota(root.path()), std::nullopt);
  write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
  EXPECT_EQ(processor_quota(root.path()), std::nullopt);
  write("sys/fs/cgroup/job/cpu.max", "150000 100000");
  EXPECT_EQ(processor_quota(root.path()), 1.5);
  write("sys/fs/cgroup/job/step/cpu.max", "50000 100000");
  EXPECT_EQ(processor_quota(root.path()), 0.5);
  write("proc/self/cgroup", "4:cpu,cpuacct:/old\n3:memory:/old");
  EXPECT_EQ(processor_quota(root.path()), std::nullopt);
  write("sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "200000");
  EXPECT_EQ(processor_quota(root.path()), 2);
}

TEST(Processors, OfTheNodesOfAMachine) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& file, const std::string& line) {
    const std::filesystem::path path = root / ("devices/system/node/" + file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << line << "\n";
  };
  EXPECT_TRUE(numa_nodes(root / "nothing").empty());
  write("online", "0,2-3");
  write("node0/cpulist", "0-3,8-11");
  write("node2/cpulist", "4-7");
  write("node3/cpulist", "");
  const std::vector<NumaNode> nodes = numa_nodes(root.path());
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_EQ(nodes[0].number, 0);
  EXPECT_EQ(nodes[0].processors.text(), "0-3,8-11");
  EXPECT_EQ(nodes[1].number, 2);
  EXPECT_EQ(nodes[1].processors.text(), "4-7");
  EXPECT_EQ(nodes[2].number, 3);
  EXPECT_TRUE(nodes[2].processors.empty()) << "memory alone";
}

}  // namespace
}  // namespace lockstep::testing
