#include "measure/copy_paths.hpp"

#include <set>

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::measure {
namespace {

constexpr MeasureOptions kQuick{.target_seconds = 0, .min_iterations = 3, .max_iterations = 3};

std::set<std::string> names_of(const std::vector<CopyPath>& paths) {
  std::set<std::string> names;
  for (const CopyPath& path : paths) {
    EXPECT_TRUE(names.insert(path.name).second) << path.name << " is there twice";
  }
  return names;
}

const CopyPath& find(const std::vector<CopyPath>& paths, const std::string& name) {
  for (const CopyPath& path : paths) {
    if (path.name == name) {
      return path;
    }
  }
  throw std::runtime_error("no path " + name);
}

TEST(CopyPaths, AMachineWithoutGpusHasTheHostsOwn) {
  const auto paths = copy_paths({});
  EXPECT_EQ(names_of(paths), (std::set<std::string>{
                                 "host_to_host/pageable/one_way/memcpy", "host_to_host/pageable/one_way/streaming",
                                 "host_to_host/pageable/one_way/copy", "host_to_host/pageable/one_way/copy_worker",
                                 "host_to_host/pageable/both_ways/memcpy", "host_to_host/pageable/both_ways/streaming",
                                 "host_to_host/pageable/both_ways/copy"}));
}

TEST(CopyPaths, OneGpuHasNoPeer) {
  const std::vector<Device> one{Device::cuda(0)};
  const auto names = names_of(copy_paths(one));
  for (const char* name : {"host_to_device/0/pageable/one_way/copy_engine", "host_to_device/0/pinned/one_way/kernel",
                           "device_to_host/0/pinned/one_way/copy_engine", "host_to_device/0/pinned/both_ways/kernel",
                           "device_to_device/0/device/one_way/kernel"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
  for (const std::string& name : names) {
    EXPECT_EQ(name.find("peer"), std::string::npos) << name;
    EXPECT_EQ(name.find("device/0/pageable/both_ways"), std::string::npos) << name;
  }
}

TEST(CopyPaths, EveryPairOfGpus) {
  const std::vector<Device> three{Device::cuda(0), Device::cuda(2), Device::cuda(5)};
  const auto names = names_of(copy_paths(three));
  int one_way = 0;
  int both_ways = 0;
  for (const std::string& name : names) {
    one_way += name.starts_with("peer/") && name.find("one_way") != std::string::npos ? 1 : 0;
    both_ways += name.starts_with("peer/") && name.find("both_ways") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(one_way, 6);
  EXPECT_EQ(both_ways, 3);
  EXPECT_EQ(names.count("peer/5_to_2/one_way/copy_engine"), 1U);
}

TEST(CopyPaths, PayloadAndTraffic) {
  const std::vector<Device> two{Device::cuda(0), Device::cuda(1)};
  const auto paths = copy_paths(two);
  const auto expect = [&](const char* name, double payload, double traffic) {
    EXPECT_EQ(find(paths, name).payload_bytes(100), payload) << name;
    EXPECT_EQ(find(paths, name).traffic_bytes(100), traffic) << name;
  };
  expect("host_to_host/pageable/one_way/memcpy", 100, 200);  // traffic is 200: every byte is read and written
  expect("host_to_host/pageable/both_ways/copy", 200, 400);
  expect("host_to_device/1/pinned/one_way/copy_engine", 100, 100);  // traffic is 100: every byte crosses the link once
  expect("host_to_device/1/pinned/both_ways/copy_engine", 200, 200);
  expect("device_to_device/0/device/one_way/copy_engine", 100, 200);
  expect("peer/0_to_1/one_way/copy_engine", 100, 100);
}

TEST(CopyBench, EveryHostPathCopiesEveryByte) {
  for (const CopyPath& path : copy_paths({})) {
    CopyBench bench(path, 3 << 20, 2, 0);
    for (const CopySize& size : {CopySize{1}, CopySize{4}, CopySize{63}, CopySize{1 << 20}, CopySize{(3 << 20) - 5},
                                 CopySize{1001, 7, true}, CopySize{1 << 20, 64, false}}) {
      EXPECT_NO_THROW(bench.check(size)) << path.name << " of " << size.bytes;
    }
  }
}

TEST(CopyBench, GroupedPiecesAreTheSameBytes) {
  for (const CopyPath& path : copy_paths({})) {
    EXPECT_EQ(path.can_group(), path.mover == Mover::copy_worker) << path.name;
    CopyBench bench(path, 1 << 20, 2, 1 << 20);
    const CopySize grouped{.bytes = 1 << 20, .pieces = 256, .grouped = true};
    if (!path.can_group()) {
      EXPECT_THROW(bench.check(grouped), UsageError) << path.name;
      continue;
    }
    const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
    for (const CopySize& size : {grouped, CopySize{1001, 7, false, true}, CopySize{1, 1, false, true}}) {
      EXPECT_NO_THROW(bench.check(size)) << size.bytes;
      // measure() copies to several buffers in turn. check() must then find all of them right.
      EXPECT_EQ(bench.measure(*alone, size, kQuick).samples.seconds.size(), 3U) << size.bytes;
      EXPECT_NO_THROW(bench.check(size)) << size.bytes << ", after they were measured";
    }
    EXPECT_EQ(copy_name(path, grouped), "host_to_host/pageable/one_way/copy_worker/1048576/pieces:256/grouped");
  }
  const std::vector<Device> two{Device::cuda(0), Device::cuda(1)};
  for (const CopyPath& path : copy_paths(two)) {
    const bool kernel = path.name.starts_with("device_to_device/") && path.mover == Mover::kernel;
    EXPECT_EQ(path.can_group(), kernel || path.mover == Mover::copy_worker) << path.name;
  }
}

TEST(NumaPaths, EveryPairOfNodesWithProcessorsOfThisProcess) {
  const std::vector<NumaNode> machine{{0, ProcessorSet::parse("0-3")},
                                      {1, ProcessorSet::parse("4-7")},
                                      {2, ProcessorSet::parse("")},  // node with memory but no processors
                                      {5, ProcessorSet::parse("8-11")}};
  const std::vector<NumaNode> usable = usable_nodes(machine, ProcessorSet::parse("2-3,9"));
  ASSERT_EQ(usable.size(), 2U);
  EXPECT_EQ(usable[0].processors.text(), "2-3");
  EXPECT_EQ(usable[1].processors.text(), "9");
  const auto paths = numa_paths(usable);
  EXPECT_EQ(names_of(paths), (std::set<std::string>{"numa/0_to_0/one_way/memcpy", "numa/0_to_0/one_way/copy",
                                                    "numa/0_to_5/one_way/memcpy", "numa/0_to_5/one_way/copy",
                                                    "numa/5_to_0/one_way/memcpy", "numa/5_to_0/one_way/copy",
                                                    "numa/5_to_5/one_way/memcpy", "numa/5_to_5/one_way/copy"}));
  const CopyPath& away = find(paths, "numa/5_to_0/one_way/copy");
  EXPECT_EQ(away.from.node->processors.text(), "9");
  EXPECT_EQ(away.to.node->processors.text(), "2-3");
  EXPECT_EQ(away.traffic_bytes(100), 100) << "over the link between the nodes";
  EXPECT_EQ(find(paths, "numa/5_to_5/one_way/copy").traffic_bytes(100), 200);
  EXPECT_FALSE(away.can_group());
  EXPECT_TRUE(numa_paths(std::span(usable).first(1)).empty());
  EXPECT_TRUE(usable_nodes(machine, ProcessorSet::parse("12-15")).empty());
}

TEST(NumaPaths, CopyEveryByteAndBindNobodyElse) {
  const ProcessorSet mine = ProcessorSet::of_this_thread();
  const ProcessorSet first = ProcessorSet::parse(std::to_string(mine.numbers().front()));
  const ProcessorSet last = ProcessorSet::parse(std::to_string(mine.numbers().back()));
  // Both nodes of this test may be on one real NUMA node. The copies must work even then.
  const std::vector<NumaNode> nodes{{0, first}, {1, last}};
  for (const CopyPath& path : numa_paths(nodes)) {
    CopyBench bench(path, 1 << 20, 2, 0);
    EXPECT_NO_THROW(bench.check({(1 << 20) - 5})) << path.name;
  }
  EXPECT_EQ(ProcessorSet::of_this_thread(), mine);
  const std::vector<NumaNode> missing{{0, first}, {1, ProcessorSet::parse("60000")}};
  EXPECT_THROW(CopyBench(find(numa_paths(missing), "numa/0_to_1/one_way/memcpy"), 4), StateError);
}

TEST(CopyBench, MeasuresAndNames) {
  const auto paths = copy_paths({});
  CopyBench bench(find(paths, "host_to_host/pageable/both_ways/copy"), 1 << 16, 2, 1 << 18);
  const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
  const Measurement line = bench.measure(*alone, {1 << 16}, kQuick);
  EXPECT_EQ(line.name, "host_to_host/pageable/both_ways/copy/65536");
  EXPECT_EQ(line.bytes, 65536);
  EXPECT_EQ(line.samples.seconds.size(), 3U);
  EXPECT_GT(line.samples.min(), 0);
  EXPECT_EQ(line.payload_bytes, 2.0 * 65536);
  EXPECT_EQ(bench.measure(*alone, {1 << 16, 16, true}, kQuick).name,
            "host_to_host/pageable/both_ways/copy/65536/pieces:16/wait:each");
  EXPECT_EQ(bench.measure(*alone, {1 << 16, 16, false}, kQuick).name,
            "host_to_host/pageable/both_ways/copy/65536/pieces:16/wait:once");
}

TEST(CopyBench, RefusesSizesThatItHasNoMemoryFor) {
  const CopyPath path = copy_paths({}).front();
  EXPECT_THROW(CopyBench(path, 0), UsageError);
  CopyBench bench(path, 100, 1, 0);
  EXPECT_THROW((void)bench.work({101}), UsageError);
  EXPECT_THROW((void)bench.work({0}), UsageError);
  EXPECT_THROW((void)bench.work({10, 11}), UsageError);
  EXPECT_THROW((void)bench.work({10, 0}), UsageError);
}

}  // namespace
}  // namespace lockstep::measure
