// Tests average pooling on a GPU: NaN, and more than 2^31 elements. cuda_cases_test.cpp runs the test cases that every
// op has.
#include <cmath>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/average_pool2d_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::AverageOver;

using CudaAveragePool2d = CudaTest;

constexpr ops::PoolDesc kStem{{3, 3}, {2, 2}, {1, 1}, {1, 1}};

TEST_F(CudaAveragePool2d, ANaNStaysInItsWindows) {
  for (const std::int64_t channels : {7, 8}) {
    OpCase item = average_pool2d_forward_case({{1, 4, 4, channels}, kStem}, AverageOver::inside);
    item.inputs[0].start = [](GuardedTensor& tensor) {
      tensor.integers(1, 1, 1);
      tensor.span<float>()[0] = NAN;  // pixel (0, 0), which only window (0, 0) covers
    };
    const CheckedRun device(item, cuda());
    const std::vector<double> y = device.output(0).values();
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_TRUE(i == 0 ? std::isnan(y[i]) : y[i] == 1.0) << i << ": " << y[i];
    }
  }
}

TEST_F(CudaAveragePool2d, Beyond2To31Elements) {
  run_large([&] {
    const Shape shape{kLarge / (8 * 8 * 64) + 1, 8, 8, 64};
    const Tensor x = Tensor::empty(cuda(), shape, DType::bf16);
    const Tensor y = Tensor::empty(cuda(), ops::pooled_shape(kStem, shape), DType::bf16);
    const Tensor mean = Tensor::empty(cuda(), Shape{shape[0], 64}, DType::bf16);
    const TensorView last = x.view().slice(0, shape[0] - 1, shape[0]);
    ops::fill(cuda(), 0, x);
    ops::fill(cuda(), 1, last);
    ops::average_pool2d_forward(cuda(), kStem, AverageOver::inside, x, y);
    ops::global_average_pool_forward(cuda(), x, mean);
    for (const Tensor& pooled : {y, mean}) {
      const std::vector<double> values = fetch(pooled.view().slice(0, shape[0] - 2, shape[0]));
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i], i < values.size() / 2 ? 0 : 1) << i;
      }
    }
    // Backward: pixel (7, 7) is only in window (3, 3). All 3 x 3 pixels of that window are inside the image.
    ops::average_pool2d_backward(cuda(), kStem, AverageOver::inside, y, x);
    std::vector<double> gradient = fetch(last);
    for (std::size_t i = gradient.size() - 64; i < gradient.size(); ++i) {
      EXPECT_NEAR(gradient[i], 1.0 / 9, 1e-3) << i;
    }
    ops::global_average_pool_backward(cuda(), mean, x);
    gradient = fetch(last);
    EXPECT_EQ(gradient, std::vector<double>(gradient.size(), 1.0 / 64));
  });
}

}  // namespace
}  // namespace lockstep::testing
