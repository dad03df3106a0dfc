// Tests subsample_pad on a GPU with more than 2^31 elements.
#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/subsample_pad_cases.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::testing {
namespace {

using CudaSubsamplePad = CudaTest;

TEST_F(CudaSubsamplePad, Beyond2To31Elements) {
  run_large([&] {
    const std::int64_t images = kLarge / (31 * 31 * 16) + 1;
    const Tensor x = Tensor::empty(cuda(), Shape{images, 31, 31, 16}, DType::bf16);
    const Tensor y = Tensor::empty(cuda(), Shape{images, 16, 16, 64}, DType::bf16);
    const TensorView last_x = x.view().slice(0, images - 1, images);
    const TensorView last_y = y.view().slice(0, images - 1, images);
    ops::fill(cuda(), 0, x);
    ops::fill(cuda(), 2, last_x);
    ops::subsample_pad_forward(cuda(), 2, x, y);
    const std::vector<double> taken = fetch(last_y);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      EXPECT_EQ(taken[i], i % 64 >= 24 && i % 64 < 40 ? 2 : 0) << i;
    }
    // The forward pass takes the pixels with an even row and an even column, so only these get a gradient.
    const auto expect_gradient = [&](double where_taken, double elsewhere) {
      const std::vector<double> gradient = fetch(last_x);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const std::size_t pixel = i / 16;
        const bool took = pixel / 31 % 2 == 0 && pixel % 31 % 2 == 0;
        EXPECT_EQ(gradient[i], took ? where_taken : elsewhere) << i;
      }
    };
    ops::subsample_pad_backward(cuda(), 2, y, ops::GradMode::accumulate, x);
    expect_gradient(4, 2);
    ops::subsample_pad_backward(cuda(), 2, y, ops::GradMode::overwrite, x);
    expect_gradient(2, 0);
  });
}

}  // namespace
}  // namespace lockstep::testing
