#include <algorithm>
#include <cstdlib>
#include <thread>

#include <lockstep/runtime/cuda/driver.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>
#include <lockstep/runtime/stream/graph.hpp>

#include "tests/runtime/cuda/support.hpp"

namespace lockstep::testing {
namespace {

using CudaContextTest = CudaTest;
using CudaContextPairTest = CudaPairTest;

TEST_F(CudaContextTest, HasItsOwnStreamAndMemory) {
  CudaContext context(Device::cuda(0));
  EXPECT_EQ(context.device(), Device::cuda(0));
  EXPECT_EQ(context.stream().device(), Device::cuda(0));
  EXPECT_EQ(context.memory().device(), Device::cuda(0));
  EXPECT_FALSE(context.stream().is_inline());
  EXPECT_NE(context.stream().cuda_handle(), nullptr);
  CudaContext other(Device::cuda(0));
  EXPECT_NE(context.stream().cuda_handle(), other.stream().cuda_handle());
  EXPECT_EQ(make_context(Device::cuda(0))->device(), Device::cuda(0));
}

TEST_F(CudaContextTest, LaunchesDependentlyWhereItIsAsked) {
  EXPECT_FALSE(CudaContext(Device::cuda(0)).stream().launches_dependently());
  CudaContext context(Device::cuda(0), {.dependent_launches = true});
  EXPECT_TRUE(context.stream().launches_dependently());
  context.stream().launch_dependently(false);
  EXPECT_FALSE(context.stream().launches_dependently());
}

TEST_F(CudaContextTest, HostTasksCannotBeEnqueued) {
  CudaContext context(Device::cuda(0));
  EXPECT_THROW(context.stream().enqueue([] {}), StateError);
}

TEST_F(CudaContextTest, BorrowsTheHostProgramsStreamAndLeavesItAlive) {
  cudaStream_t theirs = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&theirs, cudaStreamNonBlocking, 0), cudaSuccess);
  {
    CudaContext context(Device::cuda(0), {.stream = theirs});
    EXPECT_EQ(context.stream().cuda_handle(), theirs);
    const Tensor zeros = Tensor::zeros(context, Shape{5}, DType::f32);
    context.synchronize();
  }
  EXPECT_EQ(cudaStreamSynchronize(theirs), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
}

TEST_F(CudaContextPairTest, TheLegacyStreamOfEachDeviceCanBeLent) {
  for_seeds(
      [](std::uint64_t) {
        // cudaStreamLegacy means the legacy stream of the current device. Calls must therefore make their own device
        // current.
        for (const int current : {0, 1}) {
          ASSERT_EQ(cudaSetDevice(current), cudaSuccess);
          for (const int index : {0, 1}) {
            constexpr std::int64_t kCount = 517;
            const Device device = Device::cuda(index);
            CudaContext legacy(device, {.stream = nullptr});
            CudaContext own(device, {.memory = &legacy.memory()});
            EXPECT_EQ(legacy.stream().cuda_handle(), cudaStreamLegacy);
            EXPECT_EQ(legacy.stream().device(), device);
            EXPECT_FALSE(is_capturing(legacy.stream()));
            const Pinned in(legacy, kCount, 2.5F);
            const Pinned out(legacy, kCount);
            const Tensor first = Tensor::zeros(legacy, Shape{kCount}, DType::f32);
            const Tensor second = Tensor::empty(legacy, Shape{kCount}, DType::f32);
            Event written(device);
            Event moved(device);
            Event host(Device::cpu());
            Stream worker = Stream::host_worker("late");
            worker.enqueue([] { std::this_thread::yield(); });
            worker.record(host);
            legacy.stream().wait(host);
            copy(legacy, in, first);
            legacy.stream().record(written);
            own.stream().wait(written);
            copy(own, first, second);
            own.stream().record(moved);
            legacy.stream().wait(moved);
            copy(legacy, second, out);
            legacy.synchronize();
            EXPECT_TRUE(out.holds(2.5F));
            EXPECT_TRUE(written.complete());
            EXPECT_TRUE(moved.complete());
            EXPECT_EQ(current_device(), current);
          }
        }
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
      },
      2);
#if LOCKSTEP_CUDA_STANDIN
  EXPECT_EQ(std::ranges::count(standin::call_log(), "cudaStreamDestroy"), 4)
      << "those of the two other contexts, twice";
#endif
}

TEST_F(CudaContextTest, TheLegacyStreamLendsItselfByItsName) {
  CudaContext context(Device::cuda(0), {.stream = cudaStreamLegacy});
  EXPECT_EQ(context.stream().cuda_handle(), cudaStreamLegacy);
  const Tensor zeros = Tensor::zeros(context, Shape{5}, DType::f32);
  context.synchronize();
}

TEST_F(CudaContextTest, TheLegacyStreamCannotBeCaptured) {
  CudaContext context(Device::cuda(0), {.stream = nullptr});
  bool called = false;
  EXPECT_EQ(
      error_text<UnsupportedError>(
          [&] { static_cast<void>(Graph::capture(context.stream(), [&] { called = true; })); }),
      "graph capture on cuda:0: the stream is CUDA's legacy default stream, which CUDA cannot capture; expected a "
      "stream that was made (cudaStreamCreate, Stream::cuda)");
  EXPECT_FALSE(called);
  const Tensor zeros = Tensor::zeros(context, Shape{5}, DType::f32);  // the stream still works
  context.synchronize();
}

TEST_F(CudaContextTest, BorrowsAMemoryResource) {
  CudaMemoryResource memory(Device::cuda(0));
  TrackingMemoryResource tracking(memory);
  CudaContext context(Device::cuda(0), {.memory = &tracking});
  {
    const Tensor tensor = Tensor::empty(context, Shape{10}, DType::f64);
    EXPECT_EQ(tracking.counts().bytes_in_use, 80U);
  }
  EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
}

TEST_F(CudaContextTest, ADeviceThatDoesNotExist) {
  const int count = num_gpus();
  for (const int index : {-1, count, 1000}) {
    const Device device = Device::cuda(index);
    EXPECT_THROW(CudaContext{device}, DeviceError);
    EXPECT_THROW(CudaMemoryResource{device}, DeviceError);
    EXPECT_THROW(PinnedMemoryResource{device}, DeviceError);
    EXPECT_THROW(Event{device}, DeviceError);
    EXPECT_THROW(static_cast<void>(Stream::cuda(device)), DeviceError);
    EXPECT_THROW(static_cast<void>(Stream::borrow_cuda(device, nullptr)), DeviceError);
  }
  EXPECT_THROW(CudaContext{Device::cpu()}, DeviceError);
  EXPECT_NE(error_text<DeviceError>([&] {
              CudaContext{Device::cuda(count)};
            }).find("cuda:" + std::to_string(count) + " does not exist"),
            std::string::npos);
}

TEST_F(CudaContextTest, StreamPriorities) {
  const Stream normal = Stream::cuda(Device::cuda(0), 0);
  const Stream high = Stream::cuda(Device::cuda(0), -1);
  EXPECT_NE(normal.cuda_handle(), high.cuda_handle());
}

TEST_F(CudaContextPairTest, TheCurrentDeviceIsNeverChanged) {
  for (const int current : {0, 1}) {
    for (const int index : {0, 1}) {
      ASSERT_EQ(cudaSetDevice(current), cudaSuccess);
      {
        CudaContext context(Device::cuda(index));
        EXPECT_EQ(current_device(), current);
        const Pinned pinned(context, 100, 1.5F);
        EXPECT_EQ(current_device(), current);
        const Tensor device = Tensor::zeros(context, Shape{100}, DType::f32);
        EXPECT_EQ(current_device(), current);
        copy(context, pinned, device);
        copy(context, device, pinned);
        EXPECT_EQ(current_device(), current);
        Event event(Device::cuda(index), Event::Timing::on);
        Event later(Device::cuda(index), Event::Timing::on);
        context.stream().record(event);
        context.stream().wait(event);
        context.stream().record(later);
        EXPECT_EQ(current_device(), current);
        later.synchronize();
        EXPECT_TRUE(event.complete());
        EXPECT_GE(later.seconds_since(event), 0);
        context.synchronize();
        EXPECT_EQ(current_device(), current);
        // The current device must also stay the same when a call fails.
        EXPECT_THROW(static_cast<void>(Tensor::empty(context, Shape{std::int64_t{1} << 50}, DType::f32)), OutOfMemory);
        EXPECT_EQ(current_device(), current);
        EXPECT_THROW(CudaContext{Device::cuda(1000)}, DeviceError);
        EXPECT_EQ(current_device(), current);
      }
      EXPECT_EQ(current_device(), current);
    }
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

/// True if the device's primary context exists.
bool has_context(Device device) {
  const auto get_state =
      cuda::driver_function<decltype(&cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState", device);
  unsigned int flags = 0;
  int active = 0;
  cuda::check_driver(get_state(device.index, &flags, &active), "cuDevicePrimaryCtxGetState", device);
  return active != 0;
}

/// Lists and probes the first GPU, then computes on the second GPU in a thread that chose no device. Returns 0 if only
/// the second GPU has a context. Runs in its own GoogleTest process, because no other test may have used the first GPU
/// before.
int contexts_left() {
#if LOCKSTEP_CUDA_STANDIN
  standin::reset({.devices = 2});
#endif
  const GpuInfo first = list_gpus().at(0);
  if (!probe_gpu(first, 0).empty() || has_context(Device::cuda(0))) {
    return 2;
  }
  CudaContext context(Device::cuda(1));
  const Tensor zeros = Tensor::zeros(context, Shape{100}, DType::f32);
  Event event(context.device());
  context.stream().record(event);
  Stream worker = Stream::host_worker("worker");
  worker.wait(event);
  worker.synchronize();
  context.synchronize();
  return !has_context(Device::cuda(1)) ? 3 : has_context(Device::cuda(0)) ? 4 : 0;
}

TEST(CudaContextDeathTest, OnlyTheDeviceInUseHasOne) {
#if !LOCKSTEP_CUDA_STANDIN
  if (num_gpus() < 2) {
    GTEST_SKIP() << "needs 2 CUDA device(s), this machine has " << num_gpus();
  }
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(contexts_left()), ::testing::ExitedWithCode(0), "");
}

TEST_F(CudaContextTest, LibraryStateLivesAsLongAsTheContext) {
  int made = 0;
  {
    CudaContext context(Device::cuda(0));
    const auto make = [&] { return std::make_shared<int>(++made); };
    EXPECT_EQ(context.library<int>(make), 1);
    EXPECT_EQ(context.library<int>(make), 1);
  }
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace lockstep::testing
