// Tests sums on a GPU: long sums, repeatability, views off 16-byte boundaries, more than 2^31 elements, errors.
// cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/reduce_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

using CudaReduce = CudaTest;

TEST_F(CudaReduce, LongSumsDoNotStallInF32) {
  OpCase item = reduce_rows_case(20011, 3, DType::f32);
  item.inputs[0].start = [](GuardedTensor& x) {
    x.constant(1);
    for (float& value : x.span<float>().first(3)) {
      value = 0x1p24F;  // 2^24 + 1 is 2^24 in f32
    }
  };
  const CheckedRun instance(item, cuda());
  for (const double sum : instance.output(0).values()) {
    EXPECT_NEAR(sum, 0x1p24 + 20010, 8);  // one thread may lose the seven ones that it adds to 2^24
  }
}

TEST_F(CudaReduce, TheSameBitsEveryTime) {
  expect_repeatable(reduce_rows_case(4001, 33, DType::f32), cuda());
  expect_repeatable(squared_norm_case(Shape{200003}, DType::bf16), cuda());
  expect_repeatable(sum_case(Shape{200003}, DType::bf16), cuda());
}

/// Sums the same values twice, from aligned and from unaligned memory. Both code paths must sum in the same order.
TEST_F(CudaReduce, TheSameBitsOffA16ByteBoundary) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    OpCase item = reduce_rows_case(1537, 64, dtype);
    const Shape shape{1537, 64};
    item.inputs.push_back({"x after one element", Shape{shape.numel() + 1}, dtype, [=](GuardedTensor& tensor) {
                             GuardedTensor aligned(shape, dtype);
                             item.inputs[0].start(aligned);
                             std::vector<double> list = aligned.values();
                             list.insert(list.begin(), 1.0);
                             tensor.assign(list);
                           }});
    item.outputs.push_back({"sums off the boundary", Shape{64}, DType::f32, {}});
    item.outputs.push_back({"norm", Shape{}, DType::f64, {}});
    item.outputs.push_back({"norm off the boundary", Shape{}, DType::f64, {}});
    item.outputs.push_back({"sum", Shape{}, DType::f64, {}});
    item.outputs.push_back({"sum off the boundary", Shape{}, DType::f64, {}});
    item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
      const TensorView off = in[1].slice(0, 1, in[1].numel()).reshape(shape);
      ops::reduce_rows(context, in[0], GradMode::overwrite, out[0], workspace);
      ops::reduce_rows(context, off, GradMode::overwrite, out[1], workspace);
      ops::squared_norm(context, in[0], out[2], workspace);
      ops::squared_norm(context, off, out[3], workspace);
      ops::sum(context, in[0], out[4], workspace);
      ops::sum(context, off, out[5], workspace);
    };
    const CheckedRun instance(item, cuda());
    expect_same_bits(instance.output(0), instance.output(1));
    expect_same_bits(instance.output(2), instance.output(3));
    expect_same_bits(instance.output(4), instance.output(5));
  }
}

/// All elements are NaN, so many warps write `found` at the same time. The result must still be right.
TEST_F(CudaReduce, ManyFindWhatIsNotFinite) {
  OpCase item = all_finite_case(Shape{5003}, DType::bf16);
  item.inputs[0].start = constant(std::nan(""));
  const CheckedRun instance(item, cuda());
  EXPECT_EQ(instance.output(0).values()[0], 1);
}

TEST_F(CudaReduce, LargestNumbersAreFinite) {
  for (const auto& [dtype, largest] :
       {std::pair{DType::f32, 0x1.fffffep127}, std::pair{DType::bf16, 0x1.fep127}, std::pair{DType::f16, 65504.0}}) {
    OpCase item = all_finite_case(Shape{40}, dtype);
    item.inputs[0].start = constant(largest);
    const CheckedRun instance(item, cuda());
    EXPECT_EQ(instance.output(0).values()[0], 0) << dtype;
  }
}

TEST_F(CudaReduce, Beyond2To31Elements) {
  run_large([&] {
    constexpr std::int64_t kColumns = 8;
    const std::int64_t kRows = kLarge / kColumns + 3;
    const Tensor x = Tensor::empty(cuda(), Shape{kRows, kColumns}, DType::bf16);
    const std::size_t bytes =
        std::max(ops::reduce_rows_workspace_bytes(cuda(), x), ops::squared_norm_workspace_bytes(cuda(), x));
    const Tensor workspace = Tensor::empty(cuda(), Shape{static_cast<std::int64_t>(bytes)}, DType::u8);
    const Tensor sums = Tensor::empty(cuda(), Shape{kColumns}, DType::f32);
    const Tensor norm = Tensor::empty(cuda(), Shape{}, DType::f64);
    const Tensor total = Tensor::empty(cuda(), Shape{}, DType::f64);
    const Tensor found = Tensor::zeros(cuda(), Shape{}, DType::i32);
    ops::fill(cuda(), 1, x);
    ops::fill(cuda(), 4, x.view().slice(0, kRows - 1, kRows));
    ops::reduce_rows(cuda(), x, GradMode::overwrite, sums, workspace);
    ops::squared_norm(cuda(), x, norm, workspace);
    ops::sum(cuda(), x, total, workspace);
    ops::fill(cuda(), std::nan(""), x.view().slice(0, kRows - 1, kRows));
    ops::all_finite(cuda(), x, found);
    EXPECT_EQ(fetch(total)[0], static_cast<double>(kColumns * (kRows + 3)));
    EXPECT_EQ(fetch(found)[0], 1);
    // A count such as 2^28 + 6 needs more than the 24 bits of an f32. The sum must be the exact number rounded once.
    EXPECT_EQ(fetch(sums), std::vector<double>(kColumns, static_cast<double>(static_cast<float>(kRows + 3))));
    EXPECT_EQ(fetch(norm)[0], static_cast<double>(kColumns * (kRows + 15)));
  });
}

TEST_F(CudaReduce, RefusesWhatTheContractExcludes) {
  const Tensor x = Tensor::zeros(cuda(), Shape{257, 3}, DType::bf16);
  const Tensor sums = Tensor::zeros(cuda(), Shape{3}, DType::f32);
  const Tensor memory = Tensor::zeros(cuda(), Shape{64}, DType::u8);
  const TensorView scratch = memory;
  const auto call = [&](const TensorView& from, const TensorView& to, const TensorView& workspace) {
    ops::reduce_rows(cuda(), from, GradMode::overwrite, to, workspace);
  };
  EXPECT_EQ(ops::reduce_rows_workspace_bytes(cuda(), x), 48U);
  EXPECT_EQ(ops::reduce_rows_workspace_bytes(cuda(), x.view().slice(0, 0, 256)), 0U);
  EXPECT_EQ(ops::reduce_rows_workspace_bytes(cpu(), x), 0U);
  EXPECT_NO_THROW(call(x, sums, scratch));
  EXPECT_NO_THROW(call(x.view().slice(0, 0, 256), sums, {}));
  EXPECT_THROW(call(x, sums, {}), Error);
  EXPECT_THROW(call(x, sums, scratch.slice(0, 0, 47)), ShapeError);
  EXPECT_THROW(call(x, sums, scratch.slice(0, 4, 52)), ShapeError) << "alignment";
  EXPECT_THROW(call(x, sums, with(scratch, &TensorView::data, x.view().data)), ShapeError) << "overlap";
  EXPECT_THROW(call(x, with(sums, &TensorView::dtype, DType::bf16), scratch), DTypeError)
      << "sums with 16-bit tensors are f32";
  TensorView bad = x;
  bad.dtype = DType::f64;
  EXPECT_THROW(call(bad, sums, scratch), DTypeError);
  const Tensor norm = Tensor::zeros(cuda(), Shape{}, DType::f64);
  EXPECT_THROW(ops::squared_norm(cuda(), bad, norm, scratch), DTypeError);
  EXPECT_THROW(ops::squared_norm(cuda(), x, norm, {}), Error);
  EXPECT_THROW(ops::sum(cuda(), x, norm, {}), Error);
  EXPECT_THROW(ops::sum(cuda(), bad, norm, scratch), DTypeError);
  EXPECT_THROW(ops::all_finite(cuda(), bad, Tensor::zeros(cuda(), Shape{}, DType::i32)), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing
