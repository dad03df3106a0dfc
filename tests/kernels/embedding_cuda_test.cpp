// Tests embedding on a GPU: values out of range in device memory, the order of sums, repeatability, errors.
// cuda_cases_test.cpp runs the test cases that every op has.
#include <limits>

#include "tests/kernels/embedding_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

using CudaEmbedding = CudaTest;

TEST_F(CudaEmbedding, IdsOutOfRangeReadAndWriteNothing) {
  const double low = std::numeric_limits<std::int32_t>::min();
  const double high = std::numeric_limits<std::int32_t>::max();
  OpCase forward = embedding_forward_case({4, 8, Shape{6}, true}, DType::f32);
  forward.inputs[1].start = testing::values({low, 1, 4, -1, high, 3});
  compare(forward, cuda(), forward, cpu(), 0);
  OpCase backward = embedding_backward_case({4, 8, Shape{6}}, DType::f32, GradMode::overwrite);
  backward.inputs[1].start = forward.inputs[1].start;
  compare(backward, cuda(), backward, cpu(), 0);
}

TEST_F(CudaEmbedding, BadIdsCountInTheValidSequencesOnly) {
  OpCase item = embedding_forward_case({4, 8, Shape{5, 613}, true, 5}, DType::f32);
  for (const double valid : {0.0, 1.0, 4.0, 5.0, 6.0, 0x1p62, -1.0, -0x1p63}) {
    item.inputs[3].start = constant(valid);
    compare(item, cuda(), item, cpu(), 0);
  }
}

/// Three tokens with the same id are `distance` apart. The sum must run in token order, even if a block cannot read all
/// three tokens at once.
TEST_F(CudaEmbedding, SumsRunInTheOrderOfTheTokens) {
  for (const std::int64_t distance : {1, 33, 128, 700}) {
    OpCase item = embedding_backward_case({2, 3, Shape{2 * distance + 1}}, DType::f32, GradMode::overwrite);
    item.inputs[0].start = [=](GuardedTensor& dy) {
      dy.constant(100);
      const std::span<float> values = dy.span<float>();
      const auto step = static_cast<std::size_t>(distance) * 3;
      for (std::size_t d = 0; d < 3; ++d) {
        values[d] = 1;
        values[step + d] = 0x1p24F;  // 1 + 2^24 is 2^24 in f32
        values[2 * step + d] = -0x1p24F;
      }
    };
    item.inputs[1].start = [=](GuardedTensor& ids) {
      ids.constant(1);
      for (const std::int64_t token : {std::int64_t{0}, distance, 2 * distance}) {
        ids.span<std::int32_t>()[static_cast<std::size_t>(token)] = 0;
      }
    };
    const CheckedRun instance(item, cuda());
    const double rest = 100 * static_cast<double>(2 * distance - 2);
    EXPECT_EQ(instance.output(0).values(), (std::vector<double>{0, 0, 0, rest, rest, rest})) << distance;
  }
}

TEST_F(CudaEmbedding, SumsBeginWithWhatIsThere) {
  OpCase item = embedding_backward_case({1, 1, Shape{2}}, DType::f32, GradMode::accumulate);
  item.inputs[0].start = testing::values({1, -0x1p24});
  item.inputs[1].start = constant(0);
  item.outputs[0].start = constant(0x1p24);
  const CheckedRun instance(item, cuda());
  EXPECT_EQ(instance.output(0).values(), std::vector<double>{0}) << "1 - 2^24 is exact, 2^24 + 1 is 2^24";
  item = embedding_backward_case({5, 24, Shape{701}}, DType::f32, GradMode::accumulate);
  compare(item, cuda(), item, cpu(), 0);
}

TEST_F(CudaEmbedding, TheSameBitsEveryTime) {
  expect_repeatable(embedding_forward_case({17, 24, Shape{3, 41}, true}, DType::bf16), cuda());
  expect_repeatable(embedding_backward_case({5, 24, Shape{701}}, DType::bf16, GradMode::accumulate), cuda());
}

TEST_F(CudaEmbedding, RefusesWhatTheContractExcludes) {
  const Tensor dy = Tensor::zeros(cuda(), Shape{4, 3}, DType::bf16);
  const Tensor ids = Tensor::zeros(cuda(), Shape{4}, DType::i32);
  const Tensor dtable = Tensor::zeros(cuda(), Shape{5, 3}, DType::f32);
  const Tensor memory = Tensor::zeros(cuda(), Shape{64}, DType::u8);
  const TensorView scratch = memory;
  const auto call = [&](const TensorView& from, const TensorView& to, const TensorView& workspace) {
    ops::embedding_backward(cuda(), from, ids, GradMode::overwrite, to, workspace);
  };
  EXPECT_EQ(ops::embedding_backward_workspace_bytes(cuda(), dtable), 40U);
  EXPECT_NO_THROW(call(dy, dtable, scratch.slice(0, 4, 44)));
  EXPECT_THROW(call(dy, dtable, {}), ShapeError);
  EXPECT_THROW(call(dy, dtable, scratch.slice(0, 0, 39)), ShapeError);
  EXPECT_THROW(call(dy, dtable, scratch.slice(0, 2, 42)), ShapeError) << "alignment";
  for (const TensorView& other : {dy.view(), ids.view(), dtable.view()}) {
    EXPECT_THROW(call(dy, dtable, with(scratch, &TensorView::data, other.data)), ShapeError) << "overlap";
  }
  EXPECT_THROW(call(dy, with(dtable, &TensorView::dtype, DType::bf16), scratch), DTypeError)
      << "sums with 16-bit tensors are f32";
  EXPECT_THROW(call(with(dy, &TensorView::dtype, DType::f64), dtable, scratch), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing
