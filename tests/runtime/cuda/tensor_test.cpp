#include <cstring>

#include <lockstep/runtime/context/memory_summary.hpp>
#include <lockstep/runtime/tensor/print.hpp>

#include "tests/runtime/cuda/support.hpp"

// Tests tensors on CUDA devices: factories, to(), and the device from which their memory comes.

namespace lockstep::testing {
namespace {

using CudaTensorTest = CudaTest;
using CudaTensorPairTest = CudaPairTest;

/// Returns the elements of a contiguous tensor of a device, in a tensor on the host.
Tensor fetched(const Tensor& tensor, CpuContext& host, Context& carrier) {
  const Tensor result = Tensor::empty_like(host, tensor);
  copy(carrier, tensor, result);
  carrier.synchronize();
  return result;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

std::vector<Tensor> one_of_each(Context& context, std::uint64_t seed) {
  const Shape shape{7, 11};
  return {Tensor::ones(context, shape, DType::bf16), Tensor::full(context, shape, 2.5, DType::f16),
          Tensor::arange(context, 0, 5, 0.3, DType::f32), Tensor::eye(context, 5, 7, DType::u8),
          Tensor::rand(context, shape, DType::f64, seed), Tensor::randn(context, shape, DType::f32, seed),
          Tensor::zeros(context, Shape{}, DType::i64), Tensor::ones(context, Shape{0, 3}, DType::f32),
          // The tensor is larger than one piece (4 MiB) in which the host makes random numbers.
          Tensor::rand(context, Shape{1, 1050001}, DType::f32, seed)};
}

TEST_F(CudaTensorTest, FactoriesHaveTheBitsOfTheHost) {
  CpuContext host({.threads = 3});
  CudaContext context(Device::cuda(0));
  const auto expected = one_of_each(host, 1);
  const auto other = one_of_each(host, 2);
  const auto tensors = one_of_each(context, 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].device(), Device::cuda(0));
    EXPECT_TRUE(same_bits(fetched(tensors[i], host, context), expected[i])) << i;
  }
  for (const std::size_t i : {4U, 5U, 8U}) {
    EXPECT_FALSE(same_bits(fetched(tensors[i], host, context), other[i])) << i;
  }
}

TEST_F(CudaTensorTest, ToAndBack) {
  CpuContext host;
  CudaContext context(Device::cuda(0));
  const Tensor x = Tensor::randn(host, Shape{5, 3}, DType::f32, 1);
  const Tensor there = x.to(context);
  EXPECT_EQ(there.device(), Device::cuda(0));
  CudaContext another(Device::cuda(0));
  EXPECT_EQ(there.to(context).view().data, there.view().data);
  EXPECT_EQ(there.to(another).view().data, there.view().data);
  EXPECT_EQ(there.to(context, DType::f32).view().data, there.view().data);
  EXPECT_EQ(error_text<DeviceError>([&] {
              static_cast<void>(there.to(host));
            }).find("copy from cuda:0 to cpu with a context on cpu, expected the context of the CUDA device"),
            0U);
  const Tensor back = there.to(host, context);
  context.synchronize();
  EXPECT_EQ(back.device(), Device::cpu());
  EXPECT_TRUE(same_bits(back, x));
  EXPECT_FALSE(same_bits(Tensor::randn(host, Shape{5, 3}, DType::f32, 2), back));
}

TEST_F(CudaTensorPairTest, ToTheOtherDeviceAndMixedDevices) {
  CpuContext host;
  CudaContext first(Device::cuda(0));
  CudaContext second(Device::cuda(1));
  const Tensor x = Tensor::arange(first, 0, 6, 1, DType::f32);
  const Tensor y = x.to(second);
  second.synchronize();
  EXPECT_EQ(y.device(), Device::cuda(1));
  EXPECT_NE(y.view().data, x.view().data);
  EXPECT_EQ(y.to(second).view().data, y.view().data);
  EXPECT_TRUE(same_bits(fetched(y, host, second), fetched(x, host, first)));
  // Neither tensor is on the context's device: the error names all devices.
  const Tensor z = Tensor::zeros(host, Shape{6}, DType::f32);
  EXPECT_EQ(error_text<DeviceError>([&] { copy(second, x, z); }),
            "copy: src is on cuda:0, dst on cpu, the context on cuda:1, expected src or dst where the context is");
  EXPECT_EQ(error_text<DeviceError>([&] {
              require_on(second.device(), "add", {&y.view(), &x.view()});
            }),
            "add: tensor 1 is on cuda:0, expected cuda:1");
  first.synchronize();
}

TEST_F(CudaTensorTest, Printed) {
  CudaContext context(Device::cuda(0));
  const Tensor t = Tensor::arange(context, 0, 12, 1, DType::f32);
  const TensorView matrix = t.view().reshape(Shape{3, 4});
  EXPECT_EQ(to_string(context, matrix.slice(0, 0, 2)), "[[0., 1., 2., 3.],\n [4., 5., 6., 7.]] f32 (2, 4) on cuda:0");
  EXPECT_EQ(to_string(context, matrix.permute({1, 0}).slice(0, 1, 3)),
            "[[ 1.,  5.,  9.],\n [ 2.,  6., 10.]] f32 (2, 3) on cuda:0");
  EXPECT_EQ(to_string(context, Tensor::full(context, Shape{}, 7, DType::i64)), "7 i64 () on cuda:0");
  EXPECT_EQ(to_string(context, Tensor::ones(context, Shape{2, 0}, DType::u8)), "[] u8 (2, 0) on cuda:0");
  // For a large tensor only the elements at its ends are copied to the host.
  const Tensor large = Tensor::arange(context, 0, 40000, 1, DType::i32);
  context.copied() = {};
  EXPECT_EQ(to_string(context, large.view().reshape(Shape{200, 200}), {.edge_items = 1}),
            "[[    0, ...,   199],\n ...,\n [39800, ..., 39999]] i32 (200, 200) on cuda:0");
  EXPECT_EQ(context.copied().device_to_host, 16U);
  // Printing waits for queued work.
  const Pinned pinned(context, 2, 5.0F);
  const Tensor late = Tensor::zeros(context, Shape{2}, DType::f32);
  copy(context, pinned, late);
  EXPECT_EQ(to_string(context, late), "[5., 5.] f32 (2) on cuda:0");
}

using Waits = std::vector<std::string>;  // "call: reason, bytes"

TEST_F(CudaTensorTest, WaitsAreReported) {
  Waits waits;
  {
    CudaContext context(Device::cuda(0));
    const Pinned pinned(context, 16, 1.0F);
    context.on_synchronisation([&](const Synchronisation& wait) {
      EXPECT_EQ(wait.device, Device::cuda(0));
      waits.push_back(concat(wait.call, ": ", name_of(wait.reason), ", ", wait.bytes));
    });
    const auto taken = [&] { return std::exchange(waits, {}); };
    std::vector<float> pageable(16);
    const TensorView host{std::span(pageable), Shape{16}};
    {
      const Tensor tensor = Tensor::empty(context, Shape{16}, DType::f32);
      EXPECT_EQ(taken(), Waits{}) << "memory in the order of the stream";
      copy(context, pinned, tensor);
      copy(context, tensor, pinned);
      EXPECT_EQ(taken(), Waits{});  // none of these calls blocks
      copy(context, host, tensor);
      copy(context, tensor, host);
      EXPECT_EQ(taken(), (Waits{"copy: host copy, 64", "copy: host copy, 64"}));
      const Tensor wide = Tensor::zeros(context, Shape{16}, DType::f64);
      waits.clear();
      copy(context, pinned, wide);  // the copy converts the type
      EXPECT_EQ(taken(), Waits{"copy: host copy, 128"});
      static_cast<void>(to_string(context, tensor));
      EXPECT_EQ(taken(), Waits{"to_string: host data, 0"});
      Event event(Device::cuda(0));
      context.stream().record(event);
      context.stream().wait(event);
      static_cast<void>(event.complete());
      EXPECT_EQ(taken(), Waits{});
      context.synchronize();
      EXPECT_EQ(taken(), Waits{"synchronize: requested, 0"});
    }
    EXPECT_EQ(taken(), Waits{});
    {
      CudaMemoryResource plain(Device::cuda(0));
      const Buffer buffer(64, plain, context.stream());
      EXPECT_EQ(taken(), Waits{"CudaMemoryResource::allocate: allocation, 64"});
    }
    EXPECT_EQ(taken(), Waits{"CudaMemoryResource::deallocate: release, 64"});
    { const Tensor drawn = Tensor::rand(context, Shape{4}, DType::f32, 1); }
    EXPECT_EQ(taken(), Waits{"rand: host data, 16"});
    configure_staging(context);
    EXPECT_EQ(taken(), Waits{"configure_staging: allocation, 8388608"});
    context.on_synchronisation({});
    context.synchronize();
    EXPECT_EQ(waits, Waits{});
    context.on_synchronisation([&](const Synchronisation& wait) { waits.emplace_back(wait.call); });
  }
  ASSERT_FALSE(waits.empty());
  EXPECT_EQ(waits.back(), "~Stream");
}

TEST_F(CudaTensorPairTest, MemorySummaryOfEachDevice) {
  CudaContext second(Device::cuda(1));
  const Tensor tensor = Tensor::empty(second, Shape{1000}, DType::u8);
  const MemorySummary summary = memory_summary(second);
  EXPECT_EQ(summary.device, Device::cuda(1));
  EXPECT_EQ(summary.resource->in_use, 1000U);
  EXPECT_FALSE(summary.process.has_value());
  EXPECT_GT(summary.total, summary.free);
  EXPECT_EQ(summary.total, summary.resource->in_use + summary.others + summary.free);
  EXPECT_EQ(current_device(), 0);
}

#if LOCKSTEP_CUDA_STANDIN

// A memory summary of one device must use no other device. It must show the memory of other contexts separately.
TEST_F(CudaTensorTest, MemorySummaryTouchesNoOtherDevice) {
  standin::reset({.devices = 3, .bytes_per_device = 10000});
  {
    CudaContext context(Device::cuda(1));
    CudaContext other(Device::cuda(1));
    const Tensor ours = Tensor::empty(context, Shape{1000}, DType::u8);
    const Tensor theirs = Tensor::empty(other, Shape{300}, DType::u8);
    const MemorySummary summary = memory_summary(context);
    EXPECT_EQ(summary.others, 300U);
    EXPECT_EQ(summary.free, 8700U);
    EXPECT_EQ(summary.total, 10000U);
    EXPECT_EQ(memory_summary(other).others, 1000U);
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{1});
  }
}

// Each of three devices has memory for its own tensors only. An allocation on another device would therefore fail.
TEST_F(CudaTensorTest, MemoryIsTakenOnTheTensorsOwnDeviceOnly) {
  standin::reset({.devices = 3, .bytes_per_device = 4096});
  std::size_t free = 0;
  std::size_t total = 0;
  const auto used = [&](int device) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    return total - free;
  };
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    CpuContext host;
    CudaContext one(Device::cuda(1));
    const Tensor drawn = Tensor::rand(one, Shape{100}, DType::f32, 1);
    const Tensor zeros = Tensor::zeros(one, Shape{100}, DType::f64);
    const Tensor moved = Tensor::ones(host, Shape{50}, DType::f32).to(one);
    const Tensor shared = drawn.to(one);
    one.synchronize();
    EXPECT_EQ(standin::devices_in_use(), std::vector<int>{1});  // no context exists on another device
    EXPECT_EQ(used(1), 400U + 800U + 200U);
    EXPECT_EQ(used(0), 0U);
    EXPECT_EQ(used(2), 0U);
    CudaContext two(Device::cuda(2));
    const Tensor copied = drawn.to(two);
    two.synchronize();
    EXPECT_EQ(used(2), 400U);
    EXPECT_EQ(used(1), 1400U);
    EXPECT_EQ(used(0), 0U);
    // A full device must refuse an allocation, even if other devices have free memory.
    EXPECT_THROW(static_cast<void>(Tensor::zeros(two, Shape{3697}, DType::u8)), OutOfMemory);
    EXPECT_EQ(used(0), 0U);
  }
  EXPECT_EQ(used(1), 0U);
  EXPECT_EQ(used(2), 0U);
}

#endif

}  // namespace
}  // namespace lockstep::testing
