// Tests failures of CUDA: no driver, no device, the n-th call fails, queued work fails. Needs the stand-in for CUDA.
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/gpu_check.hpp>
#include <lockstep/runtime/stream/graph.hpp>

#include "tests/runtime/cuda/support.hpp"

namespace lockstep::testing {
namespace {

using CudaFailureTest = CudaTest;

TEST_F(CudaFailureTest, NoDriverAndNoDeviceAreNoDevices) {
  struct Case {
    cudaError_t status;
    int version;
    const char* says;
  };
  const int old = CUDART_VERSION / 1000 * 1000 - 600;  // version of a driver for the previous major version of CUDA
  for (const Case& c : {Case{cudaErrorInsufficientDriver, 0, "there is no NVIDIA driver"},
                        Case{cudaErrorInsufficientDriver, old, "the NVIDIA driver knows CUDA up to "},
                        Case{cudaErrorNoDevice, CUDART_VERSION, "is CUDA_VISIBLE_DEVICES right?"},
                        Case{cudaErrorStubLibrary, CUDART_VERSION, "the toolkit's stub"}}) {
    standin::break_driver(c.status, c.version);
    EXPECT_EQ(num_gpus(), 0);
    EXPECT_EQ(standin::last_error(), cudaSuccess);
    EXPECT_NE(why_no_gpus().find(c.says), std::string::npos) << why_no_gpus();
    for (const std::string& text : {error_text<DeviceError>([] { CudaContext{Device::cuda(0)}; }),
                                    error_text<DeviceError>([] { static_cast<void>(Stream::cuda(Device::cuda(0))); }),
                                    error_text<DeviceError>([] { CudaPoolResource{Device::cuda(0)}; })}) {
      EXPECT_EQ(text, "cuda:0 cannot be used: " + why_no_gpus());
    }
    EXPECT_EQ(standin::last_error(), cudaSuccess);
  }
  standin::reset();
  EXPECT_EQ(why_no_gpus(), "");
  standin::reset({.devices = 0});
  EXPECT_EQ(num_gpus(), 0);
}

TEST_F(CudaFailureTest, ABrokenDriverIsAnError) {
  standin::break_driver(cudaErrorSystemDriverMismatch);
  EXPECT_EQ(error_text<CudaError>([] { static_cast<void>(num_gpus()); }),
            "cudaGetDeviceCount failed: cudaErrorSystemDriverMismatch (text of the stand-in)");
  EXPECT_THROW(CudaContext{Device::cuda(0)}, CudaError);
}

TEST_F(CudaFailureTest, AContextSaysWhyTheDeviceCannotBeUsed) {
  const auto refused = [](const standin::Others& others, const std::string& says) {
    standin::reset({.devices = 2, .bytes_per_device = 100000});
    standin::occupy(1, others);
    const std::string text = error_text<DeviceError>([] { CudaContext{Device::cuda(1)}; });
    EXPECT_TRUE(text.starts_with("cuda:1 (Stand-in 1): ")) << text;
    EXPECT_NE(text.find(says), std::string::npos) << text;
    EXPECT_NE(text.find("take another device"), std::string::npos) << text;
    EXPECT_EQ(current_device(), 0);
    expect_clean(says);
    CudaContext other(Device::cuda(0));
  };
  refused({.running = true, .mode = cudaComputeModeExclusiveProcess}, "another process has it");
  refused({.mode = cudaComputeModeProhibited}, "its compute mode is prohibited");
  refused({.bytes = 100000, .running = true}, "(cudaErrorMemoryAllocation)");
  refused({.bytes = 99901, .running = true}, "99 of 100000 bytes are free");
  standin::occupy(1, {.bytes = 99900, .running = true});
  {
    CudaContext context(Device::cuda(1));
    standin::occupy(1, {.mode = cudaComputeModeExclusiveProcess});  // allowed, because no other process uses the GPU
    CudaContext second(Device::cuda(1));
  }
  standin::reset({.capability = 75});
  const std::string text = error_text<DeviceError>([] { CudaContext{Device::cuda(0)}; });
  EXPECT_TRUE(text.starts_with("cuda:0 (Stand-in 0): its compute capability is 7.5, this build is for ")) << text;
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{}) << "no context was made";
}

TEST_F(CudaFailureTest, DependentLaunchesNeedAGpuThatHasThem) {
  standin::reset({.capability = 80});
  Stream stream = Stream::cuda(Device::cuda(0));
  const std::string text = error_text<UnsupportedError>([&] { stream.launch_dependently(true); });
  EXPECT_EQ(text, "launch_dependently: cuda:0 has compute capability 8.x, expected 9.0 or more");
  EXPECT_FALSE(stream.launches_dependently());
}

TEST_F(CudaFailureTest, ABorrowedResourceNeedsNoFreeMemory) {
  standin::reset({.bytes_per_device = 100000});
  CudaMemoryResource theirs(Device::cuda(0));
  Stream stream = Stream::cuda(Device::cuda(0));
  const Buffer all(100000, theirs, stream);
  CudaContext context(Device::cuda(0), {.memory = &theirs});
  EXPECT_THROW(CudaContext{Device::cuda(0)}, DeviceError);
  EXPECT_THROW(CudaContext(Device::cuda(0), {.memory = &theirs, .memory_limit = 1}), UsageError);
}

TEST_F(CudaFailureTest, CountsDevices) {
  standin::reset({.devices = 7});
  EXPECT_EQ(num_gpus(), 7);
}

TEST_F(CudaFailureTest, ListingGpusMakesNoContext) {
  standin::reset({.devices = 3, .bytes_per_device = 12345});
  const std::vector<GpuInfo> gpus = list_gpus();
  ASSERT_EQ(gpus.size(), 3U);
  EXPECT_EQ(gpus[2].index, 2);
  EXPECT_EQ(gpus[2].uuid, "GPU-02020202-0202-0202-0202-020202020202");
  EXPECT_EQ(gpus[2].pci, "0000:3c:00.0") << "in lower case, as the kernel has it";
  EXPECT_EQ(gpus[2].name, "Stand-in 2");
  EXPECT_EQ(gpus[2].memory_bytes, 12345U);
  EXPECT_EQ(gpus[2].major, 9);
  EXPECT_EQ(select_devices(DeviceRequest::parse("GPU-0101"), gpus).devices, std::vector<Device>{Device::gpu(1)});
  EXPECT_EQ(try_all_gpus().size(), 3U);
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{});
}

TEST_F(CudaFailureTest, ListingGpusOfABrokenDriverIsAnError) {
  for (const char* name : {"cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaDeviceGetPCIBusId"}) {
    standin::reset({.devices = 2});
    standin::fail_call(1, cudaErrorUnknown, name);
    const std::string text = error_text<CudaError>([] { static_cast<void>(list_gpus()); });
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_EQ(standin::last_error(), cudaSuccess);
  }
}

TEST_F(CudaFailureTest, TheTextHasExpressionErrorAndDevice) {
  standin::reset({.devices = 2});
  CudaContext context(Device::cuda(1));
  const Tensor device = Tensor::empty(context, Shape{4}, DType::f32);
  std::vector<float> host(4);
  standin::fail_call(1, cudaErrorInvalidValue, "cudaMemcpyAsync");
  EXPECT_EQ(error_text<CudaError>([&] { copy(context, TensorView(std::span(host), Shape{4}), device); }),
            "cudaMemcpyAsync(to, from, block.width, kind, queue) failed on cuda:1: "
            "cudaErrorInvalidValue (text of the stand-in)");
  EXPECT_EQ(standin::last_error(), cudaSuccess);
  EXPECT_EQ(context.copied().host_to_device, 0U);
  EXPECT_EQ(current_device(), 0);
}

TEST_F(CudaFailureTest, FailedWorkComesOutOfSynchronize) {
  {
    CudaContext context(Device::cuda(0));
    const Tensor device = Tensor::zeros(context, Shape{4}, DType::f32);
    standin::fail_work(1, cudaErrorIllegalAddress);
    const std::string text = error_text<CudaError>([&] { context.synchronize(); });
    EXPECT_NE(text.find("on cuda:0: cudaErrorIllegalAddress"), std::string::npos) << text;
    EXPECT_THROW(static_cast<void>(Tensor::zeros(context, Shape{4}, DType::f32)),
                 CudaError);  // CUDA never recovers from this failure
  }
  expect_clean("after an illegal address");
}

/// Makes calls of every kind. Sets `reached` after the last call that may throw; a later failure happens in a
/// destructor, which cannot throw.
void scenario(bool& reached) {
  cudaStream_t theirs = nullptr;
  const auto destroy = [](cudaStream_t* stream) {
    if (*stream != nullptr) {
      cudaStreamDestroy(*stream);
      static_cast<void>(cudaGetLastError());
    }
  };
  const std::unique_ptr<cudaStream_t, decltype(destroy)> owner(&theirs, destroy);
  const bool made = cudaStreamCreateWithPriority(&theirs, cudaStreamNonBlocking, 0) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  require<CudaError>(made, "the host program could not make its stream");

  CudaContext a(Device::cuda(1));
  CudaMemoryResource plain(Device::cuda(0));
  CudaContext b(Device::cuda(0), {.stream = theirs, .memory = &plain});
  const Pinned in(a, 50, 1.0F);
  const Pinned out(b, 50);
  const Tensor there = Tensor::zeros(a, Shape{50}, DType::f32);
  const Tensor here = Tensor::empty(b, Shape{50}, DType::f32);
  const Idle idle(b);  // ends the copy, which uses memory of a, before this memory is freed
  Stream worker = Stream::host_worker("worker");
  Event copied(a.device(), Event::Timing::on);
  Event fetched(b.device());
  Event done(Device::cpu());
  a.stream().record(copied);
  worker.wait(copied);
  copy(a, in, there);
  a.stream().record(copied);
  b.stream().wait(copied);
  copy(b, there, here);
  copy(b, here, out);
  b.stream().record(fetched);
  worker.wait(fetched);
  worker.enqueue([] {});
  worker.record(done);
  a.stream().wait(done);
  static_cast<void>(fetched.complete());
  fetched.synchronize();
  b.synchronize();
  worker.synchronize();
  a.synchronize();
  static_cast<void>(copied.seconds_since(copied));
  EXPECT_TRUE(out.holds(1.0F));
  reached = true;
}

TEST_F(CudaFailureTest, EveryCallFailingInTurnGivesAnExceptionAndLeaksNothing) {
  std::set<std::string> hit;
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    for (const cudaError_t status : {cudaErrorUnknown, cudaErrorMemoryAllocation, cudaErrorInvalidValue}) {
      bool passed = false;
      for (int n = 1; !passed; ++n) {
        ASSERT_LT(n, 1000);
        standin::reset({.devices = 2, .seed = seed, .memory_waits = status != cudaErrorInvalidValue});
        standin::fail_call(n, status);
        bool reached = false;
        bool threw = false;
        try {
          scenario(reached);
        } catch (const Error&) {
          threw = true;
        }
        const std::string failed = standin::failed_call();
        standin::fail_call(0, cudaSuccess);  // the checks below call CUDA, too
        passed = failed.empty();
        hit.insert(failed);
        const std::string when = "call " + std::to_string(n) + ", " + failed + ", seed " + std::to_string(seed);
        if (passed) {
          EXPECT_FALSE(threw) << when;
        } else {
          EXPECT_TRUE(threw || reached) << when;
        }
        expect_clean(when);
        EXPECT_EQ(current_device(), 0) << when;
        if (HasFailure()) {
          return;
        }
      }
    }
  }
  // Checks that the loop made each of these calls fail at least once.
  std::string name;
  for (std::istringstream names(
           "cudaGetDeviceCount cudaGetDevice cudaSetDevice cudaInitDevice cuCtxGetDevice "
           "cuDevicePrimaryCtxGetState cuCtxPushCurrent cuCtxPopCurrent cudaGetDeviceProperties "
           "cudaDeviceGetAttribute cudaMemGetInfo cudaMemPoolCreate cudaMemPoolSetAttribute "
           "cudaMallocFromPoolAsync cudaFreeAsync cudaMemPoolDestroy cudaMalloc cudaMallocHost "
           "cudaStreamCreateWithPriority cudaEventCreateWithFlags cudaEventRecord cudaStreamWaitEvent "
           "cudaLaunchHostFunc cuDeviceGetAttribute cuStreamWaitValue64 cudaMemcpyAsync cudaMemcpyPeerAsync "
           "cudaMemsetAsync cudaEventSynchronize cudaStreamSynchronize cudaEventElapsedTime cudaFree "
           "cudaFreeHost cudaStreamDestroy cudaEventDestroy");
       names >> name;) {
    EXPECT_TRUE(hit.contains(name)) << name << " was never made to fail";
  }
}

/// Does the work of a step, on device 2.
void use_device_2() {
  CudaContext context(Device::cuda(2));
  const Pinned in(context, 50, 1.0F);
  const Tensor device = Tensor::zeros(context, Shape{50}, DType::f32);
  Graph graph = Graph::capture(context.stream(), [&] { copy(context, in, device); });
  graph.launch(context.stream());
  Event event(context.device());
  context.stream().record(event);
  event.synchronize();
  context.synchronize();
}

TEST_F(CudaFailureTest, OnlyTheDeviceInUseGetsAContext) {
  standin::reset({.devices = 3});
  for (const bool current : {false, true}) {  // true: the program has made the device current
    if (current) {
      make_current(Device::cuda(2));
    }
    EXPECT_EQ(gpu_state(Device::cuda(2)).no_context, "");
    use_device_2();
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2});
    EXPECT_EQ(current_device(), current ? 2 : 0);
    std::thread(use_device_2).join();  // a thread that never chose a device
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2});
  }
}

TEST_F(CudaFailureTest, AskingAnEventMakesNoContextElsewhere) {
  standin::reset({.devices = 3});
  {
    CudaContext context(Device::cuda(2));
    Event event(context.device());
    for (const bool waits : {true, false}) {
      context.stream().record(event);
      std::thread([&] {
        if (waits) {
          event.synchronize();
        }
        while (!event.complete()) {
        }
      }).join();
      EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2}) << (waits ? "waiting" : "asking");
    }
    Stream worker = Stream::host_worker("worker");
    context.stream().record(event);
    worker.wait(event);
    worker.synchronize();
  }
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{2});
}

TEST_F(CudaFailureTest, RecordingAndWaitingMakeNoNewEventsInSteadyState) {
  CudaContext a(Device::cuda(0));
  CudaContext b(Device::cuda(0));
  Stream worker = Stream::host_worker("worker");
  Event first(a.device());
  Event second(Device::cpu());
  const auto turn = [&] {
    a.stream().record(first);
    b.stream().wait(first);
    worker.wait(first);
    worker.record(second);
    b.stream().wait(second);
    b.synchronize();
    worker.synchronize();
  };
  turn();
  turn();
  const auto created = standin::calls("cudaEventCreateWithFlags");
  for (int i = 0; i < 50; ++i) {
    turn();
  }
  EXPECT_EQ(standin::calls("cudaEventCreateWithFlags"), created);
}

}  // namespace
}  // namespace lockstep::testing
