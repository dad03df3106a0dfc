// Tests regression losses on a GPU: values out of range in device memory, NaN, in-place calls, views off 16-byte
// boundaries, repeatability. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>
#include <limits>

#include "tests/kernels/regression_loss_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::RegressionLoss;

constexpr RegressionLoss kKinds[] = {RegressionLoss::mse, RegressionLoss::l1, RegressionLoss::huber};

using CudaRegressionLoss = CudaTest;

TEST_F(CudaRegressionLoss, ValidOutOfRangeIsClamped) {
  for (const double valid : {-4.0, -3e18, 3e18}) {  // -3e18 and 3e18 times 5 elements overflow 64 bits
    OpCase item = regression_loss_case({Shape{37, 5}, {}, 1, false}, DType::f32);
    item.inputs[1].start = constant(valid);
    compare(item, cuda(), item, cpu(), item.tolerance);
  }
}

TEST_F(CudaRegressionLoss, NaNShowsWhereItCounts) {
  for (const RegressionLoss kind : kKinds) {
    OpCase item = regression_loss_case({Shape{3, 2}, {kind}, 2, true}, DType::bf16);
    item.inputs[0].start = values({1, 1, std::nan(""), 1, 1, 1});
    item.inputs[3].start = values({std::nan(""), 2, 1, 2, std::nan(""), 2});
    const CheckedRun instance(item, cuda());
    const std::vector<double> gradient = instance.output(1).values();
    EXPECT_TRUE(std::isnan(instance.output(0).values()[0]));
    EXPECT_TRUE(std::isnan(gradient[0]));
    EXPECT_TRUE(std::isnan(gradient[2]));
    EXPECT_GT(gradient[1], 0);
    EXPECT_EQ(gradient[4], 0);
    EXPECT_EQ(gradient[5], 0);
  }
}

TEST_F(CudaRegressionLoss, InPlaceAndOffTheBoundaryGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [kind, weighting] : {std::pair{RegressionLoss::mse, Weighting::none},
                                          {RegressionLoss::l1, Weighting::none},
                                          {RegressionLoss::huber, Weighting::none},
                                          {RegressionLoss::mse, Weighting::sample},
                                          {RegressionLoss::huber, Weighting::element}}) {
      const auto with = [&](PredictionGradient gradient) {
        return regression_loss_case({Shape{23, 171}, {kind, 0.75}, 20, true, gradient, weighting}, dtype);
      };
      const OpCase apart = with(PredictionGradient::apart);
      const CheckedRun first(apart, cuda());
      const CheckedRun third(off_boundary(apart), cuda());
      expect_same_outputs(first, CheckedRun(with(PredictionGradient::in_place), cuda()));
      for (std::size_t i = 0; i < 2; ++i) {
        const TensorView& off = third.output(i);
        expect_same_bits(first.output(i), off.slice(0, 1, off.numel()).reshape(apart.outputs[i].shape));
      }
    }
  }
}

TEST_F(CudaRegressionLoss, AWeightOfZeroTakesAnElementOut) {
  for (const RegressionLoss kind : kKinds) {
    OpCase item =
        regression_loss_case({Shape{3, 2}, {kind}, 2, true, PredictionGradient::apart, Weighting::element}, DType::f16);
    item.inputs[0].start = values({std::nan(""), 1, 1, 1, 1, 1});
    item.inputs[3].start = values({2, 2, std::nan(""), 2, 2, 2});
    item.inputs[4].start = values({0, 4, 0, 2, std::nan(""), 1});
    const CheckedRun instance(item, cuda());
    const double loss = kind == RegressionLoss::huber ? 0.5 : 1;
    EXPECT_EQ(instance.output(0).values()[0], 2 + 6 * loss / 2);
    const double slope = kind == RegressionLoss::mse ? 2 : 1;
    EXPECT_EQ(instance.output(1).values(),
              (std::vector<double>{0, 4 * slope * 0.375 / 2, 0, 2 * slope * 0.375 / 2, 0, 0}));
    item.inputs[4].start = values({1, 4, 0, 2, 1, 1});
    const CheckedRun shows(item, cuda());
    EXPECT_TRUE(std::isnan(shows.output(0).values()[0]));
    EXPECT_TRUE(std::isnan(shows.output(1).values()[0]));
  }
}

TEST_F(CudaRegressionLoss, TheSameBitsEveryTime) {
  OpCase item = regression_loss_case({Shape{101, 333}, {RegressionLoss::huber, 0.5}, 90, true}, DType::f32);
  item.inputs[3].start = normal(4);
  expect_repeatable(item, cuda());
}

TEST_F(CudaRegressionLoss, RefusesWhatTheContractExcludes) {
  const Tensor prediction = Tensor::zeros(cuda(), Shape{4, 3}, DType::bf16);
  const Tensor metrics = Tensor::zeros(cuda(), Shape{3}, DType::f64);
  const Tensor scratch = Tensor::zeros(cuda(), Shape{16}, DType::u8);
  const auto call = [&](const TensorView& x, const TensorView& scale, const TensorView& workspace) {
    ops::regression_loss(cuda(), {}, x, x, {}, {}, scale, {}, metrics, workspace);
  };
  EXPECT_NO_THROW(call(prediction, Tensor::zeros(cuda(), Shape{}, DType::f32), scratch));
  EXPECT_THROW(call(prediction, Tensor::zeros(cuda(), Shape{}, DType::bf16), scratch), DTypeError);
  EXPECT_THROW(call(prediction, {}, {}), ShapeError);
  EXPECT_THROW(call(testing::with(prediction, &TensorView::dtype, DType::f64), {}, scratch), DTypeError);
}

}  // namespace
}  // namespace lockstep::testing
