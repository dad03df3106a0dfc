// Tests maximum pooling on a GPU: NaN and infinity, indices of pixels outside of their windows, and more than 2^31
// elements. cuda_cases_test.cpp runs the test cases that every op has.
#include <array>
#include <cmath>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/max_pool2d_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaMaxPool2d = CudaTest;

constexpr ops::PoolDesc kStem{{3, 3}, {2, 2}, {1, 1}, {1, 1}};

TEST_F(CudaMaxPool2d, NaNInfinityAndZerosOfBothSigns) {
  for (const std::int64_t channels : {7, 8}) {
    OpCase item = max_pool2d_forward_case({{2, 9, 8, channels}, kStem});
    item.inputs[0].start = [](GuardedTensor& tensor) {
      tensor.integers(1, 0, 7);
      std::vector<double> values = tensor.values();
      constexpr std::array kSpecial{NAN, HUGE_VALF, -HUGE_VALF, 0.0F, -0.0F, 1.0F, -1.0F, -HUGE_VALF};
      for (double& value : values) {
        value = static_cast<double>(kSpecial[static_cast<std::size_t>(value)]);
      }
      tensor.assign(values);
    };
    expect_same_outputs(CheckedRun(item, cuda()), CheckedRun(item, cpu()));
  }
}

TEST_F(CudaMaxPool2d, WinnersOutsideOfTheirWindows) {
  for (const std::int64_t channels : {7, 8}) {
    OpCase item = max_pool2d_backward_case({{2, 9, 8, channels}, kStem});
    item.inputs[1].start = [](GuardedTensor& tensor) {
      tensor.integers(3, -20, 100);  // some indices are beyond the 72 pixels
      tensor.span<std::int32_t>()[0] = std::numeric_limits<std::int32_t>::max();
      tensor.span<std::int32_t>()[1] = std::numeric_limits<std::int32_t>::min();
    };
    compare(item, cpu(), item, cuda(), item.tolerance);
  }
}

TEST_F(CudaMaxPool2d, Beyond2To31Elements) {
  run_large([&] {
    const Shape shape{kLarge / (8 * 8 * 64) + 1, 8, 8, 64};
    const Tensor x = Tensor::empty(cuda(), shape, DType::bf16);
    const Tensor y = Tensor::empty(cuda(), ops::pooled_shape(kStem, shape), DType::bf16);
    const Tensor index = Tensor::empty(cuda(), y.view().shape, DType::i32);
    const TensorView last = x.view().slice(0, shape[0] - 1, shape[0]);
    ops::fill(cuda(), 0, x);
    ops::fill(cuda(), 1, last);
    ops::max_pool2d_forward(cuda(), kStem, x, y, index);
    const std::vector<double> pooled = fetch(y.view().slice(0, shape[0] - 2, shape[0]));
    for (std::size_t i = 0; i < pooled.size(); ++i) {
      EXPECT_EQ(pooled[i], i < pooled.size() / 2 ? 0 : 1) << i;
    }
    // All pixels of an image are equal, so the first pixel of each window is its maximum. Pixel (0, 0) is the maximum
    // of one window.
    ops::max_pool2d_backward(cuda(), kStem, y, index, x);
    const std::vector<double> gradient = fetch(last);
    double sum = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      EXPECT_TRUE(i >= 64 || gradient[i] == 1) << i;
      sum += gradient[i];
    }
    EXPECT_EQ(sum, 4 * 4 * 64);
  });
}

}  // namespace
}  // namespace lockstep::testing
