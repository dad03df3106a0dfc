// Tests batch norm on a GPU: precision of the statistics, values of `valid` out of range, padding that must not be
// read, masks of rounded values, and more than 2^31 elements. cuda_cases_test.cpp runs the test cases that every op
// has.
#include <cmath>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/batch_norm_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

using CudaBatchNorm = CudaTest;

/// Computes statistics of x with batch_norm_stats(). The error of each mean must be at most 1e-7 of the mean plus
/// `tolerance` of the standard deviation. The relative error of each M2 (sum of squared deviations) must be at most
/// `tolerance`.
void expect_moments(Context& context, const BatchNormParams& p, const Generator& x, double tolerance) {
  OpCase item = batch_norm_stats_case(p);
  item.inputs[0].start = x;
  const CheckedRun instance(item, context);
  const std::int64_t channels = p.shape.back();
  GuardedTensor expected(Shape{2 * channels + 1}, DType::f64);
  plain::batch_norm_stats(instance.inputs()[0], {}, expected);
  const std::vector<double> stats = instance.output(0).values();
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto first = static_cast<std::size_t>(c);
    const auto second = static_cast<std::size_t>(channels + c);
    const double mean = stats[first];
    const double squares = stats[second];
    const double expected_squares = expected.span<double>()[second];
    const double deviation = std::sqrt(expected_squares / static_cast<double>(rows_of(p.shape)));
    const double wrong = std::abs(mean - expected.span<double>()[first]);
    EXPECT_TRUE(wrong <= 1e-7 * std::abs(mean) + tolerance * deviation)
        << item.name << " channel " << c << ": " << mean;
    EXPECT_TRUE(std::abs(squares - expected_squares) <= tolerance * expected_squares)
        << item.name << " channel " << c << ": " << squares << " is not " << expected_squares;
  }
}

TEST_F(CudaBatchNorm, StatsOfEveryChannel) {
  for (const Shape& shape : {Shape{900, 64}, Shape{7, 31, 3}, Shape{3000, 1}, Shape{130, 257}, Shape{33, 7, 17}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      expect_moments(cuda(), {shape, dtype}, normal(1, 2, 0.5), 1e-6);
    }
  }
}

TEST_F(CudaBatchNorm, StatsKeepASmallDeviationOfALargeMean) {
  for (const Shape& shape : {Shape{900, 64}, Shape{7, 31, 3}, Shape{3000, 1}, Shape{130, 257}}) {
    expect_moments(cuda(), {shape, DType::f32}, normal(1, 0.1, 1000), 2e-6);
  }
}

TEST_F(CudaBatchNorm, StatsTakeOutliersInTheFirstRows) {
  for (const std::int64_t outliers : {1, 7, 64}) {
    const auto fill = [=](GuardedTensor& x) {
      x.normal(1, 0.1, -2);
      const TensorView first = x.view().slice(0, 0, outliers);
      from_doubles(std::vector<double>(static_cast<std::size_t>(first.numel()), 1e6), first);
    };
    expect_moments(cuda(), {{3000, 16}, DType::f32}, fill, 1e-5);
  }
}

TEST_F(CudaBatchNorm, StatsOfAConstantHaveNoDeviation) {
  OpCase item = batch_norm_stats_case({{777, 5}, DType::f32});
  item.inputs[0].start = constant(0.1);
  const CheckedRun instance(item, cuda());
  const std::vector<double> stats = instance.output(0).values();
  for (std::size_t c = 0; c < 5; ++c) {
    EXPECT_EQ(stats[c], static_cast<double>(0.1F));
    EXPECT_EQ(stats[5 + c], 0);
  }
}

TEST_F(CudaBatchNorm, ValidOutsideTheBatchIsTheNearestInside) {
  const BatchNormParams p{{6, 11, 16}, DType::f32, 6, true};
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  for (const std::int64_t told : {std::int64_t{-1}, std::int64_t{7}, kMost, -kMost}) {
    const std::int64_t meant = told < 0 ? 0 : 6;
    expect_taken_for(cuda(), batch_norm_stats_case(p), 1, told, meant);
    expect_taken_for(cuda(), batch_norm_backward_reduce_case(p, GradMode::overwrite), 3, told, meant);
    expect_taken_for(cuda(), batch_norm_backward_apply_case(p), 4, told, meant);
    expect_taken_for(cuda(), batch_norm_backward_apply_pair_case(p), 1, told, meant);
  }
}

TEST_F(CudaBatchNorm, StatsOfPartsAreMerged) {
  for (const std::vector<std::int64_t>& rows : batch_norm_parts()) {
    const OpCase item = batch_norm_merge_stats_case(17, DType::f32, rows);
    compare(item, cuda(), plain_twin(item), cpu(), item.tolerance);
  }
}

/// Tests a pair of norms, each with its own coefficients and sums.
TEST_F(CudaBatchNorm, BackwardOfAPair) {
  for (BatchNormParams p : {BatchNormParams{{6, 11, 16}, DType::f32, 5, false, true, true},
                            BatchNormParams{{7, 31}, DType::f32, -1, false, true, false},
                            BatchNormParams{{700, 24}, DType::f32, 600, false, true, true}}) {
    for (const std::size_t which : {0, 1}) {
      for (const DeviceCase& item : device_cases([&](DType dtype) {
             p.dtype = dtype;
             return batch_norm_backward_pair_cases(p, 3)[which];
           })) {
        compare(item.device, cuda(), item.host, cpu(), item.tolerance);
      }
    }
  }
}

/// Generates normal numbers in the first `elements` elements and NaN in all later elements.
Generator with_padding(std::int64_t elements) {
  return [=](GuardedTensor& x) {
    x.normal(1);
    std::vector<double> values = x.values();
    for (std::size_t i = static_cast<std::size_t>(elements); i < values.size(); ++i) {
      values[i] = std::nan("");
    }
    x.assign(values);
  };
}

TEST_F(CudaBatchNorm, PaddingTakesNoPart) {
  for (const std::int64_t channels : {3, 16, 17}) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      const BatchNormParams p{{7, 5, channels}, dtype, 4, true, true, true};
      BatchNormParams host = p;
      host.dtype = DType::f32;
      const Generator start = with_padding(4 * 5 * channels);
      const double tolerance = dtype == DType::f32 ? 1e-5 : 1.0 / 1024;
      const auto check = [&](OpCase device, OpCase twin, std::initializer_list<std::size_t> inputs) {
        for (const std::size_t i : inputs) {
          device.inputs.at(i).start = twin.inputs.at(i).start = start;
        }
        compare(device, cuda(), twin, cpu(), tolerance);
      };
      check(batch_norm_stats_case(p), batch_norm_stats_case(host), {0});
      check(batch_norm_backward_reduce_case(p, GradMode::accumulate),
            batch_norm_backward_reduce_case(host, GradMode::accumulate), {0, 1, 5});
      check(batch_norm_backward_apply_case(p), batch_norm_backward_apply_case(host), {0, 6, 7});
      check(batch_norm_backward_reduce_pair_case(p, GradMode::ignore, GradMode::accumulate),
            batch_norm_backward_reduce_pair_case(host, GradMode::ignore, GradMode::accumulate), {0, 3, 4, 6});
      check(batch_norm_backward_apply_pair_case(p), batch_norm_backward_apply_pair_case(host), {2, 5, 8});
    }
  }
}

TEST_F(CudaBatchNorm, NaNIsNotHidden) {
  const BatchNormParams p{{40, 3}, DType::f32, -1, false, true};
  const Generator start = [](GuardedTensor& x) {
    x.normal(1);
    x.span<float>()[100] = std::nanf("");  // an element of channel 1
  };
  OpCase item = batch_norm_stats_case(p);
  item.inputs[0].start = start;
  const CheckedRun stats(item, cuda());
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(std::isnan(stats.output(0).values()[c]), c == 1);
    EXPECT_EQ(std::isnan(stats.output(0).values()[3 + c]), c == 1);
  }
  item = batch_norm_apply_case(p);
  item.inputs[0].start = start;
  const CheckedRun apply(item, cuda());
  EXPECT_TRUE(std::isnan(apply.output(0).values()[100]));
  EXPECT_EQ(static_cast<int>(apply.output(1).values()[12]) >> 4 & 1, 0);
}

TEST_F(CudaBatchNorm, RunningStatisticsStayFinite) {
  OpCase item = batch_norm_finalize_case(3, DType::f32, 5, true);
  const CheckedRun good(item, cuda());
  item.inputs[0].start = [start = item.inputs[0].start](GuardedTensor& stats) {
    start(stats);
    stats.span<float>()[1] = std::nanf("");  // mean of channel 1
    stats.span<float>()[3 + 2] = HUGE_VALF;  // M2 of channel 2
  };
  const CheckedRun bad(item, cuda());
  const auto stats = good.inputs()[0].values();
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < 2; ++i) {
      const double moved = good.output(i).values()[c];
      const double batch = i == 0 ? stats[c] : stats[3 + c] / 4;
      EXPECT_NEAR(bad.output(i).values()[c], c == 0 ? moved : (moved - 0.1 * batch) / 0.9, 1e-5) << c << ' ' << i;
    }
  }
  EXPECT_TRUE(std::isnan(bad.output(2).values()[2 * 3 + 1])) << "coefficients show what was there";
}

TEST_F(CudaBatchNorm, MaskIsOfTheRoundedValue) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    OpCase item = batch_norm_apply_case({{3, 17}, dtype, -1, false, true});
    item.inputs[0].start = constant(1);
    item.inputs[1].start = [](GuardedTensor& coefficients) {
      coefficients.constant(0);
      for (std::size_t c = 0; c < 17; ++c) {
        coefficients.span<float>()[c] = 1e-9F;  // 0 in f16
      }
    };
    const CheckedRun instance(item, cuda());
    const bool kept = dtype == DType::f32;
    EXPECT_EQ(instance.output(0).values()[50] > 0, kept);
    EXPECT_EQ(instance.output(1).values()[0], kept ? 255 : 0);
    EXPECT_EQ(instance.output(1).values()[6], kept ? 7 : 0);  // 51 elements
  }
}

TEST_F(CudaBatchNorm, SameBitsEveryTime) {
  const BatchNormParams p{{300, 64}, DType::bf16, 299, true, true, true};
  expect_repeatable(batch_norm_stats_case(p), cuda());
  expect_repeatable(batch_norm_backward_reduce_case(p, GradMode::overwrite), cuda());
  expect_repeatable(batch_norm_backward_reduce_pair_case(p, GradMode::overwrite, GradMode::overwrite), cuda());
}

TEST_F(CudaBatchNorm, TypesThatGPUsDoNotTake) {
  const auto view = [](DType dtype, const Shape& shape) { return TensorView(nullptr, dtype, Device::cuda(0), shape); };
  EXPECT_THROW((void)ops::batch_norm_workspace_bytes(cuda(), view(DType::f64, {4, 2})), DTypeError);
  const TensorView x = view(DType::bf16, {4, 2});
  const TensorView coefficients = view(DType::f32, {4, 2});
  EXPECT_THROW(ops::batch_norm_apply(cuda(), x, view(DType::bf16, {4, 2}), {}, false, x, {}), DTypeError);
  EXPECT_THROW(ops::batch_norm_apply(cuda(), x, coefficients, view(DType::f32, {4, 2}), false, x, {}), DTypeError);
  for (const DType dtype : {DType::bf16, DType::f64}) {
    const TensorView channel = view(dtype, {2});
    EXPECT_THROW(ops::batch_norm_finalize(cuda(), view(dtype, {5}), channel, channel, 1e-5, 0.1, {}, {}, coefficients),
                 DTypeError);
    EXPECT_THROW(ops::batch_norm_finalize_inference(cuda(), channel, channel, channel, channel, 1e-5, coefficients),
                 DTypeError);
  }
}

/// Tests a tensor with so many rows that each thread sums more than the smallest chunk of rows.
TEST_F(CudaBatchNorm, SumsOfLongChunks) {
  const BatchNormParams p{{2100001, 1}, DType::f32};
  expect_moments(cuda(), p, normal(1, 2, 0.5), 1e-6);
  const OpCase item = batch_norm_backward_reduce_case(p, GradMode::ignore);
  compare(item, cuda(), item, cpu(), 1e-5);
}

TEST_F(CudaBatchNorm, Beyond2To31Elements) {
  run_large([&] {
    constexpr std::int64_t kChannels = 64;
    const std::int64_t rows = kLarge / kChannels + 3;
    const Tensor x = Tensor::empty(cuda(), Shape{rows, kChannels}, DType::bf16);
    const Tensor mask = Tensor::empty(cuda(), mask_shape(x.view().shape), DType::u8);
    const auto bytes = static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(cuda(), x));
    const Tensor workspace = Tensor::empty(cuda(), Shape{bytes}, DType::u8);
    // x is 4 in the last row and 1 in all other rows.
    ops::fill(cuda(), 1, x);
    ops::fill(cuda(), 4, x.view().slice(0, rows - 1, rows));
    const Tensor stats = Tensor::empty(cuda(), Shape{2 * kChannels + 1}, DType::f32);
    ops::batch_norm_stats(cuda(), x, {}, stats, workspace);
    // y = x - 2 is -1 in all rows but the last, and ReLU makes it 0.
    const Tensor coefficients = Tensor::empty(cuda(), Shape{4, kChannels}, DType::f32);
    ops::fill(cuda(), 1, coefficients);
    ops::fill(cuda(), -2, coefficients.view().slice(0, 1, 2));
    ops::batch_norm_apply(cuda(), x, coefficients, {}, true, x, mask);
    const std::vector<double> moments = fetch(stats);
    const std::vector<double> end = fetch(x.view().slice(0, rows - 2, rows));
    const std::vector<double> bits = fetch(mask.view().slice(0, (rows - 2) * kChannels / 8, rows * kChannels / 8));
    const double share = 1 / static_cast<double>(rows);  // weight of the last row in the mean
    for (std::size_t c = 0; c < kChannels; ++c) {
      EXPECT_NEAR(moments[c], 1 + 3 * share, 1e-6);
      EXPECT_NEAR(moments[kChannels + c], 9 * (1 - share), 1e-4);
      EXPECT_EQ(end[c], 0);
      EXPECT_EQ(end[kChannels + c], 2);
      EXPECT_EQ(bits[c / 8], 0);
      EXPECT_EQ(bits[kChannels / 8 + c / 8], 255);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
