// Tests fill on a GPU: views off 16-byte boundaries, special values, and more than 2^31 elements. cuda_cases_test.cpp
// runs the test cases that every op has.
#include <array>
#include <cmath>

#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/fill_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaFill = CudaTest;

TEST_F(CudaFill, StartsAndEndsOffA16ByteBoundary) {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t begin : {0, 1, 3, 7, 15}) {
      for (const std::int64_t count : {1, 2, 15, 16, 17, 33, 4099}) {
        OpCase item = fill_case(3.75, Shape{begin + count + 5}, dtype);
        item.outputs[0].start = [](GuardedTensor& tensor) { tensor.constant(1); };
        item.run = [=](Context& context, Views, Views out, const TensorView&) {
          ops::fill(context, 3.75, out[0].slice(0, begin, begin + count));
        };
        compare(item, cpu(), item, cuda(), 0);
      }
    }
  }
}

TEST_F(CudaFill, SpecialValues) {
  for (const double value : {-0.0, HUGE_VAL, -HUGE_VAL, 1e-310, 65520.0}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      const OpCase item = fill_case(value, Shape{37}, dtype);
      compare(item, cpu(), item, cuda(), 0);
    }
  }
}

TEST_F(CudaFill, Beyond2To31Elements) {
  run_large([&] {
    const std::int64_t count = 2 * kLarge + 77;
    const Tensor out = Tensor::zeros(cuda(), Shape{count}, DType::u8);
    ops::fill(cuda(), 9, out.view().slice(0, 1, count - 1));
    for (const std::int64_t begin : {std::int64_t{0}, kLarge - 8, 2 * kLarge - 8, count - 16}) {
      const std::vector<double> part = fetch(out.view().slice(0, begin, begin + 16));
      for (std::int64_t i = 0; i < 16; ++i) {
        const bool outside = begin + i == 0 || begin + i == count - 1;
        EXPECT_EQ(part[static_cast<std::size_t>(i)], outside ? 0 : 9) << begin + i;
      }
    }
  });
}

TEST_F(CudaFill, LeavesTheCurrentDeviceAndRunsInStreamOrder) {
  CudaContext last(Device::cuda(num_gpus() - 1));  // last GPU, which is not the current device if there are several
  const Tensor out = Tensor::empty(last, Shape{1001}, DType::f32);
  for (int i = 0; i < 100; ++i) {
    ops::fill(last, i, out);
  }
  std::vector<float> host(1001);
  copy(last, out, TensorView(std::span(host), Shape{1001}));
  last.synchronize();
  EXPECT_EQ(host, std::vector<float>(1001, 99.0F));
}

}  // namespace
}  // namespace lockstep::testing
