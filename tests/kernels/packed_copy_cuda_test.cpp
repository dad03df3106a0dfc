// Packed copies on a GPU, or on the emulation of one.
#include "tests/kernels/packed_copy_support.hpp"

#include <lockstep/kernels/fill.hpp>

#include "tests/support/cuda_test.hpp"

namespace lockstep {
namespace {

using ops::CopyPair;
using ops::PackedCopy;
using testing::Bytes;
using testing::noise;
using testing::PackedCase;

using CudaPackedCopy = testing::CudaTest;

TEST_F(CudaPackedCopy, KeepsEveryByteBothWaysAndTouchesNoOther) {
  const std::vector<CopyPair> like = testing::mixed_tensors();
  for (const std::size_t largest : {std::size_t{0}, std::size_t{4096}, ops::PackedCopyOptions{}.largest_packed}) {
    PackedCase item(cuda(), like, 1, largest == 4096 ? 3 : 0);
    PackedCopy packed(cuda(), item.to_gpu(), {.largest_packed = largest, .threads = 2});
    EXPECT_EQ(packed.packed_bytes() > 0, largest > 0);
    item.host() = noise(item.host().size(), 1);
    const Bytes before = noise(item.gpu().size(), 2);
    item.set_gpu(before);
    const Bytes expected = item.expected_on_gpu(item.host(), before);
    packed.run(item.to_gpu());
    EXPECT_EQ(item.gpu(), expected);
    EXPECT_NE(expected, before);

    const Bytes other = noise(before.size(), 3);
    item.set_gpu(other);
    const Bytes on_host = item.expected_on_host(other, item.host());
    EXPECT_NE(on_host, item.host());
    packed.run(item.to_host());
    EXPECT_EQ(item.host(), on_host);
  }
}

/// The host has several threads only from some size on.
TEST_F(CudaPackedCopy, OnSeveralThreads) {
  const std::vector<CopyPair> like(40, testing::without_memory(Shape{30001}, DType::u8));
  PackedCase item(cuda(), like, 5, 0);
  PackedCopy packed(cuda(), item.to_gpu(), {.threads = 4});
  item.host() = noise(item.host().size(), 4);
  const Bytes sent = item.host();
  packed.run(item.to_gpu());
  item.host().assign(sent.size(), std::byte{0});
  packed.run(item.to_host());
  EXPECT_EQ(item.host(), item.expected_on_host(item.expected_on_gpu(sent, item.gpu()), item.host()));
  EXPECT_EQ(item.gpu(), item.expected_on_gpu(sent, item.gpu()));
}

TEST_F(CudaPackedCopy, BackToBackWithSourcesThatChange) {
  const std::vector<CopyPair> like = testing::small_tensors(90);
  std::vector<std::unique_ptr<PackedCase>> items;
  for (int i = 0; i < 4; ++i) {
    items.push_back(std::make_unique<PackedCase>(cuda(), like, 0, 1));
  }
  PackedCopy packed(cuda(), items[0]->to_gpu());
  std::vector<Bytes> sent;
  for (const auto& item : items) {
    item->host() = sent.emplace_back(noise(item->host().size(), sent.size()));
    packed.run(item->to_gpu());
    item->host().assign(item->host().size(), std::byte{0xff});  // the sources were read
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items[i]->gpu(), items[i]->expected_on_gpu(sent[i], Bytes(items[i]->gpu().size()))) << i;
  }
}

TEST_F(CudaPackedCopy, RunsInStreamOrder) {
  const Tensor here = Tensor::zeros(cuda(), Shape{100}, DType::f32);
  const Tensor there = Tensor::zeros(cuda(), Shape{100}, DType::f32);
  std::vector<float> host(100, 5.0F);
  const TensorView view{std::span(host), Shape{100}};
  const std::vector<CopyPair> in{{view, here}};
  PackedCopy packed(cuda(), in);
  ops::fill(cuda(), 1, here);
  packed.run(in);
  ops::grouped_copy(cuda(), std::vector<CopyPair>{{here, there}});
  ops::fill(cuda(), 2, here);
  packed.run(std::vector<CopyPair>{{here, view}});
  EXPECT_EQ(host, std::vector<float>(100, 2.0F)) << "after the fill";
  EXPECT_EQ(fetch(there), std::vector<double>(100, 5)) << "after the first run and before the second fill";
}

TEST_F(CudaPackedCopy, RefusesMixedDirectionsAndDevices) {
  std::vector<float> values{1, 2, 3};
  const TensorView host{std::span(values), Shape{3}};
  const Tensor gpu = Tensor::zeros(cuda(), Shape{2, 3}, DType::f32);
  const TensorView a = gpu.view().slice(0, 0, 1).reshape(Shape{3});
  const TensorView b = gpu.view().slice(0, 1, 2).reshape(Shape{3});
  const std::vector<CopyPair> plan{{host, a}, {host, b}};
  PackedCopy packed(cuda(), plan);
  const auto run = [&](const CopyPair& first, const CopyPair& second) {
    packed.run(std::vector<CopyPair>{first, second});
  };
  EXPECT_THROW(run({host, a}, {b, host}), DeviceError);
  EXPECT_THROW(run({a, host}, {host, b}), DeviceError);
  EXPECT_THROW(run({a, b}, {host, b}), DeviceError) << "inside the GPU";
  EXPECT_THROW(run({host, a}, {host, host}), DeviceError) << "inside the host";
  EXPECT_THROW(run({host, a}, {host, gpu.view().slice(1, 0, 1).reshape(Shape{2})}), ShapeError);
  TensorView elsewhere = b;
  elsewhere.device = Device::cuda(7);
  EXPECT_THROW(run({host, a}, {host, elsewhere}), DeviceError);
  TensorView bad = host;
  bad.dtype = DType::i32;
  EXPECT_THROW(run({host, a}, {bad, b}), DTypeError);
  bad = host;
  bad.strides[0] = -1;
  EXPECT_THROW(run({host, a}, {bad, b}), ShapeError) << "not contiguous";
  EXPECT_EQ(fetch(gpu), std::vector<double>(6, 0)) << "no pair was copied";
  packed.run(plan);
  EXPECT_EQ(fetch(gpu), (std::vector<double>{1, 2, 3, 1, 2, 3}));
}

}  // namespace
}  // namespace lockstep
