#include <numeric>

#include "tests/runtime/cuda/support.hpp"

namespace lockstep::testing {
namespace {

using CudaCopyTest = CudaTest;
using CudaCopyPairTest = CudaPairTest;

TEST_F(CudaCopyTest, EveryTypeThereAndBackWithCounts) {
  CudaContext context(Device::cuda(0));
  CopyCounts expected;
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32, DType::i64, DType::u64}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{3, 5, 7}, Shape{100003}}) {
      const TensorView bytes_of(nullptr, dtype, Device::cpu(), shape);
      const std::size_t bytes = bytes_of.bytes();
      std::vector<std::uint8_t> in(bytes);
      std::iota(in.begin(), in.end(), std::uint8_t{1});
      std::vector<std::uint8_t> out(bytes, 0xEE);
      const TensorView src(in.data(), dtype, Device::cpu(), shape);
      const TensorView dst(out.data(), dtype, Device::cpu(), shape);
      const Tensor a = Tensor::empty(context, shape, dtype);
      const Tensor b = Tensor::empty(context, shape, dtype);
      copy(context, src, a);
      copy(context, a, b);
      copy(context, b, dst);
      context.synchronize();
      EXPECT_EQ(in, out) << dtype << ' ' << shape;
      expected.host_to_device += bytes;
      expected.device_to_device += bytes;
      expected.device_to_host += bytes;
    }
  }
  EXPECT_EQ(context.copied().host_to_device, expected.host_to_device);
  EXPECT_EQ(context.copied().device_to_device, expected.device_to_device);
  EXPECT_EQ(context.copied().device_to_host, expected.device_to_host);
  EXPECT_EQ(context.copied().host_to_host, 0U);
}

TEST_F(CudaCopyTest, EmptyTensorsMoveNothing) {
  CudaContext context(Device::cuda(0));
  const Tensor device = Tensor::zeros(context, Shape{3, 0}, DType::f32);
  EXPECT_EQ(device.view().data, nullptr);
  const TensorView host(nullptr, DType::f32, Device::cpu(), Shape{3, 0});
  copy(context, host, device);
  copy(context, device, host);
  EXPECT_EQ(context.copied().host_to_device, 0U);
}

TEST_F(CudaCopyTest, ZerosAndTo) {
  CudaContext context(Device::cuda(0));
  CpuContext host;
  const Tensor zeros = Tensor::zeros(context, Shape{1001}, DType::f32);
  std::vector<float> out(1001, 7.0F);
  copy(context, zeros, TensorView(std::span(out), Shape{1001}));
  context.synchronize();
  EXPECT_EQ(out, std::vector<float>(1001, 0.0F));

  std::vector<float> values(1001);
  std::iota(values.begin(), values.end(), 1.0F);
  const Tensor here = Tensor::adopt(TensorView(std::span(values), Shape{1001}), {});
  const Tensor there = here.to(context);
  EXPECT_EQ(there.device(), Device::cuda(0));
  EXPECT_EQ(there.to(context).view().data, there.view().data);  // the tensor keeps its storage
  copy(context, there, TensorView(std::span(out), Shape{1001}));
  context.synchronize();
  EXPECT_EQ(out, values);
}

TEST_F(CudaCopyTest, ContiguousPartsOfTensors) {
  CudaContext context(Device::cuda(0));
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0F);
  const TensorView host{std::span(values), Shape{4, 3}};
  const Tensor device = Tensor::zeros(context, Shape{4, 3}, DType::f32);
  copy(context, host.slice(0, 1, 3), device.view().slice(0, 2, 4));
  std::vector<float> out(12, -1.0F);
  copy(context, device, TensorView(std::span(out), Shape{4, 3}));
  context.synchronize();
  EXPECT_EQ(out, (std::vector<float>{0, 0, 0, 0, 0, 0, 3, 4, 5, 6, 7, 8}));
}

TEST_F(CudaCopyTest, RefusesWhatItCannotDo) {
  CudaContext context(Device::cuda(0));
  CpuContext host_context;
  std::vector<float> values(6);
  const TensorView host{std::span(values), Shape{2, 3}};
  const Tensor device = Tensor::zeros(context, Shape{2, 3}, DType::f32);
  const Tensor turned = Tensor::zeros(context, Shape{3, 2}, DType::f32);
  const Tensor wide = Tensor::zeros(context, Shape{2, 3}, DType::f64);
  EXPECT_THROW(copy(context, host, turned), ShapeError);
  const std::string text = error_text<UnsupportedError>([&] { copy(context, device.view().permute({1, 0}), turned); });
  EXPECT_NE(text.find("strided_copy"), std::string::npos) << text;
  EXPECT_THROW(copy(context, device, wide), UnsupportedError);
  EXPECT_THROW(copy(host_context, host, device), DeviceError);
  EXPECT_THROW(copy(context, host, host), DeviceError);
  EXPECT_EQ(context.copied().host_to_device + context.copied().device_to_device, 0U);
  context.synchronize();
}

TEST_F(CudaCopyPairTest, BetweenDevices) {
  for_seeds(
      [](std::uint64_t) {
        CudaContext first(Device::cuda(0));
        CudaContext second(Device::cuda(1));
        const Pinned in(first, 333, 4.5F);
        const Pinned out(second, 333);
        const Tensor a = Tensor::empty(first, Shape{333}, DType::f32);
        const Tensor b = Tensor::empty(second, Shape{333}, DType::f32);
        // A pool allocates memory in the order of a stream. Stream `first` may use the memory of `second` only after
        // this wait.
        second.synchronize();
        copy(first, in, a);
        copy(first, a, b);  // enqueued by the source's context
        Event event(first.device());
        first.stream().record(event);
        second.stream().wait(event);
        copy(second, b, out);
        second.synchronize();
        EXPECT_TRUE(out.holds(4.5F));
        EXPECT_EQ(first.copied().device_to_device, 333U * 4);

        const Tensor c = a.to(second);  // enqueued by the target's context
        copy(second, c, out);
        second.synchronize();
        EXPECT_TRUE(out.holds(4.5F));
        EXPECT_EQ(second.copied().device_to_device, 333U * 4);
      },
      2);
}

TEST_F(CudaCopyPairTest, BothDevicesAreForeign) {
  CudaContext first(Device::cuda(0));
  CudaContext second(Device::cuda(1));
  const Tensor a = Tensor::empty(second, Shape{3}, DType::f32);
  const Tensor b = Tensor::empty(second, Shape{3}, DType::f32);
  EXPECT_THROW(copy(first, a, b), DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
