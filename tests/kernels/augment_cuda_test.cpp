// Tests augmentation on a GPU: rejected random draws, input values out of range, the order of samples in the batch,
// errors. cuda_cases_test.cpp runs the test cases that every op has.
#include <lockstep/runtime/base/random.hpp>

#include "tests/kernels/augment_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaAugment = CudaTest;

/// For these samples, the first random number for the row or column offset must be rejected and drawn again. Otherwise
/// some offsets would be more likely than others. With this padding, one in 21 million numbers is rejected. The GPU
/// must give the images of the host.
TEST_F(CudaAugment, RejectedNumbersAreDrawnAgainLikeOnTheHost) {
  constexpr std::int64_t kPad = 102;
  const std::vector<double> ids{8592760991, 8594298715, 8595826875};
  OpCase item = augment_case({Shape{3, 112, 112, 4}, DType::f32, kPad, true});
  item.inputs[1].start = values(ids);
  constexpr std::uint32_t kOffsets = 2 * kPad + 1;
  for (const double id : ids) {
    Random random(augment_desc({}).seed, RandomUse::augment, 3, static_cast<std::uint64_t>(id));
    bool rejected = false;
    for (int draw = 0; draw < 2; ++draw) {
      rejected = rejected || static_cast<std::uint32_t>(random.bits() * kOffsets) < (0U - kOffsets) % kOffsets;
    }
    EXPECT_TRUE(rejected) << id;
  }
  compare(item, cpu(), item, cuda(), 0);
}

TEST_F(CudaAugment, ValuesOutOfRange) {
  for (const double valid : {-4.0, -9e15, 9e15}) {
    OpCase item = augment_case({Shape{3, 5, 7, 4}, DType::f32, 2, true, 1});
    item.inputs[1].start = values({-1, 9e15, -9e15});
    item.inputs[2].start = constant(-2);
    item.inputs[3].start = constant(valid);
    compare(item, cpu(), item, cuda(), 0);
  }
}

TEST_F(CudaAugment, PaddingFarBeyondTheImage) {
  const OpCase item = augment_case({Shape{5, 3, 4, 4}, DType::f32, std::int64_t{1} << 30, true});
  compare(item, cpu(), item, cuda(), 0);
}

TEST_F(CudaAugment, RefusesImagesBeyond2To31Pixels) {
  // The batch is empty, so the tensors need no memory.
  const auto call = [&](std::int64_t width) {
    const Shape in{0, std::int64_t{1} << 16, width, 3};
    const Tensor images = Tensor::empty(cuda(), in, DType::u8);
    const Tensor ids = Tensor::empty(cuda(), Shape{0}, DType::i64);
    const Tensor epoch = Tensor::zeros(cuda(), Shape{}, DType::i64);
    const Tensor out = Tensor::empty(cuda(), in, DType::f32);
    ops::augment(cuda(), {}, images, ids, epoch, {}, out);
  };
  EXPECT_NO_THROW(call((std::int64_t{1} << 15) - 1));
  EXPECT_THROW(call(std::int64_t{1} << 15), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
