#include "tests/kernels/batch_norm_cases.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <lockstep/kernels/reduce.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

// ---- numbers by hand -----------------------------------------------------------------------------------------------

struct Workspace {
  explicit Workspace(Context& context, const TensorView& x)
      : tensor(Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(context, x))}, DType::u8) {}
  GuardedTensor tensor;
};

template <class T>
TensorView view(std::vector<T>& data, const Shape& shape) {
  return TensorView(std::span<T>(data), shape);
}

TEST(BatchNorm, ForwardAndBackwardByHand) {
  CpuContext context({.threads = 2});
  // Two channels, four rows. Channel 0 (1, 3, 5, 7) has mean 4 and M2 20. Channel 1 (2, 2, -2, -2) has mean 0 and M2
  // 16.
  std::vector<double> x{1, 2, 3, 2, 5, -2, 7, -2};
  std::vector<double> stats(5, NAN);
  std::vector<double> weight{2, 3};
  std::vector<double> bias{10, -1};
  std::vector<double> running_mean{8, 1};
  std::vector<double> running_var{1, 2};
  std::vector<double> coefficients(8, NAN);
  const Shape shape{4, 2};
  const TensorView vx = view(x, shape);
  const Workspace workspace(context, vx);
  ops::batch_norm_stats(context, vx, {}, view(stats, {5}), workspace.tensor);
  EXPECT_EQ(stats, (std::vector<double>{4, 0, 20, 16, 4}));

  // The variances are 5 and 4. With epsilon 4 the inverse standard deviations are 1/3 and 1/sqrt(8).
  ops::batch_norm_finalize(context, view(stats, {5}), view(weight, {2}), view(bias, {2}), 4, 0.25,
                           view(running_mean, {2}), view(running_var, {2}), view(coefficients, {4, 2}));
  const double s = 3 / std::sqrt(8.0);
  EXPECT_NEAR(coefficients[0], 2.0 / 3, 1e-15);
  EXPECT_NEAR(coefficients[1], s, 1e-15);
  EXPECT_NEAR(coefficients[2], 10 - 8.0 / 3, 1e-14);
  EXPECT_EQ(coefficients[3], -1);
  EXPECT_EQ(coefficients[4], 4);
  EXPECT_EQ(coefficients[5], 0);
  EXPECT_NEAR(coefficients[6], 1.0 / 3, 1e-16);
  EXPECT_NEAR(coefficients[7], 1 / std::sqrt(8.0), 1e-16);
  EXPECT_EQ(running_mean, (std::vector<double>{7, 0.75}));
  EXPECT_NEAR(running_var[0], 0.75 + 0.25 * 20 / 3, 1e-15);  // the running variance is unbiased
  EXPECT_NEAR(running_var[1], 1.5 + 0.25 * 16 / 3, 1e-15);

  std::vector<double> y(8, NAN);
  std::vector<std::uint8_t> mask(4, 0xff);
  ops::batch_norm_apply(context, vx, view(coefficients, {4, 2}), {}, true, view(y, shape), view(mask, {4}));
  const std::vector<double> expected{8, 2 * s - 1, 28.0 / 3, 2 * s - 1, 32.0 / 3, 0, 12, 0};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(y[i], expected[i], 1e-14) << i;
  }
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{0b01011111, 0, 0, 0}));

  // g is dy where the mask bit is 1, and 0 elsewhere.
  std::vector<double> dy{3, 1, 1, 5, 1, 100, -1, 100};
  std::vector<double> sums(4, NAN);
  std::vector<double> dweight{1000, 1000};
  std::vector<double> dbias{NAN, NAN};
  ops::batch_norm_backward_reduce(context, view(dy, shape), {}, view(mask, {4}), vx, view(coefficients, {4, 2}), {},
                                  GradMode::overwrite, view(sums, {2, 2}), view(dweight, {2}), view(dbias, {2}), {},
                                  workspace.tensor);
  // Channel 0: g (3, 1, 1, -1), x - mean (-3, -1, 1, 3). sum(g) = 4; sum(g (x - mean)) = -12; times 1/3: -4.
  // Channel 1: g (1, 5, 0, 0), x - mean (2, 2, -2, -2). sum(g) = 6; sum(g (x - mean)) = 12; times 1/sqrt(8).
  EXPECT_NEAR(sums[0], 4, 1e-15);
  EXPECT_NEAR(sums[1], 6, 1e-15);
  EXPECT_NEAR(sums[2], -4, 1e-14);
  EXPECT_NEAR(sums[3], 12 / std::sqrt(8.0), 1e-14);
  EXPECT_EQ(dweight, (std::vector<double>{sums[2], sums[3]}));
  EXPECT_EQ(dbias, (std::vector<double>{sums[0], sums[1]}));

  std::vector<double> dx(8, NAN);
  std::vector<double> dresidual(8, NAN);
  ops::batch_norm_backward_apply(context, view(dy, shape), {}, view(mask, {4}), vx, view(coefficients, {4, 2}),
                                 view(sums, {2, 2}), view(stats, {5}), {}, view(dx, shape), view(dresidual, shape));
  // Channel 0: dx = (2/3) (g - 1 + xhat) with xhat = (-1, -1/3, 1/3, 1), so dx = (2/3) (1, -1/3, 1/3, -1).
  // Channel 1: dx = s (g - 1.5 - 3 (x - mean) / 8), so dx = s (1 - 2.25, 5 - 2.25, -0.75, -0.75).
  const std::vector<double> gradient{2.0 / 3, -1.25 * s, -2.0 / 9, 2.75 * s, 2.0 / 9, -0.75 * s, -2.0 / 3, -0.75 * s};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(dx[i], gradient[i], 1e-14) << i;
  }
  EXPECT_EQ(dresidual, (std::vector<double>{3, 1, 1, 5, 1, 0, -1, 0}));
}

TEST(BatchNorm, CountsOfZeroAndOne) {
  CpuContext context;
  for (const double count : {0.0, 1.0}) {
    std::vector<float> stats{3, 0, static_cast<float>(count)};
    std::vector<float> weight{1};
    std::vector<float> bias{0};
    std::vector<float> running_mean{1};
    std::vector<float> running_var{2};
    std::vector<float> coefficients(4, NAN);
    ops::batch_norm_finalize(context, view(stats, {3}), view(weight, {1}), view(bias, {1}), 0.25, 0.5,
                             view(running_mean, {1}), view(running_var, {1}), view(coefficients, {4, 1}));
    EXPECT_EQ(coefficients, (std::vector<float>{2, -6, 3, 2})) << count;
    EXPECT_EQ(running_mean[0], count == 0 ? 1 : 2);
    EXPECT_EQ(running_var[0], count == 0 ? 2 : 1);
  }
}

// If a batch's statistics of a channel are NaN or infinite, the running statistics of the channel must not change. The
// coefficients must still show the NaN.
TEST(BatchNorm, RunningStatisticsStayFinite) {
  CpuContext context;
  const auto bad = [](auto type) {
    using T = decltype(type);
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    constexpr T kInf = std::numeric_limits<T>::infinity();
    std::vector<T> stats{kNan, 3, 3, kInf, 3, kNan, kInf, 0, 8, kNan, 5};  // 5 means, 5 M2, count
    std::vector<T> weight(5, 1), bias(5, 0), mean{1, 2, 3, 4, 1}, var{5, 6, 7, 8, 2}, coefficients(20, 0);
    return std::tuple(stats, weight, bias, mean, var, coefficients);
  };
  const auto check = [&](auto type) {
    using T = decltype(type);
    auto [stats, weight, bias, mean, var, coefficients] = bad(type);
    ops::batch_norm_finalize(context, view(stats, {11}), view(weight, {5}), view(bias, {5}), 0.25, 0.5, view(mean, {5}),
                             view(var, {5}), view(coefficients, {4, 5}));
    EXPECT_EQ(mean, (std::vector<T>{1, 2, 3, 4, 1}));
    EXPECT_EQ(var, (std::vector<T>{5, 6, 3.5, 8, 2})) << "channel 2 is finite";
    EXPECT_TRUE(std::isnan(coefficients[10])) << "the mean of channel 0";
    stats = {3, 3, 3, 3, 3, 8, 8, 8, 8, 8, 5};
    ops::batch_norm_finalize(context, view(stats, {11}), view(weight, {5}), view(bias, {5}), 0.25, 0.5, view(mean, {5}),
                             view(var, {5}), view(coefficients, {4, 5}));
    EXPECT_EQ(mean, (std::vector<T>{2, 2.5, 3, 3.5, 2}));
    EXPECT_EQ(var, (std::vector<T>{3.5, 4, 2.75, 5, 2}));
  };
  check(float{});
  check(double{});
}

TEST(BatchNorm, InferenceUsesTheRunningStatistics) {
  CpuContext context;
  std::vector<float> mean{1, -2};
  std::vector<float> var{3, 0};
  std::vector<float> weight{4, 1};
  std::vector<float> bias{10, 20};
  std::vector<float> coefficients(8, NAN);
  ops::batch_norm_finalize_inference(context, view(mean, {2}), view(var, {2}), view(weight, {2}), view(bias, {2}), 1,
                                     view(coefficients, {4, 2}));
  EXPECT_EQ(coefficients, (std::vector<float>{2, 1, 8, 22, 1, -2, 0.5F, 1}));
}

// ---- against the plain loops ---------------------------------------------------------------------------------------

/// Compares the op with its plain loops on the same inputs.
void expect_as_in_plain_loops(const OpCase& item) {
  static CpuContext context({.threads = 2});
  ASSERT_TRUE(item.plain) << item.name;
  compare(plain_twin(item), context, item, context, item.tolerance);
}

TEST(BatchNorm, StatsMatchTwoPassesInExtendedPrecision) {
  for (const BatchNormParams& p : batch_norm_params()) {
    expect_as_in_plain_loops(batch_norm_stats_case(p));
  }
}

TEST(BatchNorm, ApplyMatchesThePlainLoop) {
  for (const BatchNormParams& p : batch_norm_params()) {
    expect_as_in_plain_loops(batch_norm_apply_case(p));
  }
}

TEST(BatchNorm, BackwardReduceMatchesThePlainLoop) {
  for (const BatchNormParams& p : batch_norm_params()) {
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate, GradMode::ignore}) {
      if (mode == GradMode::overwrite || p.shape.numel() <= 10000) {
        expect_as_in_plain_loops(batch_norm_backward_reduce_case(p, mode));
      }
    }
  }
}

TEST(BatchNorm, BackwardApplyMatchesThePlainLoopInPlaceToo) {
  for (const BatchNormParams& p : batch_norm_params()) {
    for (const GradientPlace place : {GradientPlace::apart, GradientPlace::dx_in_dy, GradientPlace::dresidual_in_dy}) {
      if (p.residual || place != GradientPlace::dresidual_in_dy) {
        expect_as_in_plain_loops(batch_norm_backward_apply_case(p, place));
      }
    }
  }
}

TEST(BatchNorm, BackwardOfAPairMatchesThePlainLoop) {
  int turn = 0;
  for (const BatchNormParams& p : batch_norm_params()) {
    for (const OpCase& item : batch_norm_backward_pair_cases(p, turn++)) {
      expect_as_in_plain_loops(item);
    }
  }
}

TEST(BatchNorm, FinalizeMatchesTheFormulas) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t rows : {0, 1, 2, 1000}) {
      for (const bool running : {true, false}) {
        expect_as_in_plain_loops(batch_norm_finalize_case(17, dtype, rows, running));
      }
    }
    expect_as_in_plain_loops(batch_norm_finalize_inference_case(17, dtype));
  }
}

TEST(BatchNorm, MergedStatsMatchTwoPassesOverTheParts) {
  CpuContext context;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::vector<std::int64_t>& rows : batch_norm_parts()) {
      expect_as_in_plain_loops(batch_norm_merge_stats_case(17, dtype, rows));
    }
    const CheckedRun alone(batch_norm_merge_stats_case(5, dtype, {7}), context);
    expect_same_bits(alone.output(0).view().reshape({1, 11}), alone.inputs()[0], "of one part");
  }
}

/// Every backend is compared with the plain loops. So the plain loops themselves must give the hand-computed numbers,
/// on the data of ForwardAndBackwardByHand.
TEST(BatchNorm, ThePlainLoopsByHand) {
  std::vector<double> x{1, 2, 3, 2, 5, -2, 7, -2, 99, 99};  // the last row is padding
  std::vector<double> stats(5, NAN), weight{3, 1}, bias{10, -1}, means{8, 1}, variances{1, 2}, k(8, NAN);
  std::vector<std::int64_t> valid{4};
  const TensorView rows = view(x, {5, 2});
  plain::batch_norm_stats(rows, view(valid, {}), view(stats, {5}));
  EXPECT_EQ(stats, (std::vector<double>{4, 0, 20, 16, 4}));
  plain::batch_norm_finalize(view(stats, {5}), view(weight, {2}), view(bias, {2}), 4, 0.25, view(means, {2}),
                             view(variances, {2}), view(k, {4, 2}));
  const double s = 1 / std::sqrt(8.0);
  EXPECT_EQ(k, (std::vector<double>{1, s, 6, -1, 4, 0, 1.0 / 3, s}));
  EXPECT_EQ(means, (std::vector<double>{7, 0.75}));
  EXPECT_NEAR(variances[0], 0.75 + 0.25 * 20 / 3, 1e-15);
  EXPECT_NEAR(variances[1], 1.5 + 0.25 * 16 / 3, 1e-15);
  std::vector<double> y(10, NAN);
  std::vector<std::uint8_t> mask(4, 0xff);
  plain::batch_norm_apply(rows, view(k, {4, 2}), {}, true, view(y, {5, 2}), view(mask, {4}));
  EXPECT_EQ(std::vector<double>(y.begin(), y.begin() + 8),
            (std::vector<double>{7, 0, 9, 0, 11, 0, 13, 0}));  // 2 s - 1 is below 0
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{0b01010101, 0b11, 0, 0}));
  std::vector<double> dy{3, 1, 1, 5, 1, 100, -1, 100, 50, 50}, sums(4, NAN), dweight{1000, 1000}, dbias{1, 1};
  plain::batch_norm_backward_reduce(view(dy, {5, 2}), {}, view(mask, {4}), rows, view(k, {4, 2}), view(valid, {}),
                                    GradMode::accumulate, view(sums, {2, 2}), view(dweight, {2}), view(dbias, {2}));
  // Channel 0: g (3, 1, 1, -1), xhat (-1, -1/3, 1/3, 1), so the sums are 4 and -4. Channel 1: the mask is 0 in every
  // row.
  EXPECT_EQ(sums[0], 4);
  EXPECT_NEAR(sums[2], -4, 1e-15);
  EXPECT_EQ(sums[1] + sums[3], 0);
  EXPECT_NEAR(dweight[0], 996, 1e-12);
  EXPECT_EQ(dbias, (std::vector<double>{5, 1}));
  std::vector<double> dx(10, NAN), dresidual(10, NAN);
  plain::batch_norm_backward_apply(view(dy, {5, 2}), {}, view(mask, {4}), rows, view(k, {4, 2}), view(sums, {2, 2}),
                                   view(stats, {5}), view(valid, {}), view(dx, {5, 2}), view(dresidual, {5, 2}));
  // channel 0: g - 1 + xhat
  const std::vector<double> expected{1, 0, -1.0 / 3, 0, 1.0 / 3, 0, -1, 0, 0, 0};
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(dx[i], expected[i], 1e-15) << i;
  }
  EXPECT_EQ(dresidual, (std::vector<double>{3, 0, 1, 0, 1, 0, -1, 0, 0, 0}));
}

// ---- precision and determinism -------------------------------------------------------------------------------------

/// Returns the relative error of M2 (sum of squared deviations). Expects the mean to be right to a rounding plus 1e-5
/// of the standard deviation.
double error_of_m2(const BatchNormParams& p, const std::function<void(GuardedTensor&)>& fill) {
  CpuContext context({.threads = 2});
  GuardedTensor x(p.shape, p.dtype);
  GuardedTensor stats(Shape{2 * p.shape.back() + 1}, p.dtype);
  GuardedTensor expected(Shape{2 * p.shape.back() + 1}, DType::f64);
  fill(x);
  const Workspace workspace(context, x);
  ops::batch_norm_stats(context, x, {}, stats, workspace.tensor);
  plain::batch_norm_stats(x, {}, expected);
  const std::int64_t channels = p.shape.back();
  const double unit = p.dtype == DType::f32 ? 1e-7 : 1e-15;
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto u = static_cast<std::size_t>(c);
    const double mean = expected.values()[u];
    const double deviation =
        std::sqrt(expected.values()[u + static_cast<std::size_t>(channels)] / static_cast<double>(rows_of(p.shape)));
    EXPECT_LE(std::abs(stats.values()[u] - mean), unit * std::abs(mean) + 1e-5 * deviation) << p.shape << " " << c;
  }
  return relative_error(stats.view().slice(0, channels, 2 * channels),
                        expected.view().slice(0, channels, 2 * channels));
}

TEST(BatchNorm, StatsKeepASmallDeviationOfALargeMean) {
  for (const Shape& shape : {Shape{40, 9, 9, 16}, Shape{900, 64}, Shape{7, 31, 3}, Shape{30000, 1}, Shape{130, 257}}) {
    EXPECT_LE(error_of_m2({shape, DType::f32}, [](GuardedTensor& x) { x.normal(1, 0.1, 1000); }), 1e-6) << shape;
    // The mean of a chunk is about 1000 and rounds with an error of 1e-13, which is 1e-7 of the standard deviation.
    EXPECT_LE(error_of_m2({shape, DType::f64}, [](GuardedTensor& x) { x.normal(1, 1e-6, 1000); }), 1e-7) << shape;
  }
}

TEST(BatchNorm, StatsTakeOutliersInTheFirstRows) {
  for (const std::int64_t outliers : {1, 7, 16, 64}) {
    const auto fill = [&](GuardedTensor& x) {
      x.normal(1, 0.1, -2);
      const TensorView first = x.view().slice(0, 0, outliers);
      from_doubles(std::vector<double>(static_cast<std::size_t>(first.numel()), 1e6), first);
    };
    EXPECT_LE(error_of_m2({{5000, 16}, DType::f32}, fill), 1e-5) << outliers;
    EXPECT_LE(error_of_m2({{5000, 16}, DType::f64}, fill), 1e-13) << outliers;
  }
}

TEST(BatchNorm, StatsOfAConstantHaveNoDeviation) {
  CpuContext context;
  GuardedTensor x(Shape{777, 5}, DType::f32, constant(0.1));
  GuardedTensor stats(Shape{11}, DType::f32);
  const Workspace workspace(context, x);
  ops::batch_norm_stats(context, x, {}, stats, workspace.tensor);
  for (std::size_t c = 0; c < 5; ++c) {
    EXPECT_FLOAT_EQ(stats.span<float>()[c], 0.1F);
    EXPECT_LE(stats.span<float>()[5 + c], 1e-10F);
    EXPECT_GE(stats.span<float>()[5 + c], 0.0F);
  }
}

TEST(BatchNorm, NaNIsNotHidden) {
  CpuContext context;
  GuardedTensor x(Shape{40, 3}, DType::f32, normal(1));
  x.span<float>()[100] = NAN;  // an element of channel 1
  GuardedTensor stats(Shape{7}, DType::f32);
  const Workspace workspace(context, x);
  ops::batch_norm_stats(context, x, {}, stats, workspace.tensor);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(std::isnan(stats.span<float>()[c]), c == 1);
    EXPECT_EQ(std::isnan(stats.span<float>()[3 + c]), c == 1);
  }
  GuardedTensor y(Shape{40, 3}, DType::f32);
  GuardedTensor mask(mask_shape(y.view().shape), DType::u8);
  GuardedTensor coefficients(Shape{4, 3}, DType::f32, constant(1));
  ops::batch_norm_apply(context, x, coefficients, {}, true, y, mask);
  EXPECT_TRUE(std::isnan(y.span<float>()[100]));
  EXPECT_EQ(mask.span<std::uint8_t>()[12] >> 4 & 1, 0);
}

TEST(BatchNorm, TheSameBitsForAnyNumberOfThreads) {
  for (const Shape& shape : {Shape{67, 13, 11, 16}, Shape{67, 31, 33}, Shape{40000, 1}, Shape{200, 257}}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const BatchNormParams p{shape, dtype, shape[0] - 2, true, true, true};
      for (const OpCase& item :
           {batch_norm_stats_case(p), batch_norm_apply_case(p), batch_norm_backward_reduce_case(p, GradMode::overwrite),
            batch_norm_backward_apply_case(p)}) {
        expect_same_bits_for_threads(item, {1, 2, 3});
      }
    }
  }
}

TEST(BatchNorm, PaddingTakesNoPart) {
  CpuContext context({.threads = 2});
  const Shape shape{6, 5, 5, 17};
  const BatchNormParams p{shape, DType::f32, 4, true, true, true};
  for (const OpCase& item : {batch_norm_stats_case(p), batch_norm_backward_reduce_case(p, GradMode::overwrite),
                             batch_norm_backward_apply_case(p)}) {
    const CheckedRun clean(item, context);
    OpCase spoiled = item;
    for (TensorSpec& spec : spoiled.inputs) {
      if (spec.shape == shape) {
        spec.start = [start = spec.start](GuardedTensor& t) {
          start(t);
          const std::size_t begin = 4 * 25 * 17;
          std::fill(t.span<float>().begin() + begin, t.span<float>().end(), NAN);
        };
      }
    }
    const CheckedRun dirty(spoiled, context);
    for (std::size_t i = 0; i < item.outputs.size(); ++i) {
      expect_same_bits(dirty.output(i), clean.output(i), item.name);
      if (item.outputs[i].shape == shape) {
        const std::vector<double> padding = to_doubles(clean.output(i).view().slice(0, 4, 6));
        EXPECT_EQ(padding, std::vector<double>(padding.size(), 0.0)) << item.name;
      }
    }
  }
}

TEST(BatchNorm, ApplyInPlaceHasTheSameBits) {
  CpuContext context({.threads = 2});
  for (const Shape& shape : {Shape{9, 7, 7, 16}, Shape{31, 33}, Shape{5, 520}}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      GuardedTensor x(shape, dtype), residual(shape, dtype), y(shape, dtype);
      GuardedTensor k(Shape{4, shape.back()}, dtype);
      GuardedTensor mask(mask_shape(shape), DType::u8), mask2(mask_shape(shape), DType::u8);
      batch_norm_coefficients(shape.back())(k);
      for (const bool over_residual : {false, true}) {
        x.normal(1);
        residual.normal(2);
        ops::batch_norm_apply(context, x, k, residual, true, y, mask);
        const GuardedTensor& target = over_residual ? residual : x;
        ops::batch_norm_apply(context, x, k, residual, true, target, mask2);
        expect_same_bits(target, y);
        expect_same_bits(mask2, mask);
      }
    }
  }
}

// Vector instructions write and read the mask of an f32 tensor. Plain code writes and reads the mask of an f64 tensor.
// The two masks must have the same bits.
TEST(BatchNorm, MasksOfBothTypesAgree) {
  CpuContext context({.threads = 2});
  for (const std::int64_t rows : {1, 2, 3, 5, 8, 31, 33, 100, 999}) {
    for (const std::int64_t channels : {1, 7, 16, 33, 64}) {
      const Shape shape{rows, channels};
      std::vector<GuardedTensor> masks;
      std::vector<GuardedTensor> gradients;
      for (const DType dtype : {DType::f32, DType::f64}) {
        GuardedTensor x(shape, dtype, integers(7, -2, 2)), y(shape, dtype), k(Shape{4, channels}, dtype, constant(1));
        k.assign([&] {
          std::vector<double> numbers(static_cast<std::size_t>(4 * channels), 0.0);
          std::fill_n(numbers.begin(), channels, 1.0);
          return numbers;
        }());
        masks.emplace_back(mask_shape(shape), DType::u8);
        ops::batch_norm_apply(context, x, k, {}, true, y, masks.back());
        // If all sums are zero, dx is the masked gradient times the scale, which is 1.
        GuardedTensor sums(Shape{2, channels}, dtype, constant(0)), stats(Shape{2 * channels + 1}, dtype, constant(1)),
            dy(shape, dtype, integers(8, 1, 9));
        gradients.emplace_back(shape, dtype);
        ops::batch_norm_backward_apply(context, dy, {}, masks.back(), x, k, sums, stats, {}, gradients.back(), {});
        const std::vector<double> given = dy.values();
        const std::vector<double> in = x.values();
        const std::vector<double> out = gradients.back().values();
        for (std::size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], in[i] > 0 ? given[i] : 0.0) << shape << " " << dtype << " " << i;
        }
      }
      expect_same_bits(masks[0], masks[1]);
    }
  }
}

// ---- gradients of the layer against finite differences -------------------------------------------------------------

struct Layer {
  explicit Layer(const Shape& extents, std::int64_t count)
      : shape(extents), valid_samples(count), context({.threads = 2}) {
    x.normal(1, 1.5, 0.3);
    weight.normal(2);
    bias.normal(3);
    residual.normal(4);
    dy.normal(5);
    dy2.normal(6);
    valid.constant(static_cast<double>(count));
    weights.assign(dy.values());
    for (std::size_t i = 0; i < weights.span<double>().size(); ++i) {
      weights.span<double>()[i] += dy2.span<double>()[i];
    }
    const TensorView padding = weights.view().slice(0, count, shape[0]);
    from_doubles(std::vector<double>(static_cast<std::size_t>(padding.numel()), 0.0), padding);
  }

  double forward() {
    ops::batch_norm_stats(context, x, valid, stats, workspace.tensor);
    ops::batch_norm_finalize(context, stats, weight, bias, 1e-3, 0.1, {}, {}, k);
    ops::batch_norm_apply(context, x, k, residual, true, y, mask);
    return weighted_sum(y, weights);
  }
  void backward() {
    ops::batch_norm_backward_reduce(context, dy, dy2, mask, x, k, valid, GradMode::overwrite, sums, dweight, dbias, {},
                                    workspace.tensor);
    ops::batch_norm_backward_apply(context, dy, dy2, mask, x, k, sums, stats, valid, dx, dresidual);
  }
  /// Computes the same as backward(): the reduce op also writes the masked gradient, and the apply op reads it.
  void backward_from_masked() {
    ops::batch_norm_backward_reduce(context, dy, dy2, mask, x, k, valid, GradMode::overwrite, sums, dweight, dbias,
                                    dresidual, workspace.tensor);
    ops::batch_norm_backward_apply(context, dresidual, {}, {}, x, k, sums, stats, valid, dx, {});
  }
  [[nodiscard]] std::vector<GradientPair> pairs() const {
    return {{"x", x, dx}, {"weight", weight, dweight}, {"bias", bias, dbias}, {"residual", residual, dresidual}};
  }
  double error() {
    return gradient_error([&] { return forward(); }, pairs());
  }

  Shape shape;
  std::int64_t valid_samples;
  CpuContext context;
  Shape channels{shape.back()};
  GuardedTensor x{shape, DType::f64}, residual{shape, DType::f64}, y{shape, DType::f64}, dy{shape, DType::f64},
      dy2{shape, DType::f64}, weights{shape, DType::f64}, dx{shape, DType::f64}, dresidual{shape, DType::f64};
  GuardedTensor weight{channels, DType::f64}, bias{channels, DType::f64}, dweight{channels, DType::f64},
      dbias{channels, DType::f64};
  GuardedTensor stats{Shape{2 * channels[0] + 1}, DType::f64}, k{Shape{4, channels[0]}, DType::f64},
      sums{Shape{2, channels[0]}, DType::f64}, valid{Shape{}, DType::i64}, mask{mask_shape(shape), DType::u8};
  Workspace workspace{context, x};
};

TEST(BatchNorm, GradientsOfTheWholeLayerAreFiniteDifferences) {
  for (const Shape& shape : {Shape{5, 3, 4, 3}, Shape{6, 17}, Shape{7, 2, 2, 32}, Shape{9, 33}}) {
    for (const std::int64_t valid : {shape[0], shape[0] - 2}) {
      Layer layer(shape, valid);
      const auto loss = [&] { return layer.forward(); };
      loss();
      layer.backward_from_masked();
      expect_gradients(loss, layer.pairs(), 1e-6, concat(shape, " valid ", valid, ", from the masked gradient"));
      layer.backward();
      expect_gradients(loss, layer.pairs(), 1e-6, concat(shape, " valid ", valid));
    }
  }
}

// ---- a batch divided into parts, as among ranks --------------------------------------------------------------------

/// A batch whose samples are divided into parts, each padded by two samples of NaN. Each part computes what a rank
/// would compute with synchronised statistics. A shared tensor with one row for each part replaces the communication.
struct Parts {
  struct Part {
    Part(const Layer& whole, std::int64_t begin, std::int64_t samples)
        : shape(padded(whole.shape, samples)), valid_samples(samples) {
      const auto take = [&](const GuardedTensor& to, const TensorView& from) {
        std::vector<double> values = to_doubles(from.slice(0, begin, begin + samples));
        values.resize(static_cast<std::size_t>(shape.numel()), NAN);
        from_doubles(values, to);
      };
      take(x, whole.x);
      take(residual, whole.residual);
      take(dy, whole.dy);
      take(dy2, whole.dy2);
      valid.constant(static_cast<double>(samples));
    }
    static Shape padded(Shape extents, std::int64_t samples) {
      extents[0] = samples + 2;
      return extents;
    }
    Shape shape;
    std::int64_t valid_samples;
    GuardedTensor x{shape, DType::f64}, residual{shape, DType::f64}, y{shape, DType::f64}, dy{shape, DType::f64},
        dy2{shape, DType::f64}, dx{shape, DType::f64}, dresidual{shape, DType::f64};
    GuardedTensor dweight{Shape{shape.back()}, DType::f64}, dbias{Shape{shape.back()}, DType::f64};
    GuardedTensor k{Shape{4, shape.back()}, DType::f64}, mean{Shape{shape.back()}, DType::f64},
        var{Shape{shape.back()}, DType::f64};
    GuardedTensor valid{Shape{}, DType::i64}, mask{mask_shape(shape), DType::u8};
  };

  Parts(Layer& of_whole, const std::vector<std::int64_t>& samples) : whole(of_whole) {
    std::int64_t begin = 0;
    for (const std::int64_t count : samples) {
      parts.push_back(std::make_unique<Part>(whole, begin, count));
      begin += count;
    }
    EXPECT_EQ(begin, whole.shape[0]);
  }

  /// Runs forward and backward of all parts. merged: uses the statistics of all parts. Otherwise uses the statistics of
  /// the first part, as a negative control.
  void run(bool merged) {
    const auto count = static_cast<std::int64_t>(parts.size());
    const std::int64_t channels = whole.channels[0];
    const GuardedTensor all(Shape{count, 2 * channels + 1}, DType::f64), stats(Shape{2 * channels + 1}, DType::f64);
    const GuardedTensor all_sums(Shape{count, 2 * channels}, DType::f64), sums(Shape{2, channels}, DType::f64);
    const auto row = [](const TensorView& of, std::int64_t p) { return of.slice(0, p, p + 1).reshape({of.shape[1]}); };
    for (std::int64_t p = 0; p < count; ++p) {
      const Part& part = *parts[static_cast<std::size_t>(p)];
      const Workspace workspace(whole.context, part.x);
      ops::batch_norm_stats(whole.context, part.x, part.valid, row(all, p), workspace.tensor);
    }
    ops::batch_norm_merge_stats(whole.context, merged ? all.view() : all.view().slice(0, 0, 1), stats);
    for (std::int64_t p = 0; p < count; ++p) {
      Part& part = *parts[static_cast<std::size_t>(p)];
      part.mean.constant(8);
      part.var.constant(2);
      ops::batch_norm_finalize(whole.context, stats, whole.weight, whole.bias, 1e-3, 0.1, part.mean, part.var, part.k);
      ops::batch_norm_apply(whole.context, part.x, part.k, part.residual, true, part.y, part.mask);
      const Workspace workspace(whole.context, part.x);
      ops::batch_norm_backward_reduce(whole.context, part.dy, part.dy2, part.mask, part.x, part.k, part.valid,
                                      GradMode::overwrite, row(all_sums, p).reshape({2, channels}), part.dweight,
                                      part.dbias, {}, workspace.tensor);
    }
    ops::reduce_rows(whole.context, all_sums, GradMode::overwrite, sums.view().reshape({2 * channels}), {});
    for (const std::unique_ptr<Part>& part : parts) {
      ops::batch_norm_backward_apply(whole.context, part->dy, part->dy2, part->mask, part->x, part->k, sums, stats,
                                     part->valid, part->dx, part->dresidual);
    }
  }

  /// Returns the valid samples of all parts, concatenated.
  [[nodiscard]] GuardedTensor joined(GuardedTensor Part::*tensor) const {
    std::vector<double> values;
    for (const std::unique_ptr<Part>& part : parts) {
      const std::vector<double> own = to_doubles(((*part).*tensor).view().slice(0, 0, part->valid_samples));
      values.insert(values.end(), own.begin(), own.end());
    }
    GuardedTensor result(whole.shape, DType::f64, values);
    return result;
  }

  [[nodiscard]] GuardedTensor sum(GuardedTensor Part::*tensor) const {
    std::vector<double> values(static_cast<std::size_t>(whole.channels[0]), 0.0);
    for (const std::unique_ptr<Part>& part : parts) {
      const std::vector<double> own = ((*part).*tensor).values();
      std::transform(values.begin(), values.end(), own.begin(), values.begin(), std::plus<>());
    }
    GuardedTensor result(whole.channels, DType::f64, values);
    return result;
  }

  Layer& whole;
  std::vector<std::unique_ptr<Part>> parts;
};

/// Returns the largest relative error of the parts' outputs, gradients and running statistics, compared with the plain
/// loops over the undivided batch.
double error_of_parts(const Shape& shape, const std::vector<std::int64_t>& samples, bool merged = true) {
  Layer whole(shape, shape[0]);
  Parts parts(whole, samples);
  parts.run(merged);
  const GuardedTensor mean(whole.channels, DType::f64, constant(8));
  const GuardedTensor var(whole.channels, DType::f64, constant(2));
  plain::batch_norm_stats(whole.x, {}, whole.stats);
  plain::batch_norm_finalize(whole.stats, whole.weight, whole.bias, 1e-3, 0.1, mean, var, whole.k);
  plain::batch_norm_apply(whole.x, whole.k, whole.residual, true, whole.y, whole.mask);
  plain::batch_norm_backward_reduce(whole.dy, whole.dy2, whole.mask, whole.x, whole.k, {}, GradMode::overwrite,
                                    whole.sums, whole.dweight, whole.dbias);
  plain::batch_norm_backward_apply(whole.dy, whole.dy2, whole.mask, whole.x, whole.k, whole.sums, whole.stats, {},
                                   whole.dx, whole.dresidual);
  using Part = Parts::Part;
  double worst = 0;
  const auto compare = [&](const TensorView& got, const TensorView& expected) {
    const double error = relative_error(got, expected);
    worst = error <= worst ? worst : error;  // a NaN error stays
  };
  compare(parts.joined(&Part::y), whole.y);
  compare(parts.joined(&Part::dx), whole.dx);
  compare(parts.joined(&Part::dresidual), whole.dresidual);
  compare(parts.sum(&Part::dweight), whole.dweight);
  compare(parts.sum(&Part::dbias), whole.dbias);
  for (const std::unique_ptr<Part>& part : parts.parts) {
    compare(part->mean, mean);
    compare(part->var, var);
  }
  return worst;
}

TEST(BatchNorm, PartsOfABatchAreTheWholeBatch) {
  for (const Shape& shape : {Shape{11, 3, 5, 3}, Shape{11, 17}, Shape{11, 2, 2, 32}, Shape{11, 33}, Shape{11, 1}}) {
    for (const std::vector<std::int64_t>& samples : std::vector<std::vector<std::int64_t>>{
             {11}, {6, 5}, {4, 4, 3}, {3, 3, 3, 2}, {0, 11}, {10, 1, 0}, {0, 5, 0, 6}}) {
      const double error = error_of_parts(shape, samples);
      EXPECT_TRUE(error <= 1e-12) << shape << " in " << samples.size() << " parts: " << error;
    }
    const double unmerged = error_of_parts(shape, {6, 5}, false);
    EXPECT_GT(unmerged, 1e-2) << "statistics of one part must show";
  }
}

TEST(BatchNorm, GradientsOfPartsAreFiniteDifferences) {
  const Shape shape{7, 2, 3, 5};
  Layer whole(shape, shape[0]);
  whole.forward();
  Parts parts(whole, {4, 0, 3});
  parts.run(true);
  whole.dx.assign(parts.joined(&Parts::Part::dx).values());
  whole.dresidual.assign(parts.joined(&Parts::Part::dresidual).values());
  whole.dweight.assign(parts.sum(&Parts::Part::dweight).values());
  whole.dbias.assign(parts.sum(&Parts::Part::dbias).values());
  EXPECT_LE(whole.error(), 1e-6);
  parts.run(false);
  whole.dx.assign(parts.joined(&Parts::Part::dx).values());
  EXPECT_GT(whole.error(), 1e-3) << "statistics of one part must show";
}

// ---- gradients of a pair of norms against finite differences -------------------------------------------------------

/// The end of a residual block: y = relu(norm of x + norm of `residual`). `residual` is the input of the shortcut's
/// norm.
struct PairLayer : Layer {
  PairLayer(const Shape& extents, std::int64_t count) : Layer(extents, count) {
    weight2.normal(8);
    bias2.normal(9);
  }
  double forward() {
    ops::batch_norm_stats(context, x, valid, stats, workspace.tensor);
    ops::batch_norm_finalize(context, stats, weight, bias, 1e-3, 0.1, {}, {}, k);
    ops::batch_norm_stats(context, residual, valid, stats2, workspace.tensor);
    ops::batch_norm_finalize(context, stats2, weight2, bias2, 1e-3, 0.1, {}, {}, k2);
    ops::batch_norm_apply_pair(context, x, k, residual, k2, true, y, mask);
    return weighted_sum(y, weights);
  }
  void backward() {
    const ops::NormBackward first{x, k, sums, dweight, dbias, GradMode::overwrite, dx};
    const ops::NormBackward second{residual, k2, sums2, dweight2, dbias2, GradMode::overwrite, dresidual};
    ops::batch_norm_backward_reduce_pair(context, dy, dy2, mask, first, second, valid, g, workspace.tensor);
    ops::batch_norm_backward_apply_pair(context, g, first, second, stats, valid);
  }
  [[nodiscard]] std::vector<GradientPair> pairs() const {
    return {{"x", x, dx},
            {"weight", weight, dweight},
            {"bias", bias, dbias},
            {"x2", residual, dresidual},
            {"weight2", weight2, dweight2},
            {"bias2", bias2, dbias2}};
  }

  GuardedTensor g{shape, DType::f64};
  GuardedTensor weight2{channels, DType::f64}, bias2{channels, DType::f64}, dweight2{channels, DType::f64},
      dbias2{channels, DType::f64};
  GuardedTensor stats2{Shape{2 * channels[0] + 1}, DType::f64}, k2{Shape{4, channels[0]}, DType::f64},
      sums2{Shape{2, channels[0]}, DType::f64};
};

TEST(BatchNorm, GradientsOfAPairAreFiniteDifferences) {
  for (const Shape& shape : {Shape{5, 3, 4, 3}, Shape{7, 2, 2, 32}}) {
    for (const std::int64_t valid : {shape[0], shape[0] - 2}) {
      PairLayer layer(shape, valid);
      layer.forward();
      layer.backward();
      expect_gradients([&] { return layer.forward(); }, layer.pairs(), 1e-6, concat(shape, " valid ", valid));
    }
  }
}

// ---- errors --------------------------------------------------------------------------------------------------------

struct Arguments {
  GuardedTensor memory[19] = {{Shape{4, 3, 5}, DType::f32}, {Shape{4, 3, 5}, DType::f32}, {Shape{4, 3, 5}, DType::f32},
                              {Shape{4, 3, 5}, DType::f32}, {Shape{4, 3, 5}, DType::f32}, {Shape{8}, DType::u8},
                              {Shape{}, DType::i64},        {Shape{11}, DType::f32},      {Shape{4, 5}, DType::f32},
                              {Shape{2, 5}, DType::f32},    {Shape{5}, DType::f32},       {Shape{5}, DType::f32},
                              {Shape{5}, DType::f32},       {Shape{5}, DType::f32},       {Shape{1 << 18}, DType::u8},
                              {Shape{4, 3, 5}, DType::f32}, {Shape{3, 11}, DType::f32},   {Shape{4, 5}, DType::f32},
                              {Shape{2, 5}, DType::f32}};
  TensorView x = memory[0], dy = memory[1], dy2 = memory[2], dx = memory[3], dresidual = memory[4], mask = memory[5],
             valid = memory[6], stats = memory[7], k = memory[8], sums = memory[9], weight = memory[10],
             bias = memory[11], mean = memory[12], var = memory[13], workspace = memory[14], y = memory[15],
             parts = memory[16], k2 = memory[17], sums2 = memory[18];
  double epsilon = 1e-5;
  double momentum = 0.1;
  bool relu = true;
  GradMode mode = GradMode::overwrite;
  Arguments() {
    for (GuardedTensor& tensor : memory) {
      tensor.constant(1);
    }
  }
};

using Change = std::function<void(Arguments&)>;
using Call = std::function<void(Context&, const Arguments&)>;

template <class Error>
void expect_refused(const Call& call, std::string_view what, const Change& change) {
  CpuContext context;
  Arguments a;
  EXPECT_NO_THROW(call(context, a));
  change(a);
  EXPECT_THROW(call(context, a), Error) << what;
}

/// Expects an error for each view on another device, of another type, or of another shape.
void expect_views_checked(const Call& call, std::initializer_list<TensorView Arguments::*> views) {
  int index = 0;
  for (TensorView Arguments::*view : views) {
    const std::string what = concat("view ", index++);
    expect_refused<DeviceError>(call, what, [=](Arguments& a) { (a.*view).device = Device::cuda(0); });
    expect_refused<DTypeError>(call, what, [=](Arguments& a) { (a.*view).dtype = DType::f16; });
    expect_refused<ShapeError>(call, what, [=](Arguments& a) {
      (a.*view).shape = (a.*view).strides = Shape{1, 2, 3, 2, 3};
    });
  }
}

void expect_strides_checked(const Call& call, std::initializer_list<TensorView Arguments::*> views) {
  for (TensorView Arguments::*view : views) {
    expect_refused<ShapeError>(call, "gaps", [=](Arguments& a) { (a.*view).strides[0] += 1; });
  }
}

/// Expects an error if two views of a pair share memory.
using Pair = std::pair<TensorView Arguments::*, TensorView Arguments::*>;
void expect_apart(const Call& call, std::initializer_list<Pair> pairs) {
  for (const auto& [a, b] : pairs) {
    expect_refused<ShapeError>(call, "overlap", [a = a, b = b](Arguments& all) { (all.*a).data = (all.*b).data; });
  }
}

using A = Arguments;

TEST(BatchNormErrors, Stats) {
  const Call call = [](Context& c, const A& a) { ops::batch_norm_stats(c, a.x, a.valid, a.stats, a.workspace); };
  expect_views_checked(call, {&A::x, &A::valid, &A::stats, &A::workspace});
  expect_strides_checked(call, {&A::x, &A::stats});
  expect_apart(call, {{&A::stats, &A::x}, {&A::workspace, &A::x}, {&A::workspace, &A::stats}});
  expect_refused<ShapeError>(call, "workspace", [](A& a) { a.workspace.shape[0] = 8; });
  expect_refused<ShapeError>(call, "workspace not given", [](A& a) { a.workspace = {}; });
  expect_refused<ShapeError>(call, "workspace alignment", [](A& a) { a.workspace = a.workspace.slice(0, 4, 1 << 17); });
  expect_refused<ShapeError>(call, "valid above N", [](A& a) { a.memory[6].constant(5); });
  expect_refused<ShapeError>(call, "valid below 0", [](A& a) { a.memory[6].constant(-1); });
  expect_refused<ShapeError>(call, "rank 1",
                             [](A& a) { a.x = TensorView(a.x.data, DType::f32, Device::cpu(), Shape{5}); });
  expect_refused<ShapeError>(call, "no channels", [](A& a) {
    a.x = TensorView(a.x.data, DType::f32, Device::cpu(), Shape{5, 0});
  });
}

TEST(BatchNormErrors, MergeStats) {
  const Call call = [](Context& c, const A& a) { ops::batch_norm_merge_stats(c, a.parts, a.stats); };
  expect_views_checked(call, {&A::parts, &A::stats});
  expect_strides_checked(call, {&A::parts, &A::stats});
  expect_apart(call, {{&A::stats, &A::parts}});
  expect_refused<ShapeError>(call, "stats not given", [](A& a) { a.stats = {}; });
  for (const Shape& bad : {Shape{0, 11}, Shape{3, 10}, Shape{33, 1}, Shape{33}}) {
    expect_refused<ShapeError>(call, "parts",
                               [=](A& a) { a.parts = TensorView(a.parts.data, DType::f32, Device::cpu(), bad); });
  }
}

TEST(BatchNormErrors, Finalize) {
  const Call call = [](Context& c, const A& a) {
    ops::batch_norm_finalize(c, a.stats, a.weight, a.bias, a.epsilon, a.momentum, a.mean, a.var, a.k);
  };
  expect_views_checked(call, {&A::stats, &A::weight, &A::bias, &A::mean, &A::var, &A::k});
  expect_apart(call, {{&A::k, &A::stats}, {&A::mean, &A::var}, {&A::mean, &A::weight}});
  expect_refused<ShapeError>(call, "one of the running pair", [](A& a) { a.mean = {}; });
  expect_refused<ShapeError>(call, "bias not given", [](A& a) { a.bias = {}; });
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    expect_refused<UsageError>(call, "epsilon", [=](A& a) { a.epsilon = bad; });
  }
  for (const double bad : {-0.1, 1.1, std::nan("")}) {
    expect_refused<UsageError>(call, "momentum", [=](A& a) { a.momentum = bad; });
  }
}

TEST(BatchNormErrors, Coefficients) {
  const Call call = [](Context& c, const A& a) {
    ops::batch_norm_coefficients(c, a.x, a.valid, a.weight, a.bias, a.epsilon, a.momentum, a.stats, a.mean, a.var, a.k,
                                 a.workspace);
  };
  expect_views_checked(call,
                       {&A::x, &A::valid, &A::weight, &A::bias, &A::stats, &A::mean, &A::var, &A::k, &A::workspace});
  expect_apart(call, {{&A::k, &A::x}, {&A::mean, &A::stats}, {&A::workspace, &A::x}});
  expect_refused<ShapeError>(call, "one of the running pair", [](A& a) { a.var = {}; });
  expect_refused<ShapeError>(call, "valid above N", [](A& a) { a.memory[6].constant(5); });
  expect_refused<UsageError>(call, "epsilon", [](A& a) { a.epsilon = std::nan(""); });
}

TEST(BatchNormErrors, FinalizeInference) {
  const Call call = [](Context& c, const A& a) {
    ops::batch_norm_finalize_inference(c, a.mean, a.var, a.weight, a.bias, a.epsilon, a.k);
  };
  expect_views_checked(call, {&A::mean, &A::var, &A::weight, &A::bias, &A::k});
  expect_apart(call, {{&A::k, &A::mean}});
  expect_refused<ShapeError>(call, "mean not given", [](A& a) { a.mean = {}; });
  expect_refused<UsageError>(call, "epsilon", [](A& a) { a.epsilon = 0; });
}

TEST(BatchNormErrors, Apply) {
  const Call call = [](Context& c, const A& a) { ops::batch_norm_apply(c, a.x, a.k, a.dy, a.relu, a.y, a.mask); };
  expect_views_checked(call, {&A::x, &A::k, &A::dy, &A::y, &A::mask});
  expect_strides_checked(call, {&A::x, &A::k, &A::dy, &A::y});
  expect_apart(call, {{&A::y, &A::k}, {&A::mask, &A::x}, {&A::mask, &A::y}});
  expect_refused<ShapeError>(call, "shifted", [](A& a) {
    a.y = TensorView(static_cast<float*>(a.x.data) + 1, DType::f32, Device::cpu(), a.x.shape);
  });
  expect_refused<UsageError>(call, "mask without relu", [](A& a) { a.relu = false; });
}

TEST(BatchNormErrors, ApplyPair) {
  const Call call = [](Context& c, const A& a) {
    ops::batch_norm_apply_pair(c, a.x, a.k, a.dy, a.k2, a.relu, a.y, a.mask);
  };
  expect_views_checked(call, {&A::x, &A::k, &A::dy, &A::k2, &A::y, &A::mask});
  expect_strides_checked(call, {&A::x, &A::k, &A::dy, &A::k2, &A::y});
  expect_apart(call, {{&A::y, &A::k2}, {&A::mask, &A::k2}});
  expect_refused<ShapeError>(call, "residual not given", [](A& a) { a.dy = {}; });
  expect_refused<ShapeError>(call, "its coefficients not given", [](A& a) { a.k2 = {}; });
  expect_refused<UsageError>(call, "mask without relu", [](A& a) { a.relu = false; });
}

TEST(BatchNormErrors, BackwardReduce) {
  const Call call = [](Context& c, const A& a) {
    ops::batch_norm_backward_reduce(c, a.dy, a.dy2, a.mask, a.x, a.k, a.valid, a.mode, a.sums, a.weight, a.bias,
                                    a.dresidual, a.workspace);
  };
  expect_views_checked(call, {&A::dy, &A::dy2, &A::mask, &A::x, &A::k, &A::valid, &A::sums, &A::weight, &A::bias,
                              &A::dresidual, &A::workspace});
  expect_strides_checked(call, {&A::dy, &A::dy2, &A::x, &A::k, &A::sums, &A::dresidual});
  expect_apart(call, {{&A::sums, &A::x},
                      {&A::dresidual, &A::x},
                      {&A::dresidual, &A::sums},
                      {&A::weight, &A::bias},
                      {&A::weight, &A::dy},
                      {&A::workspace, &A::dy2}});
  expect_refused<ShapeError>(call, "dweight not given", [](A& a) { a.weight = {}; });
  expect_refused<ShapeError>(call, "dy not given", [](A& a) { a.dy = {}; });
  expect_refused<ShapeError>(call, "valid above N", [](A& a) { a.memory[6].constant(5); });
  CpuContext context;
  Arguments a;
  a.mode = GradMode::ignore;
  a.weight = a.bias = {};
  EXPECT_NO_THROW(call(context, a));
  a.dresidual.data = a.dy2.data;
  EXPECT_NO_THROW(call(context, a));
}

TEST(BatchNormErrors, BackwardApply) {
  const Call call = [](Context& c, const A& a) {
    ops::batch_norm_backward_apply(c, a.dy, a.dy2, a.mask, a.x, a.k, a.sums, a.stats, a.valid, a.dx, a.dresidual);
  };
  expect_views_checked(
      call, {&A::dy, &A::dy2, &A::mask, &A::x, &A::k, &A::sums, &A::stats, &A::valid, &A::dx, &A::dresidual});
  expect_strides_checked(call, {&A::dy, &A::dy2, &A::x, &A::k, &A::sums, &A::dx, &A::dresidual});
  expect_apart(call, {{&A::dx, &A::x}, {&A::dresidual, &A::x}, {&A::dx, &A::dresidual}, {&A::dx, &A::stats}});
  expect_refused<ShapeError>(call, "valid above N", [](A& a) { a.memory[6].constant(5); });
  CpuContext context;
  Arguments a;
  a.dx.data = a.dy.data;
  a.dresidual.data = a.dy2.data;
  EXPECT_NO_THROW(call(context, a));
}

TEST(BatchNormErrors, BackwardReducePair) {
  const Call call = [](Context& c, const A& a) {
    const ops::NormBackward first{a.x, a.k, a.sums, a.weight, a.bias, a.mode};
    const ops::NormBackward second{a.y, a.k2, a.sums2, a.mean, a.var, a.mode};
    ops::batch_norm_backward_reduce_pair(c, a.dy, a.dy2, a.mask, first, second, a.valid, a.dresidual, a.workspace);
  };
  expect_views_checked(call, {&A::dy, &A::dy2, &A::mask, &A::x, &A::y, &A::k, &A::k2, &A::valid, &A::sums, &A::sums2,
                              &A::weight, &A::bias, &A::mean, &A::var, &A::dresidual, &A::workspace});
  expect_strides_checked(call, {&A::dy, &A::dy2, &A::x, &A::y, &A::k, &A::k2, &A::sums, &A::sums2, &A::dresidual});
  expect_apart(call, {{&A::sums, &A::sums2}, {&A::dresidual, &A::y}, {&A::weight, &A::mean}, {&A::workspace, &A::y}});
  expect_refused<ShapeError>(call, "mask not given", [](A& a) { a.mask = {}; });
  expect_refused<ShapeError>(call, "masked not given", [](A& a) { a.dresidual = {}; });
  CpuContext context;
  Arguments a;
  a.mode = GradMode::ignore;
  a.weight = a.bias = a.mean = a.var = {};
  a.dresidual.data = a.dy.data;
  EXPECT_NO_THROW(call(context, a));
}

TEST(BatchNormErrors, BackwardApplyPair) {
  const Call call = [](Context& c, const A& a) {
    ops::NormBackward first{a.x, a.k, a.sums};
    ops::NormBackward second{a.y, a.k2, a.sums2};
    first.dx = a.dx;
    second.dx = a.dresidual;
    ops::batch_norm_backward_apply_pair(c, a.dy, first, second, a.stats, a.valid);
  };
  expect_views_checked(
      call, {&A::dy, &A::x, &A::y, &A::k, &A::k2, &A::sums, &A::sums2, &A::stats, &A::valid, &A::dx, &A::dresidual});
  expect_strides_checked(call, {&A::dy, &A::x, &A::y, &A::k, &A::k2, &A::sums, &A::sums2, &A::dx, &A::dresidual});
  expect_apart(call, {{&A::dx, &A::y}, {&A::dresidual, &A::x}, {&A::dx, &A::dresidual}});
  CpuContext context;
  for (const auto dx : {&A::dx, &A::dresidual}) {
    Arguments a;
    (a.*dx).data = a.dy.data;
    EXPECT_NO_THROW(call(context, a));
  }
}

}  // namespace
}  // namespace lockstep::testing
