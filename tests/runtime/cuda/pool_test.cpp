#include <lockstep/runtime/stream/graph.hpp>

#include "tests/runtime/cuda/support.hpp"

namespace lockstep::testing {
namespace {

using CudaPoolTest = CudaTest;
using CudaPoolPairTest = CudaPairTest;

constexpr Device kDevice = Device::cuda(0);

TEST_F(CudaPoolTest, GivesMemoryThatTheStreamMayUseAtOnceAndTakesItBackInItsOrder) {
  for_seeds([](std::uint64_t seed) {
    CudaPoolResource pool(kDevice);
    CudaContext context(kDevice, {.memory = &pool});
    const Pinned in(context, 100, 2.0F);
    const Pinned out(context, 100);
    for (int i = 0; i < 5; ++i) {
      const Tensor tensor = Tensor::empty(context, Shape{100}, DType::f32);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.view().data) % kAlignment, 0U);
      copy(context, in, tensor);
      copy(context, tensor, out);  // still queued when the tensor is destroyed
    }
    EXPECT_EQ(pool.usage()->in_use, 0U);
    EXPECT_EQ(pool.usage()->peak, 400U);
    context.synchronize();
    EXPECT_TRUE(out.holds(2.0F)) << seed;
  });
}

TEST_F(CudaPoolTest, OtherStreamsAfterAnEvent) {
  for_seeds([](std::uint64_t) {
    CudaContext compute(kDevice);
    CudaContext copies(kDevice);
    const Pinned out(copies, 64);
    {
      const Pinned in(compute, 64, 3.0F);
      const Tensor tensor = Tensor::empty(compute, Shape{64}, DType::f32);
      copy(compute, in, tensor);
      Event filled(kDevice);
      compute.stream().record(filled);
      copies.stream().wait(filled);
      copy(copies, tensor, out);
      Event read(kDevice);
      copies.stream().record(read);
      compute.stream().wait(read);  // the tensor's stream waits for the read before it frees the memory
    }
    copies.synchronize();
    EXPECT_TRUE(out.holds(3.0F));
  });
}

TEST_F(CudaPoolTest, KeepsMemoryForTheNextAllocationUntilItIsTrimmed) {
  CudaPoolResource pool(kDevice);
  EXPECT_EQ(pool.usage()->cached, 0U);
  pool.trim();  // the pool has nothing to give back yet
  CudaContext context(kDevice, {.memory = &pool});
  { const Buffer buffer(10000, context); }
  context.synchronize();
  EXPECT_EQ(pool.usage()->in_use, 0U);
  EXPECT_GE(pool.usage()->cached, 10000U);
  pool.trim();
  EXPECT_EQ(pool.usage()->cached, 0U);
  EXPECT_EQ(pool.usage()->peak, 10000U);
}

TEST_F(CudaPoolTest, ALimit) {
  CudaContext context(kDevice, {.memory_limit = 1000});
  const Buffer first(900, context);
  const std::string text = error_text<OutOfMemory>([&] { Buffer(101, context); });
  EXPECT_TRUE(text.starts_with("requested 101 bytes, in use 900, cached ")) << text;
  EXPECT_TRUE(text.ends_with(", limit 1000, on cuda:0, expected room within the limit and the free memory")) << text;
  const Buffer second(100, context);
  EXPECT_EQ(context.memory().usage()->in_use, 1000U);
}

TEST_F(CudaPoolTest, NothingIsNullptrAndStreamsAreOfTheDevice) {
  CudaPoolResource pool(kDevice);
  CudaContext context(kDevice);
  EXPECT_EQ(pool.allocate(0, kAlignment, context.stream()), nullptr);
  pool.deallocate(nullptr, 0, kAlignment, context.stream());
  EXPECT_THROW(static_cast<void>(pool.allocate(8, 3, context.stream())), ShapeError);
  Stream host = Stream::host_inline();
  EXPECT_THROW(static_cast<void>(pool.allocate(8, kAlignment, host)), DeviceError);
  void* pointer = pool.allocate(8, kAlignment, context.stream());
  context.synchronize();
  pool.deallocate(pointer, 8, kAlignment, host);  // the host's stream used the memory last
  EXPECT_EQ(pool.usage()->in_use, 0U);
}

#if LOCKSTEP_CUDA_STANDIN

TEST_F(CudaPoolTest, NothingHappensBeforeTheFirstAllocation) {
  CudaContext context(kDevice);
  EXPECT_EQ(standin::calls("cudaMemPoolCreate"), 0);
  for (int i = 0; i < 3; ++i) {
    const Buffer buffer(100, context);
  }
  EXPECT_EQ(standin::calls("cudaMemPoolCreate"), 1);
  EXPECT_EQ(standin::calls("cudaMallocFromPoolAsync"), 3);
  EXPECT_EQ(standin::calls("cudaMalloc"), 0);
  EXPECT_EQ(standin::calls("cudaStreamSynchronize"), 0);
}

TEST_F(CudaPoolTest, WhatIsMissingIsFoundByTheStandIn) {
  // Controls: without the first event, the copy may read memory before its allocation; without the second event, memory
  // may be freed before the copy has read it. The stand-in must report a violation in both cases.
  const auto wrong = [](bool first, bool second) {
    int found = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      standin::reset({.seed = seed});
      CudaContext compute(kDevice);
      CudaContext copies(kDevice);
      const Pinned out(copies, 64);
      Tensor tensor = Tensor::empty(compute, Shape{64}, DType::f32);
      Event event(kDevice);
      compute.stream().record(event);
      if (first) {
        copies.stream().wait(event);
      }
      copy(copies, tensor, out);
      copies.stream().record(event);
      if (second) {
        compute.stream().wait(event);
      }
      tensor = Tensor();
      try {
        compute.synchronize();
        copies.synchronize();
      } catch (const CudaError&) {
      }
      found += standin::violations().empty() ? 0 : 1;
    }
    return found;
  };
  EXPECT_EQ(wrong(true, true), 0);
  EXPECT_GT(wrong(false, true), 0);
  EXPECT_GT(wrong(true, false), 0);
  standin::reset();
}

TEST_F(CudaPoolTest, TriesAgainWithAllThatIsCached) {
  // Seed 0 executes work as late as possible, so freed memory is still in use.
  standin::reset({.bytes_per_device = 10000, .seed = 0});
  CudaPoolResource other(kDevice);
  CudaContext context(kDevice);
  { const Buffer buffer(6000, context); }
  std::vector<std::string> waits;
  context.on_synchronisation([&](const Synchronisation& wait) { waits.emplace_back(wait.call); });
  { const Buffer again(7000, context); }
  EXPECT_EQ(waits, std::vector<std::string>{"CudaPoolResource::allocate"});
  EXPECT_EQ(standin::calls("cudaMemPoolTrimTo"), 1);
  // Memory that another pool keeps cannot be used until that pool is trimmed.
  context.synchronize();
  EXPECT_EQ(error_text<OutOfMemory>([&] { Buffer(4000, other, context.stream()); }),
            "requested 4000 bytes, in use 0, cached 0, free on the device 3000 of 10000, limit none, on cuda:0, "
            "expected room within the limit and the free memory");
  static_cast<CudaPoolResource&>(context.memory()).trim();
  const Buffer fits(4000, other, context.stream());
  context.on_synchronisation({});
}

TEST_F(CudaPoolTest, AReleaseThresholdIsKept) {
  CudaPoolResource pool(kDevice, {.keep_bytes = 500});
  CudaContext context(kDevice, {.memory = &pool});
  { const Buffer buffer(3000, context); }
  context.synchronize();
  EXPECT_EQ(pool.usage()->cached, 500U);
}

TEST_F(CudaPoolTest, WithoutPoolsItIsCudaMalloc) {
  standin::reset({.bytes_per_device = 5000, .pools = false});
  CudaPoolResource pool(kDevice, {.limit_bytes = 4000});
  CudaContext context(kDevice, {.memory = &pool});
  {
    const Buffer buffer(3000, context);
    EXPECT_EQ(context.memory().usage()->in_use, 3000U);
    EXPECT_THROW(Buffer(1001, context), OutOfMemory);
  }
  EXPECT_EQ(standin::calls("cudaMalloc"), 1);
  EXPECT_EQ(standin::calls("cudaFree"), 1);
  EXPECT_EQ(standin::calls("cudaMemPoolCreate"), 0);
  EXPECT_EQ(context.memory().usage()->cached, 0U);
}

TEST_F(CudaPoolTest, WithoutPoolsMemoryGivenBackWhileCapturingIsFreedLater) {
  // If asked_again is false, no allocation follows, so the pool's destructor frees the memory.
  for (const bool asked_again : {true, false}) {
    standin::reset({.pools = false});
    {
      CudaContext context(kDevice);
      CudaPoolResource pool(kDevice);
      auto dropped = std::make_unique<Buffer>(4096, pool, context.stream());
      EXPECT_THROW(static_cast<void>(Graph::capture(context.stream(), [&] { dropped.reset(); })), StateError);
      EXPECT_EQ(pool.usage()->in_use, 4096U);
      EXPECT_EQ(standin::leaks().empty(), false);
      if (asked_again) {
        const Buffer next(64, pool, context.stream());
        EXPECT_EQ(pool.usage()->in_use, 64U);
      }
    }
    EXPECT_EQ(standin::leaks(), std::vector<std::string>{});
    EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  }
}

TEST_F(CudaPoolPairTest, TheThreadsDeviceStays) {
  CudaContext context(Device::cuda(1));
  {
    const Buffer buffer(100, context);
    EXPECT_EQ(current_device(), 0);
    EXPECT_GE(context.memory().usage()->in_use, 100U);
    EXPECT_EQ(current_device(), 0);
  }
  context.synchronize();
  static_cast<CudaPoolResource&>(context.memory()).trim();
  EXPECT_EQ(current_device(), 0);
}

#endif

}  // namespace
}  // namespace lockstep::testing
