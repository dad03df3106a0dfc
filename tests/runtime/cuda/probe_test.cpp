// Tests the probing of GPUs: it must leak nothing, disturb no other process, and say why a GPU cannot be used.
#include <cstdlib>
#include <string>
#include <vector>

#include <lockstep/runtime/machine/usable_gpus.hpp>

#include "tests/runtime/cuda/support.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::testing {
namespace {

using CudaProbeTest = CudaTest;

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST_F(CudaProbeTest, AUsableGpuAndOneWithoutRoom) {
  const GpuInfo gpu = list_gpus().at(0);
  EXPECT_EQ(probe_gpu(gpu, 0), "");
  EXPECT_EQ(probe_gpu(gpu, kMiB), "");
  const std::string why = probe_gpu(gpu, gpu.memory_bytes * 2);
  EXPECT_NE(why.find("bytes are free"), std::string::npos) << why;
  EXPECT_NE(why.find(concat("expected ", gpu.memory_bytes * 2)), std::string::npos) << why;
  EXPECT_EQ(current_device(), 0);
}

TEST_F(CudaProbeTest, TheProgramsOwnContextStays) {
  const GpuInfo gpu = list_gpus().at(0);
  CudaContext context(Device::cuda(0));
  const Tensor tensor = Tensor::zeros(context, {1000}, DType::f32);
  EXPECT_EQ(probe_gpu(gpu, kMiB), "");
  EXPECT_EQ(current_device(), 0);
  CpuContext cpu;
  const Tensor host = Tensor::empty(cpu, {1000}, DType::f32);
  copy(context, tensor, host);
  context.synchronize();
  EXPECT_EQ(host.view().span<float>()[999], 0.0F);
}

#if LOCKSTEP_CUDA_STANDIN

constexpr std::size_t kCard = std::size_t{1} << 30;

TEST_F(CudaProbeTest, LeavesNothingOnAnyGpu) {
  standin::reset({.devices = 3});
  for (const GpuInfo& gpu : list_gpus()) {
    EXPECT_EQ(probe_gpu(gpu, not_occupied_bytes(gpu)), "");
  }
  EXPECT_EQ(standin::calls("cuMemAlloc"), 3);
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{});
  EXPECT_EQ(current_device(), 0);
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  EXPECT_EQ(probe_gpu(list_gpus()[1], kMiB), "");
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2});
  EXPECT_EQ(current_device(), 2);
  EXPECT_EQ(probe_gpu(list_gpus()[2], kMiB), "");
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2}) << "the program's context is still there";
}

TEST_F(CudaProbeTest, WhatOtherProcessesDo) {
  standin::reset({.devices = 5});
  const std::vector<GpuInfo> gpus = list_gpus();
  standin::occupy(1, {.bytes = kCard / 5, .running = true});
  standin::occupy(2, {.running = true, .mode = cudaComputeModeExclusiveProcess});
  standin::occupy(3, {.mode = cudaComputeModeProhibited});
  standin::occupy(4, {.bytes = kCard / 20, .running = true, .mode = cudaComputeModeDefault});  // a display uses the GPU
  const auto why = [&](std::size_t i) { return probe_gpu(gpus[i], not_occupied_bytes(gpus[i])); };
  EXPECT_EQ(why(0), "");
  EXPECT_EQ(why(1),
            concat(kCard - kCard / 5, " of ", kCard, " bytes are free with our context, expected ", kCard / 10 * 9));
  EXPECT_EQ(why(2),
            "no context can be made: CUDA_ERROR_DEVICE_UNAVAILABLE, in exclusive-process mode: another process has it");
  EXPECT_EQ(why(3), "no context can be made: CUDA_ERROR_DEVICE_UNAVAILABLE, its compute mode forbids contexts");
  EXPECT_EQ(why(4), "");
  standin::occupy(2, {.mode = cudaComputeModeExclusiveProcess});
  EXPECT_EQ(why(2), "") << "exclusive, and nobody there";
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{});
}

TEST_F(CudaProbeTest, WhatGoesWrongOnTheWay) {
  const GpuInfo gpu = list_gpus().at(0);
  standin::fail_call(1, cudaErrorMemoryAllocation, "cuDevicePrimaryCtxRetain");
  EXPECT_EQ(probe_gpu(gpu, kMiB), "no context can be made: CUDA_ERROR_OUT_OF_MEMORY");
  standin::fail_call(1, cudaErrorECCUncorrectable, "cuDevicePrimaryCtxRetain");
  EXPECT_EQ(probe_gpu(gpu, kMiB), "no context can be made: CUDA_ERROR_ECC_UNCORRECTABLE");
  standin::fail_call(1, cudaErrorMemoryAllocation, "cuMemAlloc");
  EXPECT_EQ(probe_gpu(gpu, kMiB),
            concat(kCard, " of ", kCard, " bytes are free with our context, expected ", kMiB, " in one piece"));
  // A failure of one of these calls must give a CudaError and leak nothing.
  for (const char* call : {"cudaGetDriverEntryPointByVersion", "cuInit", "cuDeviceGet", "cuCtxPushCurrent",
                           "cuMemGetInfo", "cuMemAlloc", "cuMemFree"}) {
    standin::fail_call(1, cudaErrorECCUncorrectable, call);
    const std::string text = error_text<CudaError>([&] { static_cast<void>(probe_gpu(gpu, kMiB)); });
    EXPECT_NE(text.find(std::string(call).substr(0, 6)), std::string::npos) << call << ": " << text;
    EXPECT_EQ(standin::failed_call(), call);
    expect_clean(call);
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{});
  }
}

TEST_F(CudaProbeTest, ASearchOnTheMachine) {
  standin::reset({.devices = 4});
  standin::occupy(0, {.bytes = kCard / 2, .running = true});
  standin::occupy(2, {.running = true, .mode = cudaComputeModeExclusiveProcess});
  const TemporaryFolder temporary;
  const std::string folder = temporary / "claims";
  {
    const UsableGpus found = find_usable_gpus(2, std::nullopt, {.gpus = list_gpus(), .claim_folder = folder});
    ASSERT_EQ(found.gpus.size(), 2U);
    EXPECT_EQ(found.gpus[0].index, 1);
    EXPECT_EQ(found.gpus[1].index, 3);
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{}) << "nothing on those that are taken either";
    const std::string text = error_text<DeviceError>(
        [&] { static_cast<void>(find_usable_gpus(-1, std::nullopt, {.gpus = list_gpus(), .claim_folder = folder})); });
    for (const char* part : {"GPU 0 (Stand-in 0, GPU-00000000-", "bytes are free", "GPU 1 (Stand-in 1",
                             "claimed by pid ", "GPU 2 (", "exclusive-process mode", "GPU 3 ("}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  ::setenv("LOCKSTEP_CLAIM_FOLDER", folder.c_str(), 1);
  EXPECT_EQ(find_usable_gpus(-1).gpus.size(), 2U);
  EXPECT_EQ(find_usable_gpus(3, kMiB).gpus.size(), 3U) << "half a card is enough for that";
  ::unsetenv("LOCKSTEP_CLAIM_FOLDER");
}

#endif

}  // namespace
}  // namespace lockstep::testing
