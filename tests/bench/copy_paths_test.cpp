#include "bench/support/copy_paths.hpp"

#include <set>

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/error.hpp>

namespace lockstep::bench {
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
  expect("host_to_host/pageable/one_way/memcpy", 100, 200);  // read and written
  expect("host_to_host/pageable/both_ways/copy", 200, 400);
  expect("host_to_device/1/pinned/one_way/copy_engine", 100, 100);  // over the link once
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
}  // namespace lockstep::bench
