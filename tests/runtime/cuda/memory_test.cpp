#include <limits>

#include "tests/runtime/cuda/support.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

using CudaMemoryTest = CudaTest;

TEST_F(CudaMemoryTest, AllocatesAlignedDeviceMemory) {
  CudaContext context(Device::cuda(0));
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{1000003}}) {
    const Buffer buffer(bytes, context);
    EXPECT_EQ(buffer.device(), Device::cuda(0));
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment, 0U);
  }
}

TEST_F(CudaMemoryTest, NothingIsNullptr) {
  CudaContext context(Device::cuda(0));
  CudaMemoryResource device(Device::cuda(0));
  PinnedMemoryResource pinned(Device::cuda(0));
  for (MemoryResource* resource : {static_cast<MemoryResource*>(&device), static_cast<MemoryResource*>(&pinned)}) {
    EXPECT_EQ(resource->allocate(0, kAlignment, context.stream()), nullptr);
    resource->deallocate(nullptr, 0, kAlignment, context.stream());
    EXPECT_THROW(static_cast<void>(resource->allocate(8, 3, context.stream())), ShapeError);
  }
}

TEST_F(CudaMemoryTest, PinnedMemoryIsHostMemory) {
  CudaContext context(Device::cuda(0));
  const Pinned pinned(context, 1001, 2.5F);
  EXPECT_TRUE(pinned.holds(2.5F));
  EXPECT_EQ(pinned.view().device, Device::cpu());
}

TEST_F(CudaMemoryTest, PinnedMemoryGivenBackOnAHostStream) {
  PinnedMemoryResource resource(Device::cuda(0));
  Stream stream = Stream::host_inline();
  const Buffer buffer(64, resource, stream);
  EXPECT_EQ(buffer.device(), Device::cpu());
}

TEST_F(CudaMemoryTest, OutOfMemorySaysWhatWasWantedAndWhatThereIs) {
  CudaContext context(Device::cuda(0));
  const std::string text = error_text<OutOfMemory>(
      [&] { static_cast<void>(Tensor::empty(context, Shape{std::int64_t{1} << 50}, DType::f32)); });
  expect_holds(text, "requested 4503599627370496 bytes, in use 0, cached 0, free on the device ");
  EXPECT_NE(text.find(", on cuda:0"), std::string::npos) << text;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const Tensor fits = Tensor::zeros(context, Shape{10}, DType::f32);  // the device still works
  context.synchronize();
}

TEST_F(CudaMemoryTest, ALimitOfBytes) {
  CudaMemoryResource memory(Device::cuda(0));
  TrackingMemoryResource limited(memory, 1000);
  CudaContext context(Device::cuda(0), {.memory = &limited});
  const Buffer first(900, context);
  const std::string text = error_text<OutOfMemory>([&] { Buffer(101, context); });
  EXPECT_EQ(text, "requested 101 bytes, in use 900, limit 1000, on cuda:0, expected at most the limit in all");
  const Buffer second(100, context);
  EXPECT_EQ(limited.counts().peak_bytes, 1000U);
}

TEST_F(CudaMemoryTest, GivenBackWhileTheLastUseIsQueued) {
  // The tensor is destroyed right after a copy from it was enqueued. The memory must stay until the copy has run.
  for_seeds([](std::uint64_t) {
    CudaContext context(Device::cuda(0));
    const Pinned in(context, 77, 3.0F);
    const Pinned out(context, 77);
    {
      const Tensor device = Tensor::empty(context, Shape{77}, DType::f32);
      copy(context, in, device);
      copy(context, device, out);
    }
    context.synchronize();
    EXPECT_TRUE(out.holds(3.0F));
  });
}

#if LOCKSTEP_CUDA_STANDIN

TEST_F(CudaMemoryTest, OutOfMemoryGivesExactNumbers) {
  standin::reset({.devices = 2, .bytes_per_device = 5000});
  CudaContext context(Device::cuda(1));
  const Buffer first(2000, context);
  EXPECT_EQ(error_text<OutOfMemory>([&] { Buffer(3001, context); }),
            "requested 3001 bytes, in use 2000, cached 0, free on the device 3000 of 5000, limit none, on cuda:1, "
            "expected room within the limit and the free memory");
  CudaMemoryResource plain(Device::cuda(1));
  EXPECT_EQ(error_text<OutOfMemory>([&] { Buffer(3001, plain, context.stream()); }),
            "requested 3001 bytes, in use 0, cached 0, free on the device 3000 of 5000, limit none, on cuda:1, "
            "expected room within the limit and the free memory");
}

TEST_F(CudaMemoryTest, PinnedMemoryRefused) {
  CudaContext context(Device::cuda(0));
  standin::fail_call(1, cudaErrorMemoryAllocation, "cudaMallocHost");
  EXPECT_EQ(error_text<OutOfMemory>([&] { Pinned(context, 10); }),
            "requested 40 bytes of page-locked host memory through cuda:0: the system refused, expected that much "
            "memory to lock");
}

TEST_F(CudaMemoryTest, AlignmentBeyondCudas) {
  CudaContext context(Device::cuda(0));
  CudaMemoryResource memory(Device::cuda(0));
  int refused = 0;
  for (int i = 0; i < 4; ++i) {  // repeated, because an address may be aligned by chance
    try {
      void* pointer = memory.allocate(1, std::size_t{1} << 40, context.stream());
      memory.deallocate(pointer, 1, std::size_t{1} << 40, context.stream());
    } catch (const UnsupportedError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

#endif

}  // namespace
}  // namespace lockstep::testing
