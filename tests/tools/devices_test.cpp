// Tests lockstep-devices on made-up machines: folders stand for /sys and /proc, and a library stands for NVML.
#include <unistd.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/gpu_claim.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/run_here.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tools/lockstep_devices/machine.hpp"

int lockstep_devices_main(int argc, char** argv);

namespace lockstep::tools {
namespace {

using testing::expect_holds;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

class DevicesTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  /// Writes files of a host with two sockets of two cores with two hyper-threads; processors i and i + 4 are one core.
  void write_host() const {
    write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Made-up 9000\nprocessor\t: 1\nmodel name\t: Other");
    write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB");
    const std::string cpus = "/sys/devices/system/cpu/";
    write(cpus + "online", "0-7");
    write(cpus + "cpufreq/nothing", "");
    for (int cpu = 0; cpu < 8; ++cpu) {
      const int core = cpu % 4;
      const int socket = core / 2;
      const std::string folder = concat(cpus, "cpu", cpu, "/");
      write(folder + "topology/core_id", std::to_string(core % 2));  // numbers of cores begin at 0 in each socket
      write(folder + "topology/physical_package_id", std::to_string(socket));
      const std::string both = concat(core, ",", core + 4);
      const std::string all = socket == 0 ? "0-1,4-5" : "2-3,6-7";
      const std::vector<std::vector<std::string>> caches{
          {"1", "Data", "32K", both}, {"1", "Instruction", "64K", both}, {"3", "Unified", "8M", all}};
      for (std::size_t i = 0; i < caches.size(); ++i) {
        const std::string cache = concat(folder, "cache/index", i, "/");
        write(cache + "level", caches[i][0]);
        write(cache + "type", caches[i][1]);
        write(cache + "size", caches[i][2]);
        write(cache + "shared_cpu_list", caches[i][3]);
      }
    }
    for (int node = 0; node < 2; ++node) {
      const std::string folder = concat("/sys/devices/system/node/node", node, "/");
      write(folder + "cpulist", node == 0 ? "0-1,4-5" : "2-3,6-7");
      write(folder + "meminfo", concat("Node ", node, " MemTotal:        8388608 kB"));
    }
  }

  void write_pci(int gpu) const {
    const std::string folder = concat("/sys/bus/pci/devices/0000:3", static_cast<char>('a' + gpu), ":00.0/");
    write(folder + "numa_node", gpu == 1 ? "-1" : "1");
    write(folder + "max_link_speed", "32.0 GT/s PCIe");
    write(folder + "max_link_width", "16");
    write(folder + "current_link_speed", "2.5 GT/s PCIe");
    write(folder + "current_link_width", gpu == 1 ? "8" : "16");
  }

  [[nodiscard]] static std::vector<GpuInfo> gpus() {
    std::vector<GpuInfo> list;
    for (int i = 0; i < 3; ++i) {
      list.push_back({.index = i,
                      .uuid = concat("GPU-", i),
                      .pci = concat("0000:3", static_cast<char>('A' + i), ":00.0"),
                      .name = "Made-up 80GB",
                      .memory_bytes = 80 * kGiB,
                      .major = 9});
    }
    return list;
  }

  [[nodiscard]] Machine machine_with(const Nvml* nvml) const {
    Machine machine{.build = "lockstep", .host = read_host(root())};
    add_gpus(machine, gpus(), nvml, root() + "/claims", root());
    return machine;
  }

  [[nodiscard]] const std::string& root() const { return root_.path(); }

 private:
  testing::TemporaryFolder root_;
};

TEST_F(DevicesTest, TheHost) {
  write_host();
  const HostFacts host = read_host(root());
  EXPECT_EQ(host.processor, "Made-up 9000");
  EXPECT_EQ(host.processors, 8);
  EXPECT_EQ(host.cores, 4);
  EXPECT_EQ(host.sockets, 2);
  EXPECT_EQ(host.memory_bytes, 16 * kGiB);
  EXPECT_GE(host.usable, 1);
  ASSERT_EQ(host.caches.size(), 3U);
  EXPECT_EQ(host.caches[0].type, "data");
  EXPECT_EQ(host.caches[0].bytes, 32U * 1024);
  EXPECT_EQ(host.caches[0].count, 4);
  EXPECT_EQ(host.caches[0].sharers, 2);
  EXPECT_EQ(host.caches[2].level, 3);
  EXPECT_EQ(host.caches[2].bytes, 8U << 20);
  EXPECT_EQ(host.caches[2].count, 2);
  EXPECT_EQ(host.caches[2].sharers, 4);
  ASSERT_EQ(host.numa.size(), 2U);
  EXPECT_EQ(host.numa[1].processors, "2-3,6-7");
  EXPECT_EQ(host.numa[1].memory_bytes, 8 * kGiB);
  EXPECT_EQ(copy_array_bytes(host), std::uint64_t{64} << 20);
  expect_holds(report({.build = "lockstep", .host = host, .gpus_missing = "none here"}),
               {"2 sockets, 4 cores, 8 processors", "node 1: processors 2-3,6-7, 8 GiB",
                "L3      2 x 8 MiB unified, for 4", "copy    not measured", "GPUs      none here"});
}

TEST_F(DevicesTest, AHostThatSaysNothing) {
  const HostFacts host = read_host(root() + "/nowhere");
  EXPECT_FALSE(host.cores || host.sockets || host.memory_bytes);
  EXPECT_EQ(host.processors, 0);
  EXPECT_TRUE(host.caches.empty() && host.numa.empty());
  expect_holds(report({.host = host}),
               {"processor not known", "sockets not known, cores not known", "memory  not known"});
  EXPECT_EQ(copy_array_bytes(host), std::uint64_t{64} << 20);
  const PciFacts pci = read_pci("0000:00:00.0", root());
  EXPECT_FALSE(pci.numa_node || pci.generation || pci.width || pci.generation_now || pci.width_now);
}

TEST_F(DevicesTest, Speeds) {
  EXPECT_EQ(pcie_generation("2.5 GT/s PCIe"), 1);
  EXPECT_EQ(pcie_generation("16.0 GT/s PCIe"), 4);
  EXPECT_EQ(pcie_generation("64.0 GT/s PCIe"), 6);
  for (const char* speed : {"", "Unknown", "7 GT/s"}) {
    EXPECT_EQ(pcie_generation(speed), std::nullopt) << speed;
  }
}

TEST_F(DevicesTest, ArraysAreLargerThanTheCaches) {
  HostFacts host{.caches = {{.level = 3, .bytes = std::uint64_t{64} << 20, .count = 2}}, .memory_bytes = 64 * kGiB};
  EXPECT_EQ(copy_array_bytes(host), std::uint64_t{512} << 20);
  host.memory_bytes = 2 * kGiB;
  EXPECT_EQ(copy_array_bytes(host), std::uint64_t{256} << 20);
  const CopySpeed speed = measure_copy(std::uint64_t{1} << 20, 0.001);
  EXPECT_GT(speed.bytes_per_second, 1e6);
  EXPECT_GE(speed.repetitions, 3);
  expect_holds(report({.host = host, .copy = speed}), {"B/s read and written together (measured: two arrays of 1 MiB"});
}

TEST_F(DevicesTest, GpusAsNvmlSeesThem) {
  write_host();
  for (const int gpu : {0, 1}) {
    write_pci(gpu);
  }
  write("/proc/1000/comm", "train_resnet");
  std::string why;
  const std::unique_ptr<Nvml> nvml = Nvml::open(why, LOCKSTEP_TEST_NVML);
  ASSERT_NE(nvml, nullptr) << why;
  const GpuClaim::Attempt claim = GpuClaim::attempt(root() + "/claims", "GPU-1");
  const Machine machine = machine_with(nvml.get());
  ASSERT_EQ(machine.gpus.size(), 3U);
  const NvmlGpu& first = machine.gpus[0].nvml;
  EXPECT_EQ(first.memory_used, 30 * kGiB);
  EXPECT_EQ(first.memory_free, 50 * kGiB);
  EXPECT_EQ(first.memory_clock_mhz, 2619);
  EXPECT_EQ(first.memory_bus_bits, 5120);
  EXPECT_EQ(first.compute_mode, "exclusive process");
  ASSERT_EQ(first.processes->size(), 2U);
  EXPECT_EQ((*first.processes)[0].memory_bytes, 29 * kGiB);
  EXPECT_EQ((*first.processes)[1].memory_bytes, std::nullopt);
  EXPECT_EQ(machine.gpus[1].nvml.processes->size(), 100U) << "more than there was room for";
  EXPECT_FALSE(machine.gpus[2].nvml.memory_used || machine.gpus[2].nvml.processes);
  EXPECT_FALSE(machine.gpus[2].nvml.memory_clock_mhz || machine.gpus[2].nvml.memory_bus_bits);
  ASSERT_EQ(machine.links.size(), 6U);
  EXPECT_EQ(machine.links[0].link.nvlinks, 5) << "four of its own, and one through switches";
  EXPECT_EQ(machine.links[0].link.nearest, "PHB");
  EXPECT_EQ(machine.links[0].link.peer_read, true);
  EXPECT_EQ(machine.links[1].link.nvlinks, 0);
  EXPECT_EQ(machine.links[1].link.nearest, "SYS");
  EXPECT_EQ(machine.links[1].link.peer_read, false);
  expect_holds(
      report(machine),
      {"GPU 0     Made-up 80GB  GPU-0  0000:3A:00.0", "memory  80 GiB: 30 GiB used, 50 GiB free",
       "held by pid 1000 (train_resnet, 29 GiB), pid 1001 (name not known, not known)", "mode    exclusive process",
       "PCIe    generation 5, x16; now generation 1, x16", "now generation 1, x8", "NUMA    node 1",
       "NUMA    not known", concat("; claimed by pid ", ::getpid()), "processes not known", "PCIe    not known",
       "links     GPU 0       GPU 1       GPU 2", "  GPU 0   -           NV5+peer    SYS"});
  EXPECT_EQ(machine.gpus[0].claimed_by, "");
  EXPECT_TRUE(GpuClaim::attempt(root() + "/claims", "GPU-0").claim) << "looking claims nothing";

  const Json json = parse_json(to_json(machine).text(2), "report");
  EXPECT_EQ(json.member("host", "").get<int>("cores", ""), 4);
  const Json::Array gpus = json.get<Json::Array>("gpus", "");
  EXPECT_EQ(gpus.at(0).get<std::uint64_t>("memory_used", ""), 30 * kGiB);
  EXPECT_EQ(gpus.at(0).get<int>("pcie_generation", ""), 5);
  EXPECT_TRUE(gpus.at(0).member("claimed_by", "").is_null());
  EXPECT_EQ(gpus.at(0).get<Json::Array>("processes", "").at(0).get<std::string>("name", ""), "train_resnet");
  EXPECT_TRUE(gpus.at(2).member("processes", "").is_null());
  EXPECT_TRUE(gpus.at(1).member("numa_node", "").is_null());
  EXPECT_EQ(json.get<Json::Array>("links", "").at(0).get<int>("nvlinks", ""), 5);
}

TEST_F(DevicesTest, WithoutNvmlThatHalfIsNotKnown) {
  std::string why;
  EXPECT_EQ(Nvml::open(why, "libno-such-nvml.so.1"), nullptr);
  expect_holds(why, {"libno-such-nvml.so.1: ", "(NVML comes with the driver)"});
  EXPECT_EQ(Nvml::open(why, "libm.so.6"), nullptr);
  expect_holds(why, {" has no function nvmlInit_v2, expected another version of the library "});
  ::setenv("FAKE_NVML_INIT", "9", 1);
  EXPECT_EQ(Nvml::open(why, LOCKSTEP_TEST_NVML), nullptr);
  ::unsetenv("FAKE_NVML_INIT");
  expect_holds(why, {"cannot start: Driver Not Loaded"});
  Machine machine = machine_with(nullptr);
  machine.nvml_missing = why;
  expect_holds(report(machine), {"not known used, not known free", "mode    not known", "processes not known",
                                 "  GPU 0   -           ?+?", "modes and links: ", "Driver Not Loaded"});
  EXPECT_FALSE(std::filesystem::exists(root() + "/claims")) << "looking makes no folder";
  const std::unique_ptr<Nvml> nvml = Nvml::open(why, LOCKSTEP_TEST_NVML);
  ASSERT_NE(nvml, nullptr);
  EXPECT_FALSE(nvml->gpu("GPU-9").compute_mode) << "a GPU that NVML does not know";
  EXPECT_FALSE(nvml->link("GPU-9", "GPU-0").nearest);
}

TEST_F(DevicesTest, ADriverThatAnswersWithAnErrorIsTold) {
  Machine machine;
  EXPECT_FALSE(find_gpus(
      machine, []() -> std::vector<GpuInfo> { throw CudaError("cudaErrorSystemDriverMismatch"); }, root()));
  expect_holds(report(machine), {"host ", "GPUs      cudaErrorSystemDriverMismatch"});
  EXPECT_TRUE(find_gpus(
      machine, [] { return std::vector<GpuInfo>{}; }, root()));
  expect_holds(report(machine), {"host alone"});
}

TEST_F(DevicesTest, TheProgramOnThisMachine) {
  const auto run = [](const std::string& options) {
    return testing::run_here(lockstep_devices_main, "lockstep-devices " + options);
  };
  const Json json = parse_json(run("--json --no-measure").finished().printed, "output");
  EXPECT_GE(json.member("host", "").get<int>("usable", ""), 1);
  EXPECT_EQ(json.get<Json::Array>("gpus", "").size(), static_cast<std::size_t>(num_gpus()));
  run("").finished({"\nhost ", "B/s read and written", num_gpus() == 0 ? "this is the host alone" : "\nGPU 0"});
  testing::expect_refused(run("--nope"), {"--nope", "--help"});
  testing::expect_refused(testing::run_command(LOCKSTEP_TEST_PROGRAM " --nope"), {"--nope", "--help"});
  run("--help").finished({"--json", "--no-measure", "Exit codes", "not known"});
}

}  // namespace
}  // namespace lockstep::tools
