#pragma once

#include <gtest/gtest.h>

#include <lockstep/runtime/context.hpp>

namespace lockstep::testing {

/// Fixture of tests that run kernels on a GPU, or on the emulation of one: both contexts are there.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "needs a CUDA device, this machine has none";
    }
    cuda_ = std::make_unique<CudaContext>(Device::cuda(0));
  }
  [[nodiscard]] CpuContext& cpu() { return cpu_; }
  [[nodiscard]] CudaContext& cuda() { return *cuda_; }

 private:
  CpuContext cpu_;
  std::unique_ptr<CudaContext> cuda_;
};

}  // namespace lockstep::testing
