#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#if LOCKSTEP_CUDA_STANDIN
#include "control.hpp"
#endif

/// The tests of runtime/cuda are built twice. One build uses the stand-in for CUDA (LOCKSTEP_CUDA_STANDIN=1), where a
/// seed chooses the order of queued work. The second build uses the CUDA runtime, for a machine with a GPU.
namespace lockstep::testing {

#if LOCKSTEP_CUDA_STANDIN
inline constexpr std::uint64_t kSeeds = 200;
#else
inline constexpr std::uint64_t kSeeds = 20;  // number of repetitions; the device chooses the order itself
#endif

/// Fixture that expects at the end of every test: nothing has leaked, the stand-in for CUDA reports no violation, and
/// no CUDA error is set.
class CudaTest : public ::testing::Test {
 protected:
  void need_devices(int devices) {
#if LOCKSTEP_CUDA_STANDIN
    standin::reset({.devices = devices});
#else
    if (const int found = num_gpus(); found < devices) {
      GTEST_SKIP() << "needs " << devices << " CUDA device(s), this machine has " << found;
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
#endif
  }

  void SetUp() override {
    need_devices(1);
  }

  void TearDown() override {
#if LOCKSTEP_CUDA_STANDIN
    expect_clean("at the end");
#else
    if (!IsSkipped()) {
      EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    }
#endif
  }

#if LOCKSTEP_CUDA_STANDIN
  static void expect_clean(const std::string& when) {
    EXPECT_EQ(standin::violations(), std::vector<std::string>{}) << when;
    EXPECT_EQ(standin::leaks(), std::vector<std::string>{}) << when;
    EXPECT_EQ(standin::last_error(), cudaSuccess) << when;
  }
#endif

  /// Calls f for each seed after a reset of the stand-in. Half of the seeds use CUDA's waits for values in memory.
  /// `peer_access`: whether the stand-in's devices have access to each other.
  static void for_seeds(const std::function<void(std::uint64_t seed)>& f, [[maybe_unused]] int devices = 1,
                        std::uint64_t seeds = kSeeds, [[maybe_unused]] bool peer_access = true) {
    for (std::uint64_t seed = 0; seed < std::min(seeds, kSeeds); ++seed) {
#if LOCKSTEP_CUDA_STANDIN
      standin::reset({.devices = devices, .seed = seed, .peer_access = peer_access, .memory_waits = seed % 8 < 4});
#endif
      f(seed);
#if LOCKSTEP_CUDA_STANDIN
      expect_clean("seed " + std::to_string(seed));
#endif
      if (HasFailure()) {
        return;
      }
    }
  }

  static int current_device() {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    return device;
  }
};

class CudaPairTest : public CudaTest {
 protected:
  void SetUp() override { need_devices(2); }
};

/// Waits for all work of a context before objects that were declared earlier are destroyed. Their memory is freed in
/// the order of another stream, which does not wait for this context's work.
class Idle {
 public:
  explicit Idle(Context& context) : context_(context) {}
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;
  ~Idle() {
    try {
      context_.synchronize();
    } catch (const Error&) {  // an earlier failure is already reported
    }
  }

 private:
  Context& context_;
};

/// A tensor in page-locked host memory whose elements are all equal.
class Pinned {
 public:
  Pinned(Context& context, std::int64_t count, float value = 0)
      : resource_(context.device()),
        buffer_(static_cast<std::size_t>(count) * sizeof(float), resource_, context.stream()),
        view_(buffer_.data(), DType::f32, Device::cpu(), Shape{count}) {
    for (float& element : span()) {
      element = value;
    }
  }
  [[nodiscard]] std::span<float> span() const { return view_.span<float>(); }
  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor): used as a view

  /// True if all elements have the value.
  [[nodiscard]] bool holds(float value) const {
    for (const float element : span()) {
      if (!(element == value)) {
        return false;
      }
    }
    return true;
  }

 private:
  PinnedMemoryResource resource_;
  Buffer buffer_;
  TensorView view_;
};

/// Returns the text of the exception of type E that f throws.
template <class E, class F>
std::string error_text(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace lockstep::testing
