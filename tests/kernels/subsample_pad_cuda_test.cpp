// subsample_pad on a GPU beyond 2^31 elements.
#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/copy.hpp>

#include "tests/kernels/subsample_pad_cases.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep {
namespace {

using CudaSubsamplePad = testing::CudaTest;

TEST_F(CudaSubsamplePad, Beyond2To31Elements) {
  const std::int64_t images = (std::int64_t{1} << 17) + 1;
  Tensor x;
  Tensor y;
  try {
    x = Tensor::empty(cuda(), Shape{images, 31, 31, 16}, DType::bf16);
    y = Tensor::empty(cuda(), Shape{images, 16, 16, 64}, DType::bf16);
  } catch (const OutOfMemory& error) {
    GTEST_SKIP() << error.what();
  }
  ops::fill(cuda(), 0, x);
  ops::fill(cuda(), 2, x.view().slice(0, images - 1, images));
  ops::subsample_pad_forward(cuda(), 2, x, y);
  ops::subsample_pad_backward(cuda(), 2, y, ops::GradMode::accumulate, x);
  std::vector<float> pixel(64);
  std::vector<float> gradient(2 * 2 * 16);
  copy(cuda(), y.view().slice(0, images - 1, images).slice(1, 15, 16).slice(2, 15, 16),
       TensorView(std::span(pixel), Shape{1, 1, 1, 64}));
  copy(cuda(), x.view().slice(0, images - 1, images).slice(1, 29, 31).slice(2, 29, 31),
       TensorView(std::span(gradient), Shape{1, 2, 2, 16}));
  cuda().synchronize();
  for (std::size_t c = 0; c < 64; ++c) {
    EXPECT_EQ(pixel[c], c >= 24 && c < 40 ? 2 : 0) << c;
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_EQ(gradient[i], i / 16 == 3 ? 4 : 2) << i;  // only pixel (30, 30) was taken
  }
  ops::subsample_pad_backward(cuda(), 2, y, ops::GradMode::overwrite, x);
  copy(cuda(), x.view().slice(0, images - 1, images).slice(1, 29, 31).slice(2, 29, 31),
       TensorView(std::span(gradient), Shape{1, 2, 2, 16}));
  cuda().synchronize();
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_EQ(gradient[i], i / 16 == 3 ? 2 : 0) << i;
  }
}

}  // namespace
}  // namespace lockstep
