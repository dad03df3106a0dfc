// Tests top-k accuracy on a GPU: values out of range in device memory, NaN, errors. cuda_cases_test.cpp runs the test
// cases that every op has.
#include <cmath>
#include <limits>

#include "tests/kernels/top_k_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaTopK = CudaTest;

TEST_F(CudaTopK, ValuesOutOfRangeOnTheDevice) {
  for (const double valid : {-4.0, -9e15, 9e15}) {
    OpCase item = top_k_case({37, 5, 2, 1}, DType::f32);
    item.inputs[2].start = constant(valid);
    compare(item, cuda(), item, cpu(), 0);
  }
  OpCase item = top_k_case({4, 3, 3}, DType::f32);
  const double low = std::numeric_limits<std::int32_t>::min();
  const double high = std::numeric_limits<std::int32_t>::max();
  item.inputs[1].start = values({low, 2, high, 3});
  compare(item, cuda(), item, cpu(), 0);
}

/// Puts NaN, infinity or -infinity at each index of a row. The label is the fourth largest class and k is 4, so the
/// sample would count as correct. With NaN or infinity no softmax can be computed, so the sample must not count. With
/// -infinity it must count, unless the label's logit is -infinity.
TEST_F(CudaTopK, OutputsWithoutASoftmaxAreWrongWhateverTheLabel) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (std::size_t place = 0; place < 19; ++place) {
      OpCase item = top_k_case({1, 19, 4}, dtype);
      std::vector<double> row(19);
      for (std::size_t c = 0; c < row.size(); ++c) {
        row[c] = -static_cast<double>(c);
      }
      item.inputs[1].start = constant(3);
      for (const double bad : {std::nan(""), inf, -inf}) {
        row[place] = bad;
        item.inputs[0].start = values(row);
        const CheckedRun instance(item, cuda());
        EXPECT_EQ(instance.output(0).values()[0], bad == -inf && place != 3 ? 8 : 7) << bad << " at " << place;
      }
    }
  }
}

TEST_F(CudaTopK, RefusesWhatTheContractExcludes) {
  const Tensor logits = Tensor::zeros(cuda(), Shape{5, 3}, DType::bf16);
  const Tensor labels = Tensor::zeros(cuda(), Shape{5}, DType::i32);
  const Tensor result = Tensor::zeros(cuda(), Shape{}, DType::f64);
  const Tensor scratch = Tensor::zeros(cuda(), Shape{5}, DType::u8);
  const auto call = [&](const TensorView& x, const TensorView& workspace) {
    ops::top_k_correct(cuda(), x, labels, {}, {}, 2, result, workspace);
  };
  EXPECT_EQ(ops::top_k_workspace_bytes(cuda(), logits), 5U);
  EXPECT_NO_THROW(call(logits, scratch));
  EXPECT_THROW(call(logits, {}), ShapeError);
  EXPECT_THROW(call(logits, scratch.view().slice(0, 0, 4)), ShapeError);
  for (const TensorView& other : {logits.view(), labels.view(), result.view()}) {
    EXPECT_THROW(call(logits, with(scratch, &TensorView::data, other.data)), ShapeError) << "overlap";
  }
  EXPECT_THROW(call(with(logits, &TensorView::dtype, DType::f64), scratch), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing
