#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/support/guarded.hpp"

namespace lockstep::testing {

/// Tensors with more elements than kLarge need 64-bit indices on a GPU. On the emulation of a GPU kLarge is small.
/// Tests of larger tensors are then quick, but cover no large index.
extern const std::int64_t kLarge;

/// Fixture of tests that run kernels on a GPU, or on the emulation of a GPU. Both contexts, host and GPU, exist.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() == 0) {
      GTEST_SKIP() << "needs a CUDA device, this machine has none";
    }
    cuda_ = std::make_unique<CudaContext>(Device::cuda(0));
  }
  [[nodiscard]] CpuContext& cpu() { return cpu_; }
  [[nodiscard]] CudaContext& cuda() { return *cuda_; }

  /// Returns the elements of a contiguous view in the GPU's memory.
  [[nodiscard]] std::vector<double> fetch(const TensorView& view) {
    const Tensor host = Tensor::empty(cpu_, view.shape, view.dtype);
    copy(cuda(), view, host);
    cuda().synchronize();
    return to_doubles(host);
  }

  /// Runs a test with large tensors; skips it when the GPU has no room for them.
  template <class Test>
  void run_large(Test test) {
    try {
      test();
    } catch (const OutOfMemory& error) {
      GTEST_SKIP() << error.what();
    }
  }

 private:
  CpuContext cpu_;
  std::unique_ptr<CudaContext> cuda_;
};

}  // namespace lockstep::testing
