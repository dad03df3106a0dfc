// Tests copies through staging memory. Needs the stand-in for CUDA, which counts calls, can leave out a wait, can make
// a call fail, and reports the devices whose memory is used.
#include <map>
#include <numeric>
#include <set>

#include "tests/runtime/cuda/support.hpp"

namespace lockstep::testing {
namespace {

using CudaStagingTest = CudaTest;

TensorView view_of(std::vector<float>& values) {
  return {std::span(values), Shape{static_cast<std::int64_t>(values.size())}};
}

/// Returns how often each call of a copy was made since the previous copies_made().
std::string copies_made() {
  static std::map<std::string, std::int64_t> before;
  std::string text;
  for (const char* name : {"cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemcpy3DAsync", "cudaMemcpyPeerAsync",
                           "cudaMemcpy3DPeerAsync", "cudaMallocHost"}) {
    const std::int64_t now = standin::calls(name);
    const std::int64_t made = now - before[name];
    before[name] = now;
    text += made == 0 ? "" : (text.empty() ? "" : ", ") + std::to_string(made) + " " + name;
  }
  return text;
}

TEST_F(CudaStagingTest, ThePathsOfTheTable) {
  static_cast<void>(copies_made());
  standin::reset({.devices = 2});
  CudaContext context(Device::cuda(0));
  const Tensor device = Tensor::zeros(context, Shape{4, 6, 100000}, DType::u8);
  const Tensor other = Tensor::zeros(context, Shape{4, 6, 100000}, DType::u8);
  PinnedMemoryResource resource(context.device());
  const Buffer buffer(device.view().bytes(), resource, context.stream());
  const TensorView pinned(buffer.data(), DType::u8, Device::cpu(), device.shape());
  std::vector<std::uint8_t> memory(device.view().bytes());
  const TensorView pageable(memory.data(), DType::u8, Device::cpu(), device.shape());
  const auto row = [](const TensorView& v, std::int64_t length) {
    return v.slice(0, 1, 2).slice(1, 2, 3).slice(2, 10, 10 + length);
  };
  const auto plane = [](const TensorView& v) { return v.slice(0, 1, 2).slice(2, 0, 50); };
  const auto stack = [](const TensorView& v) { return v.slice(1, 0, 5).slice(2, 0, 50); };
  static_cast<void>(copies_made());

  copy(context, pinned, device);
  EXPECT_EQ(copies_made(), "1 cudaMemcpyAsync");
  copy(context, plane(device), plane(pinned));
  EXPECT_EQ(copies_made(), "1 cudaMemcpy2DAsync");
  copy(context, stack(pinned), stack(device));
  EXPECT_EQ(copies_made(), "1 cudaMemcpy3DAsync");
  copy(context, stack(other), stack(device));
  EXPECT_EQ(copies_made(), "1 cudaMemcpy3DAsync");
  EXPECT_GT(standin::queued_work(), 0U) << "nothing of this waits";
  copy(context, row(pageable, 1 << 16), row(device, 1 << 16));
  EXPECT_EQ(copies_made(), "1 cudaMemcpyAsync") << "by the driver";
  copy(context, row(pageable, (1 << 16) + 1), row(device, (1 << 16) + 1));
  EXPECT_EQ(copies_made(), "1 cudaMemcpyAsync, 1 cudaMallocHost") << "through staging, which is made now";
  copy(context, stack(pageable), stack(device));
  EXPECT_EQ(copies_made(), "1 cudaMemcpy3DAsync");
  copy(context, plane(device), plane(pageable));
  EXPECT_EQ(copies_made(), "1 cudaMemcpy2DAsync");
  copy(context, device.view().reshape(Shape{2400, 1000}).permute({1, 0}), pinned.reshape(Shape{1000, 2400}));
  EXPECT_EQ(copies_made(), "1 cudaMemcpyAsync") << "2.4 MB: one box";
  context.synchronize();
}

TEST_F(CudaStagingTest, ManyBlocksOfPinnedMemoryGoThroughStaging) {
  CudaContext context(Device::cuda(0));
  for (const std::int64_t blocks : {64, 65}) {
    // The view has its rows in reverse order, so a direct copy needs one call for each row. Above 64 rows the copy goes
    // through staging memory.
    const Pinned in(context, blocks * 3, 2.0F);
    const Tensor device = Tensor::zeros(context, Shape{blocks, 3}, DType::f32);
    const TensorView reversed(in.span().data() + (blocks - 1) * 3, DType::f32, Device::cpu(), Shape{blocks, 3},
                              Strides{-3, 1});
    const auto before = standin::calls("cudaMemcpyAsync");
    copy(context, reversed, device);
    EXPECT_EQ(standin::calls("cudaMemcpyAsync") - before, blocks == 64 ? 64 : 1);
    context.synchronize();
  }
}

TEST_F(CudaStagingTest, PeersAreAskedOnce) {
  for (const bool access : {true, false}) {
    standin::reset({.devices = 2, .peer_access = access});
    CudaContext context(Device::cuda(0));
    CudaContext theirs(Device::cuda(1));
    const Tensor a = Tensor::zeros(context, Shape{100}, DType::f32);
    const Tensor b = Tensor::zeros(theirs, Shape{100}, DType::f32);
    const auto calls = [&] {
      theirs.synchronize();
      for (int i = 0; i < 3; ++i) {
        copy(context, a, b);
        copy(context, b, a);
      }
      context.synchronize();
    };
    calls();
    const auto streams = standin::calls("cudaStreamCreateWithPriority");
    const auto events = standin::calls("cudaEventCreateWithFlags");
    calls();
    EXPECT_EQ(standin::calls("cudaDeviceCanAccessPeer"), 1);
    EXPECT_EQ(standin::calls("cudaDeviceEnablePeerAccess"), access ? 1 : 0);
    EXPECT_EQ(standin::calls("cudaMemPoolSetAccess"), access ? 1 : 0) << "of the other device's pool";
    EXPECT_EQ(standin::calls("cudaMemcpyPeerAsync"), access ? 12 : 0);
    EXPECT_EQ(standin::calls("cudaMallocHost"), access ? 0 : 1);
    EXPECT_EQ(standin::calls("cudaStreamCreateWithPriority"), streams);
    EXPECT_EQ(standin::calls("cudaEventCreateWithFlags"), events);
    if (access) {  // a second context finds peer access enabled
      CudaContext second(Device::cuda(0));
      copy(second, a, b);
      second.synchronize();
      EXPECT_EQ(standin::calls("cudaDeviceEnablePeerAccess"), 2);
      EXPECT_EQ(standin::calls("cudaMemPoolSetAccess"), 1);
      const Tensor of_another_pool = Tensor::zeros(second, Shape{100}, DType::f32);
      second.synchronize();
      copy(theirs, of_another_pool, b);
      theirs.synchronize();
      EXPECT_EQ(standin::calls("cudaMemPoolSetAccess"), 2);
    }
  }
}

TEST_F(CudaStagingTest, ATooManyPeersAnswerIsNoAccess) {
  standin::reset({.devices = 2});
  CudaContext context(Device::cuda(0));
  CudaContext theirs(Device::cuda(1));
  const Tensor a = Tensor::zeros(context, Shape{100}, DType::f32);
  const Tensor b = Tensor::zeros(theirs, Shape{100}, DType::f32);
  theirs.synchronize();
  standin::fail_call(1, cudaErrorTooManyPeers, "cudaDeviceEnablePeerAccess");
  copy_now(context, a, b);
  EXPECT_EQ(standin::calls("cudaMemcpyPeerAsync"), 0);
  EXPECT_EQ(standin::calls("cudaMemcpyAsync"), 2);
}

/// Copies between two devices without peer access, through small halves of the staging memory, which an earlier copy
/// has used. Leaves out wait number `forgotten` of the copy. Returns true if all elements arrived and the stand-in
/// reports no violation.
bool crosses(std::uint64_t seed, bool fetch, std::int64_t forgotten) {
  standin::reset({.devices = 2, .seed = seed, .peer_access = false});
  bool right = false;
  {
    CudaContext first(Device::cuda(0));
    CudaContext second(Device::cuda(1));
    CudaContext& context = fetch ? second : first;
    configure_staging(context, {.half_bytes = 64});
    constexpr std::int64_t kCount = 80;  // five boxes
    const Pinned in(first, kCount);
    const Pinned out(second, kCount);
    std::iota(in.span().begin(), in.span().end(), 1.0F);
    const Tensor src = Tensor::zeros(first, Shape{kCount}, DType::f32);
    const Tensor dst = Tensor::zeros(second, Shape{kCount}, DType::f32);
    const Tensor old = Tensor::zeros(first, Shape{kCount}, DType::f32);
    const Tensor older = Tensor::zeros(second, Shape{kCount}, DType::f32);
    second.synchronize();
    first.synchronize();
    copy(context, old, older);  // this copy uses the halves of the staging memory
    copy(first, in, src);
    Event ready(first.device());
    first.stream().record(ready);
    second.stream().wait(ready);
    standin::forget_wait(forgotten);
    copy(context, src, dst);
    standin::forget_wait(0);
    if (!fetch) {
      first.synchronize();
    }
    copy(second, dst, out);
    second.synchronize();
    first.synchronize();
    right = std::equal(in.span().begin(), in.span().end(), out.span().begin());
  }
  return right && standin::violations().empty();
}

/// A copy of 5 boxes through 2 halves of staging memory makes 9 waits. 5 waits are for a box to arrive in its half, and
/// 3 waits are for a half to become free. One more wait is at the beginning of a fetched copy, or at the end of a
/// pushed copy. Without any one of these waits, the result must be wrong for some seed.
TEST_F(CudaStagingTest, EveryWaitBetweenDevicesIsNeeded) {
  for (const bool fetch : {true, false}) {
    constexpr std::int64_t kWaits = 5 + 3 + 1;
    for (std::int64_t forgotten = 0; forgotten <= kWaits; ++forgotten) {
      int wrong = 0;
      for (std::uint64_t seed = 0; seed < 120 && (forgotten == 0 || wrong == 0); ++seed) {
        wrong += crosses(seed, fetch, forgotten) ? 0 : 1;
      }
      EXPECT_EQ(wrong > 0, forgotten > 0) << "wait " << forgotten << (fetch ? ", fetched" : ", pushed");
    }
  }
  standin::reset();
}

/// Copies 80 floats from pageable memory to the device and back in boxes of 16. Leaves out wait number `forgotten` of
/// the copy in one direction. Returns true if all values are right.
bool goes_and_returns(std::uint64_t seed, bool forget_going, std::int64_t forgotten) {
  standin::reset({.devices = 1, .seed = seed});
  CudaContext context(Device::cuda(0));
  configure_staging(context, {.half_bytes = 64, .driver_bytes = 0, .threads = 1});
  std::vector<float> values(80);
  std::iota(values.begin(), values.end(), 1.0F);
  std::vector<float> result(80);
  const Tensor device = Tensor::zeros(context, Shape{80}, DType::f32);
  standin::forget_wait(forget_going ? forgotten : 0);
  copy(context, view_of(values), device);
  standin::forget_wait(forget_going ? 0 : forgotten);
  copy(context, device, view_of(result));
  standin::forget_wait(0);
  return values == result;
}

/// On the way to the device, the first two of five boxes find free halves, so 3 waits are needed. On the way back, the
/// host waits for each of the five boxes. Without any one of these waits, values must be wrong for some seed.
TEST_F(CudaStagingTest, EveryWaitForAHalfIsNeeded) {
  for (const bool going : {true, false}) {
    for (std::int64_t forgotten = 0; forgotten <= (going ? 3 : 5); ++forgotten) {
      int wrong = 0;
      for (std::uint64_t seed = 0; seed < 120 && (forgotten == 0 || wrong == 0); ++seed) {
        wrong += goes_and_returns(seed, going, forgotten) ? 0 : 1;
      }
      EXPECT_EQ(wrong > 0, forgotten > 0) << "wait " << forgotten << (going ? ", going" : ", returning");
    }
  }
  standin::reset();
}

/// Makes copies through staging memory. Sets `reached` after the last call that may throw.
void scenario(bool& reached) {
  CudaContext a(Device::cuda(0));
  CudaContext b(Device::cuda(1));
  configure_staging(a, {.half_bytes = 64, .driver_bytes = 0, .threads = 1});
  std::vector<float> values(50);
  std::iota(values.begin(), values.end(), 1.0F);
  const Tensor there = Tensor::empty(b, Shape{50}, DType::f32);
  const Tensor here = Tensor::empty(a, Shape{50}, DType::f32);
  b.synchronize();     // memory of b may be used by streams of a only after this wait
  const Idle idle(a);  // ends the copies of a before the memory of b, which they use, is freed
  copy(a, view_of(values), here);
  copy(a, here, there);
  std::vector<double> out(20);
  copy_now(a, there, here);
  copy(a, here.view().reshape(Shape{10, 5}).slice(1, 1, 3), TensorView(std::span(out), Shape{10, 2}));
  EXPECT_EQ(out[0], 2.0);
  EXPECT_EQ(out[19], 48.0);
  a.synchronize();
  b.synchronize();
  reached = true;
}

TEST_F(CudaStagingTest, EveryCallFailingInTurnGivesAnExceptionAndLeaksNothing) {
  std::set<std::string> hit;
  for (const bool access : {true, false}) {
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      bool passed = false;
      for (std::int64_t n = 1; !passed; ++n) {
        standin::reset({.devices = 2, .seed = seed, .peer_access = access});
        standin::fail_call(n, cudaErrorUnknown);
        bool reached = false;
        bool threw = false;
        try {
          scenario(reached);
        } catch (const Error& error) {
          threw = true;
          const std::string text = error.what();
          EXPECT_TRUE(text.find("cudaErrorUnknown") != std::string::npos ||
                      text.find("CUDA_ERROR_UNKNOWN") != std::string::npos)
              << text;
        }
        const std::string failed = standin::failed_call();
        standin::fail_call(0, cudaSuccess);
        passed = failed.empty();
        hit.insert(failed);
        const std::string when = "call " + std::to_string(n) + ", " + failed + ", seed " + std::to_string(seed);
        EXPECT_TRUE(passed || reached || threw) << when;
        EXPECT_FALSE(passed && threw) << when;
        expect_clean(when);
        if (HasFailure()) {
          return;
        }
      }
    }
  }
  for (const char* name :
       {"cudaMallocHost", "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemcpyPeerAsync", "cudaDeviceCanAccessPeer",
        "cudaDeviceEnablePeerAccess", "cudaPointerGetAttributes", "cuPointerGetAttribute", "cudaMemPoolGetAccess",
        "cudaMemPoolSetAccess", "cudaStreamWaitEvent", "cudaEventRecord", "cudaEventSynchronize"}) {
    EXPECT_TRUE(hit.contains(name)) << name << " was never made to fail";
  }
}

TEST_F(CudaStagingTest, NoPinnedMemoryIsSaidSo) {
  CudaContext context(Device::cuda(0));
  const Tensor device = Tensor::zeros(context, Shape{50}, DType::f64);
  std::vector<float> values(50, 1.0F);
  standin::fail_call(1, cudaErrorMemoryAllocation, "cudaMallocHost");
  const std::string text = error_text<OutOfMemory>([&] { copy(context, view_of(values), device); });
  EXPECT_NE(text.find("page-locked host memory"), std::string::npos) << text;
  EXPECT_EQ(context.copied().host_to_device, 0U);
  copy_now(context, view_of(values), device);  // the next copy tries again to allocate page-locked memory
  EXPECT_EQ(context.copied().host_to_device, 400U);
}

TEST_F(CudaStagingTest, FailedWorkComesOutOfACopyThatWaits) {
  {
    CudaContext context(Device::cuda(0));
    configure_staging(context, {.half_bytes = 64, .driver_bytes = 0});
    const Tensor device = Tensor::zeros(context, Shape{50}, DType::f32);
    std::vector<float> values(50, 1.0F);
    context.synchronize();
    standin::fail_work(2, cudaErrorIllegalAddress);
    EXPECT_THROW(copy(context, device, view_of(values)), CudaError);
    EXPECT_EQ(context.copied().device_to_host, 0U);
  }
  expect_clean("after an illegal address");
}

TEST_F(CudaStagingTest, CopiesUseMemoryOfTheDevicesThatTakePartOnly) {
  standin::reset({.devices = 4, .peer_access = false});
  {
    CudaContext context(Device::cuda(2));
    configure_staging(context, {.half_bytes = 64, .driver_bytes = 0});
    const Tensor device = Tensor::zeros(context, Shape{10, 10}, DType::f32);
    std::vector<double> values(100, 1.0);
    const TensorView host{std::span(values), Shape{10, 10}};
    copy(context, host, device);
    copy(context, device.view().slice(1, 2, 5), host.slice(1, 3, 6));
    const Pinned pinned(context, 100);
    copy(context, pinned.view().reshape(Shape{10, 10}).slice(1, 0, 5), device.view().slice(1, 0, 5));
    context.synchronize();
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2});
    CudaContext theirs(Device::cuda(3));
    const Tensor there = Tensor::zeros(theirs, Shape{10, 10}, DType::f32);
    theirs.synchronize();
    copy(context, device, there);
    copy_now(context, there, device);
  }
  EXPECT_EQ(standin::devices_in_use(), (std::vector<int>{2, 3}));
}

}  // namespace
}  // namespace lockstep::testing
