// Tests softmax cross entropy on a GPU: values out of range in device memory, infinities and NaN, in-place calls,
// repeatability, errors. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>
#include <limits>

#include "tests/kernels/softmax_cross_entropy_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaSoftmaxCrossEntropy = CudaTest;

TEST_F(CudaSoftmaxCrossEntropy, LabelsOutOfRangeAreCountedAndTakePartInNothing) {
  constexpr double kMin = std::numeric_limits<std::int32_t>::min();
  constexpr double kMax = std::numeric_limits<std::int32_t>::max();
  for (const bool in_place : {false, true}) {
    OpCase item = softmax_cross_entropy_case(
        {9, 8, DType::f32, 0.1, 8, true, in_place ? LogitsGradient::in_place : LogitsGradient::apart});
    item.inputs[0].start = values({-1, 8, 3, kMin, kMax, 9, 0, 7, -1});
    compare(item, cuda(), item, cpu(), item.tolerance);
    const CheckedRun instance(item, cuda());
    EXPECT_EQ(instance.output(0).values()[2], 5.0 + 5.0);  // the bad label of the ninth, invalid sample does not count
  }
}

TEST_F(CudaSoftmaxCrossEntropy, ValidOutOfRangeIsClamped) {
  for (const double valid : {-4.0, -9e15, 9e15}) {
    OpCase item = softmax_cross_entropy_case({37, 5, DType::f32, 0, 1, false});
    item.inputs[1].start = constant(valid);
    compare(item, cuda(), item, cpu(), item.tolerance);
  }
}

TEST_F(CudaSoftmaxCrossEntropy, InfinitiesAndNaN) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    OpCase item = softmax_cross_entropy_case({2, 3, dtype});
    item.inputs[0].start = values({0, 1});
    item.inputs[3].start = values({1, -inf, 1, 1e4, 0, -1e4});
    const CheckedRun masked(item, cuda());
    EXPECT_NEAR(masked.output(0).values()[0], 2 + std::log(2.0) + masked.inputs()[3].values()[3], 1e-2);
    EXPECT_EQ(masked.output(0).values()[1], 3 + 1);
    EXPECT_EQ(masked.output(1).values(), (std::vector<double>{-0.5, 0, 0.5, 1, -1, 0}));
    for (const double bad : {inf, std::nan("")}) {
      for (std::size_t place = 0; place < 3; ++place) {
        std::vector<double> logits{3, 3, 3, 1, 2, 3};
        logits[place] = bad;
        item.inputs[3].start = values(logits);
        const CheckedRun instance(item, cuda());
        EXPECT_TRUE(std::isnan(instance.output(0).values()[0])) << bad << " at " << place;
        EXPECT_TRUE(std::isnan(instance.output(1).values()[place])) << bad << " at " << place;
        EXPECT_FALSE(std::isnan(instance.output(1).values()[3])) << "the other row";
        EXPECT_EQ(instance.output(0).values()[1], 3) << "label 0 is wrong, and 1 in the other row";
      }
    }
  }
}

TEST_F(CudaSoftmaxCrossEntropy, AWeightOfZeroTakesAPositionOut) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    OpCase item = softmax_cross_entropy_case({2, 3, dtype, 0, -1, false, LogitsGradient::apart, 2, Weighting::element});
    item.inputs[0].start = values({-100, 1, 2, 3});
    item.inputs[3].start = values({1, 2, 3, 0, 0, 0, std::nan(""), 1, 1, 1, 1, 1});
    item.inputs[4].start = values({0, 3, 0, std::nan("")});
    const CheckedRun instance(item, cuda());
    EXPECT_NEAR(instance.output(0).values()[0], 2 + 1.5 * std::log(3.0), 1e-6);
    EXPECT_EQ(instance.output(0).values()[2], 5 + 1) << "the last label is no class, its weight is not 0";
    const std::vector<double> gradient = instance.output(1).values();
    EXPECT_NEAR(gradient[4], -1, 1e-2);
    for (const std::size_t i : {0, 1, 2, 6, 7, 8, 9, 10, 11}) {
      EXPECT_EQ(gradient[i], 0) << i;
    }
    item.inputs[4].start = values({1, std::nan(""), 0, 0});
    const CheckedRun shows(item, cuda());
    EXPECT_TRUE(std::isnan(shows.output(0).values()[0]));
    EXPECT_TRUE(std::isnan(shows.output(1).values()[3]));
  }
}

TEST_F(CudaSoftmaxCrossEntropy, InPlaceGivesTheBitsOfApart) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t classes : {17, 1000}) {
      OpCase apart = softmax_cross_entropy_case({23, classes, dtype, 0.1, 20, true});
      apart.inputs[3].start = eighths(2);
      const CheckedRun first(apart, cuda());
      const CheckedRun second(softmax_cross_entropy_case({23, classes, dtype, 0.1, 20, true, LogitsGradient::in_place}),
                              cuda());
      expect_same_outputs(first, second);
    }
  }
}

TEST_F(CudaSoftmaxCrossEntropy, TheSameBitsEveryTime) {
  OpCase item = softmax_cross_entropy_case({523, 100, DType::f32, 0.1, 500, true});
  std::swap(item.inputs[0], item.inputs[3]);  // expect_repeatable() changes the first input, which should be the logits
  item.run = [run = item.run](Context& context, Views in, Views out, const TensorView& workspace) {
    const std::vector<TensorView> inputs{in[3], in[1], in[2], in[0]};
    run(context, inputs, out, workspace);
  };
  expect_repeatable(item, cuda());
}

TEST_F(CudaSoftmaxCrossEntropy, RefusesWhatTheContractExcludes) {
  const OpCase item = softmax_cross_entropy_case({5, 3, DType::bf16, 0, 4, true});
  OpInstance instance(item, cuda());
  const Views in = instance.input_views();
  const Views out = instance.output_views();
  const Tensor memory = Tensor::zeros(cuda(), Shape{64}, DType::u8);
  const TensorView scratch = memory;
  const auto call = [&](const TensorView& logits, const TensorView& scale, const TensorView& workspace) {
    ops::softmax_cross_entropy(cuda(), logits, in[0], {}, in[1], scale, 0, out[1], out[0], workspace);
  };
  EXPECT_EQ(ops::softmax_cross_entropy_workspace_bytes(cuda(), in[3]), 40U);
  EXPECT_EQ(ops::softmax_cross_entropy_workspace_bytes(cpu(), in[3]), 0U);
  EXPECT_NO_THROW(call(in[3], in[2], scratch));
  EXPECT_THROW(call(in[3], in[2], {}), Error);
  EXPECT_THROW(call(in[3], in[2], scratch.slice(0, 0, 39)), ShapeError);
  EXPECT_THROW(call(in[3], in[2], scratch.slice(0, 4, 44)), ShapeError) << "alignment";
  EXPECT_THROW(call(in[3], in[2], with(scratch, &TensorView::dtype, DType::f32)), DTypeError);
  EXPECT_THROW(call(in[3], in[2], with(scratch, &TensorView::data, in[3].data)), ShapeError) << "overlap";
  EXPECT_THROW(call(in[3], with(in[2], &TensorView::dtype, DType::bf16), scratch), DTypeError) << "scale";
  EXPECT_THROW(call(with(in[3], &TensorView::dtype, DType::f64), in[2], scratch), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing
