#include "tests/kernels/batch_norm_given_cases.hpp"

#include <gtest/gtest.h>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

TEST(BatchNormGiven, MatchesThePlainLoopsInBf16) {
  CpuContext context({.threads = 2});
  for (BatchNormParams p : batch_norm_given_params()) {
    p.dtype = DType::bf16;
    const OpCase item = batch_norm_coefficients_given_case(p);
    compare(plain_twin(item), context, item, context, item.tolerance);
  }
}

/// Gives the op the sums of x. The coefficients must equal those computed from x, whatever shift was subtracted before
/// summing.
TEST(BatchNormGiven, SumsOfTheTensorGiveItsCoefficients) {
  CpuContext context;
  constexpr std::int64_t kChannels = 5;
  const Shape shape{6, 7, kChannels};
  const Shape vector{kChannels};
  for (const double from : {0.0, 3.0}) {
    GuardedTensor x(shape, DType::f64, normal(1, 2, 3)), weight(vector, DType::f64, normal(2)),
        bias(vector, DType::f64, normal(3)), shift(vector, DType::f64, constant(from)),
        sums(Shape{2, kChannels}, DType::f64), stats(Shape{2 * kChannels + 1}, DType::f64),
        got(Shape{4, kChannels}, DType::f64), expected(Shape{4, kChannels}, DType::f64);
    const std::vector<double> values = x.values();
    std::vector<double> both(2 * kChannels, 0.0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      both[i % kChannels] += values[i] - from;
      both[kChannels + i % kChannels] += (values[i] - from) * (values[i] - from);
    }
    sums.assign(both);
    const GuardedTensor workspace(Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(context, x))},
                                  DType::u8);
    ops::batch_norm_coefficients(context, x, {}, weight, bias, 1e-3, 0.1, stats, {}, {}, expected, workspace);
    ops::batch_norm_coefficients_given(context, x, {}, sums, shift, weight, bias, 1e-3, 0.1, stats, {}, {}, got,
                                       workspace);
    EXPECT_LE(relative_error(got, expected), 1e-13) << from;
  }
}

TEST(BatchNormGiven, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor x(Shape{4, 8}, DType::f32), weight(Shape{8}, DType::f32), bias(Shape{8}, DType::f32),
      shift(Shape{8}, DType::f32), stats(Shape{17}, DType::f32), k(Shape{4, 8}, DType::f32),
      sums(Shape{2, 8}, DType::f32), more(Shape{2, 8}, DType::f32), dweight(Shape{8}, DType::f32),
      dbias(Shape{8}, DType::f32);
  for (GuardedTensor* tensor : {&x, &weight, &bias, &shift, &sums}) {
    tensor->constant(1);
  }
  const GuardedTensor workspace(Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(context, x))},
                                DType::u8);
  const auto coefficients = [&](const std::vector<TensorView>& v) {
    ops::batch_norm_coefficients_given(context, x, {}, v[0], v[1], v[2], v[3], 1e-3, 0.1, v[4], {}, {}, v[5],
                                       workspace);
  };
  expect_views_checked({sums, shift, weight, bias, stats, k}, coefficients, true);
  EXPECT_THROW(coefficients({sums, k.view().slice(0, 0, 1).reshape({8}), weight, bias, stats, k}), ShapeError)
      << "coefficients over shift";
  const auto gradients = [&](const std::vector<TensorView>& v) {
    ops::batch_norm_gradients_given(context, v[0], v[1], GradMode::overwrite, v[2], v[3], v[4]);
  };
  expect_views_checked({weight, bias, sums, dweight, dbias}, gradients, true);
  EXPECT_THROW(gradients({weight, bias, sums, weight, dbias}), ShapeError) << "dweight over sum_g";
  EXPECT_THROW(gradients({sums.view().slice(0, 0, 1).reshape({8}), bias, sums, dweight, dbias}), ShapeError)
      << "sums over sum_g";
  EXPECT_NO_THROW(ops::batch_norm_gradients_given(context, weight, bias, GradMode::ignore, more, {}, {}));
}

}  // namespace
}  // namespace lockstep::testing
