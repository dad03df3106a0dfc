// Tests the fused batch norm, ReLU and max pooling on a GPU: NaN, values of `valid` out of range, repeatability.
// cuda_cases_test.cpp runs the test cases that every op has.
#include <algorithm>
#include <cmath>

#include "tests/kernels/batch_norm_pool_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaBatchNormPool = CudaTest;

StemParams stem(DType dtype, std::int64_t valid) {
  return {{{3, 9, 8, 16}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype}, valid};
}

TEST_F(CudaBatchNormPool, NaNIsNotHidden) {
  OpCase item = batch_norm_pool_forward_case(stem(DType::bf16, -1));
  item.inputs[0].start = [](GuardedTensor& x) {
    x.constant(1);
    std::vector<double> values = x.values();
    values[(2 * 8 + 4) * 16 + 5] = std::nan("");  // row 2, column 4, channel 5 of image 0; only window (1, 2) covers it
    x.assign(values);
  };
  item.inputs[1].start = constant(1);
  const CheckedRun instance(item, cuda());
  const std::vector<double> y = instance.output(0).values();
  const std::vector<double> index = instance.output(1).values();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const bool with = i == (1 * 4 + 2) * 16 + 5;
    EXPECT_EQ(std::isnan(y[i]), with) << i;
    EXPECT_EQ(index[i] == ops::kNoWinner, with) << i << ": no gradient passes a NaN, and one passes all else";
  }
}

/// In bf16, 2 + 255 / 256 rounds to 3. So it ties with 2 + 256 / 256, and the first of equal elements must win.
TEST_F(CudaBatchNormPool, ComparesRoundedValues) {
  OpCase item = batch_norm_pool_forward_case({{{1, 3, 3, 8}, {{3, 3}, {2, 2}, {0, 0}, {0, 0}}, DType::bf16}, -1});
  item.inputs[0].start = [](GuardedTensor& x) {
    std::vector<double> values(x.values().size(), 255);
    std::fill(values.end() - 8, values.end(), 256);
    x.assign(values);
  };
  item.inputs[1].start = [](GuardedTensor& coefficients) {
    std::vector<double> values(coefficients.values().size(), 0);
    std::fill_n(values.begin(), 8, 1.0 / 256);
    std::fill_n(values.begin() + 8, 8, 2.0);
    coefficients.assign(values);
  };
  const CheckedRun instance(item, cuda());
  EXPECT_EQ(instance.output(0).values(), std::vector<double>(8, 3));
  EXPECT_EQ(instance.output(1).values(), std::vector<double>(8, 0));
}

TEST_F(CudaBatchNormPool, ValidOutsideTheBatchIsTheNearestInside) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  for (const std::int64_t told : {std::int64_t{-1}, std::int64_t{4}, kMost, -kMost}) {
    const StemParams meant = stem(DType::f32, told < 0 ? 0 : 3);
    for (const OpCase& item : {batch_norm_pool_backward_reduce_case(meant, ops::GradMode::overwrite),
                               batch_norm_pool_backward_apply_case(meant)}) {
      expect_taken_for(cuda(), item, item.inputs.size() - 1, told, told < 0 ? 0 : 3);
    }
  }
}

TEST_F(CudaBatchNormPool, SameBitsEveryTime) {
  for (const OpCase& item : batch_norm_pool_calls(stem(DType::bf16, 2), 0)) {
    expect_repeatable(item, cuda());
  }
}

}  // namespace
}  // namespace lockstep::testing
