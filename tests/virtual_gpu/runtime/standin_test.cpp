// Tests the stand-in itself. If the stand-in could not find mistakes, the tests that use it would prove nothing.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "control.hpp"

namespace standin = lockstep::standin;

namespace {

class Standin : public testing::Test {
 protected:
  void SetUp() override { standin::reset(); }

  static cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    return stream;
  }
  static cudaEvent_t make_event(unsigned flags = cudaEventDisableTiming) {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
    return event;
  }
  static int* make_device(std::size_t count) {
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(int)), cudaSuccess);
    return static_cast<int*>(pointer);
  }
  static int* make_pinned(std::size_t count) {
    void* pointer = nullptr;
    EXPECT_EQ(cudaMallocHost(&pointer, count * sizeof(int)), cudaSuccess);
    return static_cast<int*>(pointer);
  }
  static cudaError_t copy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpyAsync(dst, src, bytes, kind, stream);
  }
  /// Expects exactly one violation so far, whose text contains `part`.
  static void expect_violation(const char* part) {
    const auto found = standin::violations();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
  }
};

TEST_F(Standin, CopiesThereAndBack) {
  cudaStream_t stream = make_stream();
  int* device = make_device(3);
  const std::vector<int> in{1, 2, 3};
  std::vector<int> out(3);
  EXPECT_EQ(copy(device, in.data(), 12, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(copy(out.data(), device, 12, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(out, in);
  EXPECT_EQ(standin::leaks().size(), 2U);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_TRUE(standin::leaks().empty());
  EXPECT_TRUE(standin::violations().empty());
}

TEST_F(Standin, WorkFromPinnedMemoryIsDeferred) {
  cudaStream_t stream = make_stream();
  int* device = make_device(1);
  int* pinned = make_pinned(2);
  pinned[0] = 7;
  copy(device, pinned, 4, cudaMemcpyHostToDevice, stream);
  pinned[0] = 8;  // written too early: the copy is deferred and reads this value
  copy(pinned + 1, device, 4, cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(standin::queued_work(), 2U);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(pinned[1], 8);
  EXPECT_EQ(standin::queued_work(), 0U);
}

TEST_F(Standin, HostReadOfDeviceMemoryDies) {
  int* device = make_device(1);
  EXPECT_DEATH({ static_cast<volatile int*>(device)[0] = 1; }, "");
}

TEST_F(Standin, DevicePointerAsHostPointer) {
  cudaStream_t stream = make_stream();
  int* a = make_device(4);
  int* b = make_device(4);
  EXPECT_EQ(copy(a, b, 16, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  expect_violation("is device memory, expected host memory");
}

TEST_F(Standin, HostPointerAsDevicePointer) {
  cudaStream_t stream = make_stream();
  int a = 0;
  int b = 0;
  EXPECT_EQ(copy(&a, &b, 4, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
  expect_violation("is not device memory");
}

TEST_F(Standin, CopyOutOfRange) {
  cudaStream_t stream = make_stream();
  int* device = make_device(4);
  int host[5] = {};
  EXPECT_EQ(copy(device, host, 20, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  expect_violation("leave their block of 16 bytes");
}

TEST_F(Standin, CopyOutOfPinnedRange) {
  cudaStream_t stream = make_stream();
  int* device = make_device(8);
  int* pinned = make_pinned(4);
  EXPECT_EQ(copy(device, pinned, 20, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  expect_violation("not in a living block of pinned memory");
}

TEST_F(Standin, WriteBehindPinnedMemoryIsFoundWhenFreed) {
  int* pinned = make_pinned(3);
  pinned[3] = 1;
  cudaFreeHost(pinned);
  expect_violation("past the end");
}

TEST_F(Standin, UseAfterFree) {
  cudaStream_t stream = make_stream();
  int* device = make_device(4);
  cudaFree(device);
  EXPECT_EQ(cudaMemsetAsync(device, 0, 16, stream), cudaErrorInvalidValue);
  expect_violation("was freed");
}

TEST_F(Standin, DoubleFree) {
  int* device = make_device(4);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  expect_violation("was freed before");
}

TEST_F(Standin, FreeOfTheWrongKind) {
  int* pinned = make_pinned(4);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  expect_violation("was not given out by cudaMalloc");
}

TEST_F(Standin, FreeWhileQueuedWorkUsesIt) {
  cudaStream_t stream = make_stream();
  int* device = make_device(4);
  cudaMemsetAsync(device, 0, 16, stream);
  cudaFree(device);
  expect_violation("is used by a cudaMemsetAsync queued");
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);         // the work runs now and fails
  EXPECT_EQ(cudaEventCreateWithFlags(nullptr, 0), cudaErrorIllegalAddress);  // every call fails from now on
}

TEST_F(Standin, WrongDevice) {
  standin::reset({.devices = 2});
  cudaStream_t stream = make_stream();
  int* device = make_device(4);
  cudaSetDevice(1);
  EXPECT_EQ(cudaMemsetAsync(device, 0, 16, stream), cudaErrorInvalidResourceHandle);
  expect_violation("not a stream of the current device");
}

TEST_F(Standin, MemoryOfAnotherDevice) {
  standin::reset({.devices = 2});
  int* device = make_device(4);
  cudaSetDevice(1);
  cudaStream_t stream = make_stream();
  int host[4] = {};
  EXPECT_EQ(copy(device, host, 16, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  expect_violation("is memory of device 0, expected device 1");
}

TEST_F(Standin, EventAndStreamOfDifferentDevices) {
  standin::reset({.devices = 2});
  cudaEvent_t event = make_event();
  cudaSetDevice(1);
  EXPECT_EQ(cudaEventRecord(event, make_stream()), cudaErrorInvalidResourceHandle);
  expect_violation("of one device");
}

TEST_F(Standin, PeerCopyNamesTheWrongDevice) {
  standin::reset({.devices = 2});
  int* a = make_device(4);
  int* b = make_device(4);
  EXPECT_EQ(cudaMemcpyPeerAsync(b, 1, a, 0, 16, make_stream()), cudaErrorInvalidValue);
  expect_violation("is memory of device 0, expected device 1");
}

TEST_F(Standin, HandlesOfTheDead) {
  cudaStream_t stream = make_stream();
  cudaEvent_t event = make_event();
  cudaStreamDestroy(stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  cudaEventDestroy(event);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(standin::violations().size(), 2U);
}

TEST_F(Standin, TheLegacyStreamIsThatOfTheCurrentDevice) {
  standin::reset({.devices = 2});
  cudaEvent_t event = make_event();
  EXPECT_EQ(cudaEventRecord(event, cudaStreamLegacy), cudaSuccess);
  cudaSetDevice(1);
  EXPECT_EQ(cudaEventRecord(event, cudaStreamLegacy), cudaErrorInvalidResourceHandle);
  expect_violation("of one device");
  cudaSetDevice(0);
  EXPECT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
  cudaEventDestroy(event);
  EXPECT_TRUE(standin::leaks().empty());
}

TEST_F(Standin, TheLegacyStreamIsNeitherCapturedNorDestroyed) {
  EXPECT_EQ(cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeThreadLocal),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_TRUE(standin::violations().empty());
  EXPECT_EQ(cudaStreamDestroy(cudaStreamLegacy), cudaErrorInvalidResourceHandle);
  expect_violation("not a stream");
}

TEST_F(Standin, NullAndSynchronisingStreamsAreRefused) {
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidResourceHandle);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, 0), cudaErrorInvalidValue);
  EXPECT_EQ(standin::violations().size(), 2U);
}

TEST_F(Standin, MemoryIsLimitedPerDevice) {
  standin::reset({.devices = 2, .bytes_per_device = 1000});
  void* a = nullptr;
  void* b = nullptr;
  EXPECT_EQ(cudaMalloc(&a, 600), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, 401), cudaErrorMemoryAllocation);
  std::size_t free = 0;
  std::size_t total = 0;
  cudaMemGetInfo(&free, &total);
  EXPECT_EQ(free, 400U);
  EXPECT_EQ(total, 1000U);
  cudaSetDevice(1);
  EXPECT_EQ(cudaMalloc(&b, 401), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, ~std::size_t{0}), cudaErrorMemoryAllocation);
}

TEST_F(Standin, CallsFailOnRequest) {
  standin::fail_call(2, cudaErrorUnknown, "cudaMalloc");
  void* a = nullptr;
  EXPECT_EQ(cudaMalloc(&a, 1), cudaSuccess);
  EXPECT_TRUE(standin::failed_call().empty());
  void* b = nullptr;
  EXPECT_EQ(cudaMalloc(&b, 1), cudaErrorUnknown);
  EXPECT_EQ(standin::failed_call(), "cudaMalloc");
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  standin::fail_call(1, cudaErrorUnknown);
  EXPECT_EQ(cudaFree(a), cudaErrorUnknown);  // returns the error, but frees the memory
  EXPECT_TRUE(standin::leaks().empty());
  EXPECT_EQ(standin::calls("cudaMalloc"), 2);
  EXPECT_EQ(standin::calls(), 3);
  EXPECT_EQ(standin::call_log().back(), "cudaFree");
}

TEST_F(Standin, WorkFailsOnRequest) {
  cudaStream_t stream = make_stream();
  int* device = make_device(1);
  standin::fail_work(2, cudaErrorLaunchFailure);
  cudaMemsetAsync(device, 0, 4, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaMemsetAsync(device, 0, 4, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMemsetAsync(device, 0, 4, stream), cudaErrorLaunchFailure);
}

TEST_F(Standin, NoDriverAndNoDevice) {
  int count = 7;
  standin::break_driver();
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
  standin::reset({.devices = 0});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  standin::reset({.devices = 3});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
}

TEST_F(Standin, CurrentDeviceAndLastErrorBelongToTheThread) {
  standin::reset({.devices = 2});
  cudaSetDevice(1);
  cudaSetDevice(5);
  std::thread([] {
    int device = -1;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }).join();
  int device = -1;
  cudaGetDevice(&device);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(standin::last_error(), cudaErrorInvalidDevice);
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{1});
}

TEST_F(Standin, ElapsedTimeNeedsTimingAndCompletion) {
  cudaStream_t stream = make_stream();
  cudaEvent_t first = make_event(cudaEventDefault);
  cudaEvent_t second = make_event(cudaEventDefault);
  cudaEventRecord(first, stream);
  cudaEventRecord(second, stream);
  float time = 0;
  EXPECT_EQ(cudaEventElapsedTime(&time, first, second), cudaErrorNotReady);
  cudaEventSynchronize(second);
  EXPECT_EQ(cudaEventElapsedTime(&time, first, second), cudaSuccess);
  EXPECT_GT(time, 0);
  EXPECT_EQ(cudaEventElapsedTime(&time, first, make_event()), cudaErrorInvalidResourceHandle);
}

TEST_F(Standin, APollingCallerComesToAnEnd) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    standin::reset({.seed = seed});
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    int* device = make_device(1);
    for (int i = 0; i < 10; ++i) {
      cudaMemsetAsync(device, i, 4, stream);
    }
    cudaEventRecord(event, stream);
    int polls = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady && polls < 100) {
      ++polls;
    }
    EXPECT_LE(polls, 11);
  }
}

/// Stream a writes a number to memory, and stream b reads it. wait: b waits for a. Returns the number that b read.
int fetched(std::uint64_t seed, bool wait) {
  standin::reset({.seed = seed});
  cudaStream_t a = nullptr;
  cudaStream_t b = nullptr;
  cudaStreamCreateWithPriority(&a, cudaStreamNonBlocking, 0);
  cudaStreamCreateWithPriority(&b, cudaStreamNonBlocking, 0);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  void* device = nullptr;
  cudaMalloc(&device, 4);
  void* host = nullptr;
  cudaMallocHost(&host, 8);
  int* values = static_cast<int*>(host);
  values[0] = 42;
  cudaMemcpyAsync(device, values, 4, cudaMemcpyHostToDevice, a);
  cudaEventRecord(event, a);
  if (wait) {
    cudaStreamWaitEvent(b, event, 0);
  }
  cudaMemcpyAsync(values + 1, device, 4, cudaMemcpyDeviceToHost, b);
  cudaStreamSynchronize(b);
  return values[1];
}

TEST_F(Standin, WaitsOrderStreamsForEverySeed) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ASSERT_EQ(fetched(seed, true), 42) << "seed " << seed;
  }
}

TEST_F(Standin, AMissingWaitIsFoundAndHiddenDependingOnTheSeed) {
  int wrong[4] = {};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    wrong[seed % 4] += fetched(seed, false) != 42 ? 1 : 0;
  }
  EXPECT_EQ(wrong[static_cast<int>(standin::Style::lazy)], 50);
  EXPECT_EQ(wrong[static_cast<int>(standin::Style::eager)], 0);  // eager: a's copy runs before b's is queued
  EXPECT_GT(wrong[static_cast<int>(standin::Style::uniform)], 5);
  EXPECT_LT(wrong[static_cast<int>(standin::Style::uniform)], 45);
  EXPECT_GT(wrong[static_cast<int>(standin::Style::priority)], 0);
}

TEST_F(Standin, TheSameSeedGivesTheSameOrder) {
  std::set<int> results;
  for (int i = 0; i < 5; ++i) {
    results.insert(fetched(6, false));
  }
  EXPECT_EQ(results.size(), 1U);
}

TEST_F(Standin, AWaitRefersToTheRecordBeforeIt) {
  cudaStream_t a = make_stream();
  cudaStream_t b = make_stream();
  cudaEvent_t event = make_event();
  int* device = make_device(1);
  cudaStreamWaitEvent(b, event, 0);  // the event was not recorded yet, so there is no wait
  cudaEventRecord(event, a);
  cudaStreamWaitEvent(b, event, 0);
  cudaMemsetAsync(device, 0, 4, a);
  cudaEventRecord(event, a);
  cudaStreamSynchronize(b);
  EXPECT_EQ(standin::queued_work(), 2U);  // b waited for the first record only, so a's later work is still queued
}

TEST_F(Standin, HostFunctionsRunInStreamOrderOnAnotherThread) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    standin::reset({.seed = seed});
    cudaStream_t stream = make_stream();
    int* device = make_device(1);
    int* pinned = make_pinned(1);
    pinned[0] = 0;
    cudaLaunchHostFunc(
        stream, [](void* p) { *static_cast<int*>(p) = 5; }, pinned);
    copy(device, pinned, 4, cudaMemcpyHostToDevice, stream);
    cudaLaunchHostFunc(
        stream, [](void* p) { *static_cast<int*>(p) = 6; }, pinned);
    int out = 0;
    copy(&out, device, 4, cudaMemcpyDeviceToHost, stream);
    ASSERT_EQ(out, 5);
    ASSERT_EQ(pinned[0], 6);
  }
}

TEST_F(Standin, ABlockedHostFunctionDoesNotStopOtherStreams) {
  cudaStream_t a = make_stream();
  cudaStream_t b = make_stream();
  static std::atomic<bool> go;
  go = false;
  cudaLaunchHostFunc(
      a,
      [](void*) {
        while (!go) {
          std::this_thread::yield();
        }
      },
      nullptr);
  standin::step(1);
  int* device = make_device(1);
  cudaMemsetAsync(device, 0, 4, b);
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  go = true;
  EXPECT_EQ(cudaStreamSynchronize(a), cudaSuccess);
}

// ---- The driver's functions.

template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSuccess) << name;
  return reinterpret_cast<Function>(function);
}

TEST_F(Standin, ContextsThatAreRetainedAndNotReleasedAreLeaks) {
  const auto retain = driver_function<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
  const auto release = driver_function<CUresult (*)(CUdevice)>("cuDevicePrimaryCtxRelease");
  const auto push = driver_function<CUresult (*)(CUcontext)>("cuCtxPushCurrent");
  const auto pop = driver_function<CUresult (*)(CUcontext*)>("cuCtxPopCurrent");
  CUcontext context = nullptr;
  EXPECT_EQ(retain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(push(context), CUDA_SUCCESS);
  EXPECT_EQ(standin::leaks().size(), 2U);
  EXPECT_EQ(standin::devices_in_use(), std::vector<int>{0});
  EXPECT_EQ(pop(&context), CUDA_SUCCESS);
  EXPECT_EQ(release(0), CUDA_SUCCESS);
  EXPECT_TRUE(standin::leaks().empty());
  EXPECT_TRUE(standin::devices_in_use().empty());
  EXPECT_NE(release(0), CUDA_SUCCESS);
  expect_violation("was not retained");
}

TEST_F(Standin, AStreamWaitsForMemory) {
  using Wait = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
  const auto wait_value = driver_function<Wait>("cuStreamWaitValue64");
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    standin::reset({.seed = seed});
    cudaStream_t stream = make_stream();
    int* pinned = make_pinned(4);
    int* device = make_device(1);
    auto* value = ::new (static_cast<void*>(pinned)) std::atomic<std::uint64_t>(4);
    pinned[2] = 1;
    const auto address = reinterpret_cast<CUdeviceptr>(value);
    // The first wait is for a value that the memory already has.
    EXPECT_EQ(wait_value(stream, address, 4, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    EXPECT_EQ(wait_value(stream, address, 5, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    copy(device, pinned + 2, 4, cudaMemcpyHostToDevice, stream);
    standin::step(10);
    EXPECT_EQ(standin::queued_work(), 2U) << "the second wait and the copy";
    std::thread host([&] {
      pinned[2] = 2;
      value->store(6, std::memory_order_release);
    });
    int out = 0;
    copy(&out, device, 4, cudaMemcpyDeviceToHost, stream);
    EXPECT_EQ(out, 2);
    host.join();
    EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  }
  cudaStream_t stream = make_stream();
  EXPECT_NE(wait_value(stream, reinterpret_cast<CUdeviceptr>(make_device(2)), 0, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  EXPECT_FALSE(standin::violations().empty()) << "not page-locked memory";
}

TEST_F(Standin, ADriverFunctionThatDoesNotExistIsNotFound) {
  void* function = &function;
  cudaDriverEntryPointQueryResult found{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &found), cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
}

TEST_F(Standin, OtherProcessesTakeMemory) {
  standin::reset({.bytes_per_device = 1000});
  standin::occupy(0, {.bytes = 600});
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 400U);
  EXPECT_EQ(total, 1000U);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 401), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&pointer, 400), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

/// Captures the work of f on `stream` and destroys the graph. Returns the result of cudaStreamEndCapture().
template <class F>
cudaError_t capture_on(cudaStream_t stream, F&& f) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  f();
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream, &graph);
  EXPECT_EQ(status == cudaSuccess, graph != nullptr);
  if (graph != nullptr) {
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  return status;
}

TEST_F(Standin, CapturesAreSpoiltByWhatCudaForbids) {
  cudaStream_t a = make_stream();
  cudaStream_t b = make_stream();
  cudaEvent_t event = make_event();
  int* device = make_device(4);
  int* pinned = make_pinned(4);
  std::vector<int> pageable(4);
  EXPECT_EQ(capture_on(a, [&] { EXPECT_EQ(copy(device, pinned, 16, cudaMemcpyHostToDevice, a), cudaSuccess); }),
            cudaSuccess);
  EXPECT_EQ(standin::queued_work(), 0U) << "nothing of it runs";
  const auto spoils = [&](cudaError_t expected, const std::function<cudaError_t()>& call) {
    EXPECT_EQ(capture_on(a, [&] { EXPECT_EQ(call(), expected); }), cudaErrorStreamCaptureInvalidated);
  };
  const cudaError_t unsafe = cudaErrorStreamCaptureUnsupported;
  void* memory = nullptr;
  spoils(unsafe, [&] { return cudaMalloc(&memory, 4); });
  spoils(unsafe, [&] { return cudaFree(device); });  // the memory is not freed
  spoils(unsafe, [&] { return cudaStreamSynchronize(b); });
  spoils(unsafe, [&] { return cudaEventQuery(event); });
  spoils(unsafe, [&] { return copy(device, pageable.data(), 16, cudaMemcpyHostToDevice, a); });
  spoils(unsafe, [&] { return copy(pageable.data(), device, 16, cudaMemcpyDeviceToHost, a); });
  EXPECT_EQ(cudaEventRecord(event, b), cudaSuccess);
  spoils(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(a, event, 0); });
  EXPECT_EQ(capture_on(a,
                       [&] {
                         cudaMalloc(&memory, 4);
                         EXPECT_EQ(copy(device, pinned, 16, cudaMemcpyHostToDevice, a),
                                   cudaErrorStreamCaptureInvalidated);
                       }),
            cudaErrorStreamCaptureInvalidated);
  // Another thread may wait while this thread captures.
  EXPECT_EQ(capture_on(a, [&] { std::thread([&] { EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess); }).join(); }),
            cudaSuccess);
  EXPECT_EQ(copy(device, pinned, 16, cudaMemcpyHostToDevice, a), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(standin::violations(), std::vector<std::string>{});
}

TEST_F(Standin, NodesHaveTheirOwnPrioritiesWhereThatIsAskedFor) {
  cudaStream_t normal = make_stream();
  cudaStream_t urgent = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -2), cudaSuccess);
  int* device = make_device(4);
  ASSERT_EQ(cudaStreamBeginCapture(urgent, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device, 0, 16, urgent), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(urgent, &graph), cudaSuccess);
  const auto launched = [&](unsigned long long flags) {
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, flags), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(executable, normal), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(normal), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    return standin::launched_priorities();
  };
  EXPECT_EQ(launched(0), std::vector<int>{0});
  EXPECT_EQ(launched(cudaGraphInstantiateFlagUseNodePriority), std::vector<int>{-2});
  EXPECT_EQ(standin::violations(), std::vector<std::string>{});
}

TEST_F(Standin, CapturesEndWhereTheyBeganWithAllStreamsJoined) {
  cudaStream_t a = make_stream();
  cudaStream_t b = make_stream();
  cudaEvent_t fork = make_event();
  cudaEvent_t join = make_event();
  int* device = make_device(4);
  const auto forked = [&](bool joins) {
    EXPECT_EQ(cudaEventRecord(fork, a), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(b, fork, 0), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(device, 0, 16, b), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(join, b), cudaSuccess);
    if (joins) {
      EXPECT_EQ(cudaStreamWaitEvent(a, join, 0), cudaSuccess);
    }
  };
  EXPECT_EQ(capture_on(a, [&] { forked(true); }), cudaSuccess);
  EXPECT_EQ(capture_on(a, [&] { forked(false); }), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(capture_on(a,
                       [&] {
                         forked(true);
                         cudaGraph_t graph = nullptr;
                         EXPECT_EQ(cudaStreamEndCapture(b, &graph), cudaErrorStreamCaptureUnmatched);
                       }),
            cudaErrorStreamCaptureInvalidated);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(cudaStreamIsCapturing(b, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  EXPECT_EQ(cudaEventSynchronize(join), cudaErrorCapturedEvent);
  expect_violation("cudaEventSynchronize: the event was recorded in a graph");
}

}  // namespace
