// Tests the texts that say why a GPU cannot be used, on machines that do not exist.
#include <lockstep/runtime/machine/gpu_check.hpp>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/context.hpp>

namespace lockstep::testing {
namespace {

GpuState good() {
  return {.device = Device::cuda(1),
          .toolkit = 13020,
          .driver = 13000,
          .devices = 2,
          .name = "NVIDIA H200",
          .major = 9,
          .built_for = "90",
          .free = 140000,
          .total = 150000};
}

/// Returns the text of why_unusable() for the state of a usable GPU (good()) after `change`.
template <class Change>
std::string why(Change&& change, GpuMemory memory = GpuMemory::needed) {
  GpuState state = good();
  change(state);
  return why_unusable(state, memory);
}

TEST(GpuCheck, NothingIsWrong) {
  EXPECT_EQ(why_unusable(good()), "");
  EXPECT_EQ(why([](GpuState& s) { s.mode = GpuState::Mode::exclusive; }), "") << "and nobody has it";
}

TEST(GpuCheck, NamesTheDeviceAndWhatToDo) {
  EXPECT_EQ(why([](GpuState& s) { s.device = Device::cpu(); }), "device is cpu, expected a CUDA device");
  EXPECT_EQ(why([](GpuState& s) { s.devices = s.driver = 0; }),
            "cuda:1 cannot be used: there is no NVIDIA driver, this build needs one for CUDA 13.0 or newer");
  EXPECT_EQ(
      why([](GpuState& s) {
        s.devices = 0;
        s.driver = 12040;
      }),
      "cuda:1 cannot be used: the NVIDIA driver knows CUDA up to 12.4, this build needs 13.0 or newer: update the "
      "driver, or build with the toolkit of CUDA 12");
  EXPECT_EQ(why([](GpuState& s) { s.devices = 0; }),
            "cuda:1 cannot be used: the NVIDIA driver shows no GPU to this process; is CUDA_VISIBLE_DEVICES right?");
  for (const int index : {-1, 2, 1000}) {
    EXPECT_EQ(why([&](GpuState& s) { s.device.index = index; }),
              concat("cuda:", index, " does not exist: this process can use 2 CUDA device(s)"));
  }
  EXPECT_EQ(why([](GpuState& s) { s.major = 7; }),
            "cuda:1 (NVIDIA H200): its compute capability is 7.0, this build is for 90; configure with "
            "-DLOCKSTEP_CUDA_ARCHITECTURES=70, or take another device");
  EXPECT_EQ(why([](GpuState& s) { s.mode = GpuState::Mode::prohibited; }),
            "cuda:1 (NVIDIA H200): its compute mode is prohibited; take another device, or have the mode set with "
            "nvidia-smi -c 0");
  const auto taken = [](GpuState& s) { s.no_context = "cudaErrorDevicesUnavailable"; };
  EXPECT_NE(why(taken).find("(cudaErrorDevicesUnavailable): another process holds the device"), std::string::npos);
  EXPECT_NE(why([&](GpuState& s) {
              taken(s);
              s.mode = GpuState::Mode::exclusive;
            }).find("exclusive-process mode and another process has it"),
            std::string::npos);
  const auto full = [](GpuState& s) { s.free = 149; };
  EXPECT_EQ(
      why(full),
      "cuda:1 (NVIDIA H200): 149 of 150000 bytes are free; take another device, or end the process that holds them "
      "(nvidia-smi lists them)");
  EXPECT_EQ(why(full, GpuMemory::held), "");
  EXPECT_EQ(why([](GpuState& s) { s.free = 150; }), "");
}

TEST(GpuCheck, WhichGpusABuildRunsOn) {
  EXPECT_EQ(oldest_architecture("90"), 90);
  EXPECT_EQ(oldest_architecture("100a-real,90,120f"), 90);
  EXPECT_EQ(oldest_architecture("90,80-virtual"), 80);
  EXPECT_EQ(oldest_architecture("native"), 0);
  EXPECT_EQ(oldest_architecture(""), 0);
  EXPECT_TRUE(runs_on("90", 9, 0));
  EXPECT_TRUE(runs_on("90", 10, 0)) << "by its PTX";
  EXPECT_FALSE(runs_on("90", 8, 9));
  EXPECT_FALSE(runs_on("90-real", 10, 0));
  EXPECT_TRUE(runs_on("80-real", 8, 6)) << "the same major version";
  EXPECT_FALSE(runs_on("86-real", 8, 0));
  EXPECT_TRUE(runs_on("80-virtual", 12, 0));
  EXPECT_TRUE(runs_on("80-real,90-real", 9, 0));
  EXPECT_FALSE(runs_on("80-real,100-real", 9, 0));
  EXPECT_TRUE(runs_on("90a", 9, 0));
  EXPECT_FALSE(runs_on("90a", 10, 0));
  EXPECT_FALSE(runs_on("100a", 10, 3));
  EXPECT_TRUE(runs_on("100f-real", 10, 0));
  EXPECT_TRUE(runs_on("100f-real", 10, 3)) << "a later member of the family";
  EXPECT_TRUE(runs_on("100f-virtual", 10, 3));
  EXPECT_FALSE(runs_on("103f", 10, 0));
  EXPECT_FALSE(runs_on("100f-real", 12, 0));
  EXPECT_FALSE(runs_on("100f", 12, 0)) << "its PTX is the family's, too";
  for (const char* unknown : {"native", "all", "all-major", ""}) {
    EXPECT_TRUE(runs_on(unknown, 5, 2)) << unknown;
  }
}

TEST(GpuCheck, WithoutAGpuThereIsAReasonAndAContextGivesIt) {
  if (num_gpus() > 0) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  EXPECT_FALSE(why_no_gpus().empty());
  EXPECT_THROW(check_gpu(Device::cuda(0)), DeviceError);
  try {
    CudaContext{Device::cuda(0)};
    ADD_FAILURE() << "a context was made";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.code(), exit_code::kBadInput);
  }
}

}  // namespace
}  // namespace lockstep::testing
