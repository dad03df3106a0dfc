#include <lockstep/runtime/context/memory_summary.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = kKiB * kKiB;

/// Fixture with a made-up /proc and /sys.
class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("lockstep_memory_" + std::to_string(getpid()));
    put("/proc/meminfo", "MemTotal:       1000000 kB\nMemFree:          100000 kB\nMemAvailable:     600000 kB\n");
    put("/proc/self/status", "Name:\ttest\nVmPeak:\t    9999 kB\nVmRSS:\t    2048 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(HostMemoryTest, WithoutControlGroups) {
  const HostMemory memory = read_host_memory(root_);
  EXPECT_EQ(memory.total, 1000000 * kKiB);
  EXPECT_EQ(memory.available, 600000 * kKiB);
  EXPECT_EQ(memory.resident, 2048 * kKiB);
  EXPECT_FALSE(memory.limit.has_value());
}

TEST_F(HostMemoryTest, Version2TakesTheTightestLevel) {
  put("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  const std::string slurm = "/sys/fs/cgroup/slurm";
  put(slurm + "/memory.max", std::to_string(300 * kMiB));
  put(slurm + "/memory.current", std::to_string(290 * kMiB));
  put(slurm + "/memory.stat", "anon 5\ninactive_file " + std::to_string(30 * kMiB) + "\n");
  put(slurm + "/job_7/memory.max", std::to_string(100 * kMiB));
  put(slurm + "/job_7/memory.current", std::to_string(20 * kMiB));
  put(slurm + "/job_7/step_0/memory.max", "max\n");
  put(slurm + "/job_7/step_0/memory.current", "5\n");
  const auto limit = read_host_memory(root_).limit;
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->bytes, 300 * kMiB);  // 300 - (290 - 30) is less than 100 - 20
  EXPECT_EQ(limit->available, 40 * kMiB);
  put(slurm + "/job_7/memory.current", std::to_string(101 * kMiB));  // the usage is above the limit for a moment
  EXPECT_EQ(read_host_memory(root_).limit->bytes, 100 * kMiB);
  EXPECT_EQ(read_host_memory(root_).limit->available, 0U);
}

TEST_F(HostMemoryTest, Version2InAContainer) {
  // In a container, /proc/self/cgroup has the group's path in the host's tree, but the container's /sys/fs/cgroup shows
  // this group as its root.
  put("/proc/self/cgroup", "0::/kubepods/pod7\n");
  put("/sys/fs/cgroup/memory.max", std::to_string(64 * kMiB));
  put("/sys/fs/cgroup/memory.current", std::to_string(kMiB));
  EXPECT_EQ(read_host_memory(root_).limit->bytes, 64 * kMiB);
  EXPECT_EQ(read_host_memory(root_).limit->available, 63 * kMiB);
  put("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_FALSE(read_host_memory(root_).limit.has_value());
}

TEST_F(HostMemoryTest, Version1) {
  put("/proc/self/cgroup", "11:cpu,cpuacct:/job\n9:memory:/job\n1:name=systemd:/x\n0::/\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(10 * kMiB));
  put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(9 * kMiB));
  put("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(2 * kMiB));
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // this number means no limit
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5");
  const auto limit = read_host_memory(root_).limit;
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->bytes, 10 * kMiB);
  EXPECT_EQ(limit->available, 3 * kMiB);
}

TEST_F(HostMemoryTest, WithoutProc) {
  put("/proc/meminfo", "nothing of use\n");
  EXPECT_THROW(static_cast<void>(read_host_memory(root_)), UnsupportedError);
  EXPECT_THROW(static_cast<void>(read_host_memory(root_ + "/nowhere")), UnsupportedError);
}

TEST(MemorySummary, OfThisMachine) {
  CpuContext context;
  const MemorySummary before = memory_summary(context);
  EXPECT_EQ(before.device, Device::cpu());
  EXPECT_EQ(before.resource->in_use, 0U);
  EXPECT_GT(before.process, 0U);
  EXPECT_GT(before.total, 0U);
  EXPECT_LE(before.free, before.total);
  constexpr std::size_t kBytes = 32 * kMiB;
  {
    const Tensor tensor = Tensor::empty(context, Shape{static_cast<std::int64_t>(kBytes)}, DType::u8);
    std::memset(tensor.view().data, 1, kBytes);
    const MemorySummary during = memory_summary(context);
    EXPECT_EQ(during.resource->in_use, kBytes);
    EXPECT_EQ(during.resource->peak, kBytes);
    EXPECT_GE(*during.process, *before.process + kBytes / 2);  // the memory is really in use
  }
  const MemorySummary after = memory_summary(context);
  EXPECT_EQ(after.resource->in_use, 0U);
  EXPECT_EQ(after.resource->peak, kBytes);
  // The summary of another context has the counts of its own resource, but describes the same machine.
  CpuContext other;
  EXPECT_EQ(memory_summary(other).resource->peak, 0U);
  EXPECT_EQ(memory_summary(other).total, after.total);
}

/// A memory resource of the host program that keeps no counts.
class Plain final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override {
    return host_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override {
    host_.deallocate(pointer, bytes, alignment, stream);
  }
  Device device() const override { return Device::cpu(); }

 private:
  HostMemoryResource host_;
};

TEST(MemorySummary, ResourcesThatCountAndOthers) {
  Plain plain;
  CpuContext context({.memory = &plain});
  EXPECT_FALSE(memory_summary(context).resource.has_value());
  TrackingMemoryResource tracking(plain);
  CpuContext counted({.memory = &tracking});
  { const Tensor tensor = Tensor::empty(counted, Shape{100}, DType::u8); }
  const Tensor tensor = Tensor::empty(counted, Shape{60}, DType::u8);
  EXPECT_EQ(memory_summary(counted).resource->in_use, 60U);
  EXPECT_EQ(memory_summary(counted).resource->peak, 100U);
}

TEST(MemorySummary, Text) {
  MemorySummary summary{.device = Device::cuda(0),
                        .resource = MemoryUsage{.in_use = 1536 * kMiB, .cached = 0, .peak = 2048 * kMiB},
                        .others = 1000,
                        .free = 79360 * kMiB,
                        .total = 81920 * kMiB};
  EXPECT_EQ(to_string(summary),
            "cuda:0: 1.50 GiB in use, 0 B cached, peak 2 GiB; others 1000 B; free 77.5 GiB of 80 GiB");
  summary = {.process = 500 * kMiB, .others = 12 * kKiB, .free = 0, .total = 1024 * kMiB, .limited = true};
  EXPECT_EQ(to_string(summary), "cpu: process 500 MiB; others 12 KiB; free 0 B of 1 GiB (limit of the control group)");
}

}  // namespace
}  // namespace lockstep::testing
