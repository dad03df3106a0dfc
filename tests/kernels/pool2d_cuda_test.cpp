// Pooling on a GPU beyond the cases that all ops share: NaN and infinity, winners outside of their windows, beyond 2^31
// elements.
#include <array>
#include <cmath>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/copy.hpp>

#include "tests/kernels/pool2d_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep {
namespace {

using testing::GuardedTensor;
using testing::OpCase;
using testing::OpInstance;

using CudaPool2d = testing::CudaTest;

constexpr ops::PoolDesc kStem{{3, 3}, {2, 2}, {1, 1}, {1, 1}};

TEST_F(CudaPool2d, NaNInfinityAndZerosOfBothSigns) {
  for (const std::int64_t channels : {7, 8}) {
    OpCase item = testing::max_pool2d_forward_case({{2, 9, 8, channels}, kStem});
    item.inputs[0].start = [](GuardedTensor& tensor) {
      tensor.integers(1, 0, 7);
      std::vector<double> values = tensor.values();
      constexpr std::array kSpecial{NAN, HUGE_VALF, -HUGE_VALF, 0.0F, -0.0F, 1.0F, -1.0F, -HUGE_VALF};
      for (double& value : values) {
        value = static_cast<double>(kSpecial[static_cast<std::size_t>(value)]);
      }
      tensor.assign(values);
    };
    OpInstance host(item, cpu());
    OpInstance device(item, cuda());
    testing::run_checked(host);
    testing::run_checked(device);
    testing::expect_same_bits(device.output(0), host.output(0));
    testing::expect_same_bits(device.output(1), host.output(1));
  }
}

TEST_F(CudaPool2d, WinnersOutsideOfTheirWindows) {
  for (const std::int64_t channels : {7, 8}) {
    OpCase item = testing::max_pool2d_backward_case({{2, 9, 8, channels}, kStem});
    item.inputs[1].start = [](GuardedTensor& tensor) {
      tensor.integers(3, -20, 100);  // of 72 pixels
      tensor.span<std::int32_t>()[0] = std::numeric_limits<std::int32_t>::max();
      tensor.span<std::int32_t>()[1] = std::numeric_limits<std::int32_t>::min();
    };
    testing::compare(item, cpu(), item, cuda(), item.tolerance);
  }
}

TEST_F(CudaPool2d, Beyond2To31Elements) {
  const Shape shape{(std::int64_t{1} << 19) + 1, 8, 8, 64};
  Tensor x;
  Tensor y;
  Tensor index;
  Tensor mean;
  try {
    x = Tensor::empty(cuda(), shape, DType::bf16);
    y = Tensor::empty(cuda(), ops::pooled_shape(kStem, shape), DType::bf16);
    index = Tensor::empty(cuda(), y.view().shape, DType::i32);
    mean = Tensor::empty(cuda(), Shape{shape[0], 64}, DType::bf16);
  } catch (const OutOfMemory& error) {
    GTEST_SKIP() << error.what();
  }
  const TensorView last = x.view().slice(0, shape[0] - 1, shape[0]);
  ops::fill(cuda(), 0, x);
  ops::fill(cuda(), 1, last);
  ops::max_pool2d_forward(cuda(), kStem, x, y, index);
  ops::global_average_pool_forward(cuda(), x, mean);
  std::vector<float> pooled(2 * 16 * 64);
  std::vector<float> means(2 * 64);
  const std::int64_t from = shape[0] - 2;
  copy(cuda(), y.view().slice(0, from, shape[0]), TensorView(std::span(pooled), Shape{2, 4, 4, 64}));
  copy(cuda(), mean.view().slice(0, from, shape[0]), TensorView(std::span(means), Shape{2, 64}));
  cuda().synchronize();
  for (std::size_t i = 0; i < pooled.size(); ++i) {
    EXPECT_EQ(pooled[i], i < pooled.size() / 2 ? 0 : 1) << i;
  }
  for (std::size_t i = 0; i < means.size(); ++i) {
    EXPECT_EQ(means[i], i < 64 ? 0 : 1) << i;
  }

  // Back: of the last image's windows, (0, 0) is won by pixel (0, 0), as all its pixels are equal.
  ops::max_pool2d_backward(cuda(), kStem, y, index, x);
  std::vector<float> corner(64);
  copy(cuda(), last.slice(1, 0, 1).slice(2, 0, 1), TensorView(std::span(corner), Shape{1, 1, 1, 64}));
  cuda().synchronize();
  for (const float value : corner) {
    EXPECT_EQ(value, 1);
  }
  ops::global_average_pool_backward(cuda(), mean, x);
  copy(cuda(), last.slice(1, 7, 8).slice(2, 7, 8), TensorView(std::span(corner), Shape{1, 1, 1, 64}));
  cuda().synchronize();
  for (const float value : corner) {
    EXPECT_EQ(value, 1.0F / 64);
  }
}

}  // namespace
}  // namespace lockstep
