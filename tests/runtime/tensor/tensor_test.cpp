#include <lockstep/runtime/tensor/tensor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::testing {
namespace {

TEST(Tensor, EmptyIsContiguousAndAligned) {
  HostMemoryResource host;
  TrackingMemoryResource tracking(host);
  CpuContext context({.memory = &tracking});
  {
    const Tensor t = Tensor::empty(context, Shape{2, 3, 5}, DType::bf16);
    EXPECT_EQ(t.shape(), (Shape{2, 3, 5}));
    EXPECT_EQ(t.dtype(), DType::bf16);
    EXPECT_EQ(t.device(), Device::cpu());
    EXPECT_TRUE(t.view().is_contiguous());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.view().data) % kAlignment, 0U);
    EXPECT_EQ(tracking.counts().bytes_in_use, 60U);
    const Tensor shared = t;
    EXPECT_EQ(shared.view().data, t.view().data);
    EXPECT_EQ(tracking.counts().allocations, 1);
  }
  EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
  EXPECT_EQ(Tensor::empty(context, Shape{0, 3}, DType::f32).view().numel(), 0);
  EXPECT_FALSE(Tensor().view().given());
  EXPECT_THROW(static_cast<void>(Tensor::empty(context, Shape{-1}, DType::f32)), ShapeError);
}

TEST(Tensor, Zeros) {
  CpuContext context;
  const Tensor t = Tensor::zeros(context, Shape{1001}, DType::f64);
  const auto values = t.view().span<double>();
  EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](double x) { return x == 0; }));
  EXPECT_EQ(Tensor::zeros(context, Shape{0}, DType::f32).view().numel(), 0);
}

TEST(Tensor, ZerosOnAWorkerOutlivesTheTensor) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(Tensor::zeros(context, Shape{1000}, DType::f32));  // destroyed before the worker runs its work
  }
  const Tensor t = Tensor::zeros(context, Shape{7}, DType::i32);
  context.synchronize();
  const auto values = t.view().span<std::int32_t>();
  EXPECT_EQ(std::count(values.begin(), values.end(), 0), 7);
}

TEST(Tensor, AdoptReleasesOnceWhenTheLastOwnerIsGone) {
  std::vector<float> memory{1, 2, 3};
  int released = 0;
  {
    Tensor outer;
    {
      const Tensor t = Tensor::adopt(TensorView(std::span(memory), Shape{3}), [&] { ++released; });
      EXPECT_EQ(t.view().data, memory.data());
      outer = t;
    }
    EXPECT_EQ(released, 0);
    Tensor moved = std::move(outer);
    outer = Tensor();
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  EXPECT_NO_THROW(static_cast<void>(Tensor::adopt(TensorView(std::span(memory), Shape{3}), {})));
}

TEST(Tensor, AdoptReleasesOnceWhicheverThreadIsLast) {
  struct Foreign {  // like a tensor of DLPack: the deleter frees the struct that holds it
    void (*deleter)(Foreign*);
    std::atomic<int>* deleted;
    std::vector<float> memory;
  };
  std::atomic<int> deleted = 0;
  for (int round = 0; round < 200; ++round) {
    auto* const foreign = new Foreign{.deleter =
                                          [](Foreign* self) {
                                            ++*self->deleted;
                                            delete self;
                                          },
                                      .deleted = &deleted,
                                      .memory = {1, 2, 3}};
    Tensor tensor =
        Tensor::adopt(TensorView(std::span(foreign->memory), Shape{3}), [foreign] { foreign->deleter(foreign); });
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([mine = tensor]() mutable {
        const Tensor other = mine;
        mine = Tensor();
        EXPECT_EQ(other.view().as<float>()[2], 3);
      });
    }
    tensor = Tensor();
    for (std::thread& thread : threads) {
      thread.join();
    }
    threads.clear();
    EXPECT_EQ(deleted, round + 1);
  }
}

TEST(Tensor, ToTheSameDeviceIsTheSameStorage) {
  HostMemoryResource host;
  TrackingMemoryResource tracking(host);
  CpuContext context({.memory = &tracking});
  Tensor t = Tensor::zeros(context, Shape{4}, DType::f32);
  CpuContext another;
  const Tensor same = t.to(another);
  EXPECT_EQ(same.view().data, t.view().data);
  t = Tensor();
  EXPECT_EQ(tracking.counts().bytes_in_use, 16U);  // the tensor `same` still owns the memory
  EXPECT_EQ(another.copied().host_to_host, 0U);
}

TEST(Tensor, ToAnotherTypeIsACopy) {
  CpuContext context;
  const Tensor t = Tensor::full(context, Shape{2, 3}, 1.5, DType::f32);
  EXPECT_EQ(t.to(context, DType::f32).view().data, t.view().data);
  const Tensor wide = t.to(context, DType::f64);
  EXPECT_EQ(wide.dtype(), DType::f64);
  EXPECT_NE(wide.view().data, t.view().data);
  EXPECT_EQ(wide.view().span<double>()[5], 1.5);
  const Tensor whole = t.to(context, DType::i32);
  EXPECT_EQ(whole.view().span<std::int32_t>()[0], 1);  // rounded toward zero, as copy() does
  EXPECT_EQ(t.to(context, context).view().data, t.view().data);
}

TEST(Tensor, ToTheHostNeedsTheCudaContext) {
  CpuContext context;
  const Tensor elsewhere = Tensor::adopt(TensorView(nullptr, DType::f32, Device::cuda(0), Shape{4}), {});
  for (const auto& to : {std::function([&] { static_cast<void>(elsewhere.to(context)); }),
                         std::function([&] { static_cast<void>(elsewhere.to(context, DType::f64)); }),
                         std::function([&] { static_cast<void>(elsewhere.to(context, context)); })}) {
    expect_error<DeviceError>(to, {"cuda:0", "cpu"});
  }
}

}  // namespace
}  // namespace lockstep::testing
