// Tests fused batch norm on a GPU: results with the bits of the two separate ops, tensors that do not fit into shared
// memory, padding that must not be read, and values of `valid` out of range. cuda_cases_test.cpp runs the test cases
// that every op has.
#include <algorithm>
#include <cmath>

#include "tests/kernels/batch_norm_fused_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;
using ops::NormPass;

using CudaBatchNormFused = CudaTest;

/// Returns the test case with the fused op replaced by the two separate ops.
OpCase forward_in_two_ops(const BatchNormParams& p) {
  OpCase item = batch_norm_fused_forward_case(p);
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::batch_norm_coefficients(context, in[0], p.valid >= 0 ? in[1] : TensorView(), in[2], in[3], 1e-1, 0.1, out[1],
                                 out[3], out[4], out[2], workspace);
    ops::batch_norm_apply(context, in[0], out[2], p.residual ? in[4] : TensorView(), p.relu, out[0],
                          p.relu ? out[5] : TensorView());
  };
  return item;
}

OpCase backward_in_two_ops(const BatchNormParams& p) {
  OpCase item = batch_norm_fused_backward_case(p, GradMode::accumulate);
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    const std::size_t dy = p.relu ? 5 : 4;
    const TensorView mask = p.relu ? in[4] : TensorView();
    const TensorView valid = p.valid >= 0 ? in[3] : TensorView();
    const TensorView masked = p.residual ? out.back() : TensorView();
    ops::batch_norm_backward_reduce(context, in[dy], p.second && p.residual ? in[dy + 1] : TensorView(), mask, in[0],
                                    in[1], valid, GradMode::accumulate, out[1], out[2], out[3], masked, workspace);
    ops::batch_norm_backward_apply(context, p.residual ? masked : in[dy], {}, p.residual ? TensorView() : mask, in[0],
                                   in[1], out[1], in[2], valid, out[0], {});
  };
  return item;
}

void expect_same_bits(Context& context, const OpCase& one, const OpCase& two) {
  expect_same_outputs(CheckedRun(one, context), CheckedRun(two, context), one.name);
}

TEST_F(CudaBatchNormFused, HasTheBitsOfTwoOps) {
  for (BatchNormParams p : batch_norm_fused_params()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      p.dtype = dtype;
      expect_same_bits(cuda(), batch_norm_fused_forward_case(p), forward_in_two_ops(p));
      expect_same_bits(cuda(), batch_norm_fused_backward_case(p, GradMode::accumulate), backward_in_two_ops(p));
    }
  }
}

/// Tests more work items than the grid has blocks on an H100. Each block keeps two or three items, which need more
/// shared memory than a kernel may use by default.
TEST_F(CudaBatchNormFused, SeveralItemsABlock) {
  const std::int64_t images = std::max(kLarge >> 22, std::int64_t{3});
  for (const std::int64_t n : {images, images * 300 / 512}) {
    const BatchNormParams p{{n, 32, 32, 16}, DType::bf16, n, true, true, true};
    expect_same_bits(cuda(), batch_norm_fused_forward_case(p), forward_in_two_ops(p));
    expect_same_bits(cuda(), batch_norm_fused_backward_case(p, GradMode::accumulate), backward_in_two_ops(p));
  }
}

/// Tests a tensor that does not fit into the shared memory of the emulated GPU, so the op does the pass in two
/// launches. On a real GPU the tensor fits.
TEST_F(CudaBatchNormFused, WithoutRoomItIsTwoLaunches) {
  const BatchNormParams p{{19, 500, 32}, DType::f32, 18, true, true, true};
  expect_same_bits(cuda(), batch_norm_fused_forward_case(p), forward_in_two_ops(p));
  expect_same_bits(cuda(), batch_norm_fused_backward_case(p, GradMode::accumulate), backward_in_two_ops(p));
  const auto fits = [&](const Shape& shape, NormPass pass) {
    return ops::batch_norm_fits(cuda(), TensorView(nullptr, DType::bf16, cuda().device(), shape), pass);
  };
  for (const NormPass pass : {NormPass::forward, NormPass::backward}) {
    EXPECT_TRUE(fits({8, 20, 32}, pass));
    EXPECT_FALSE(fits({8, 20, 17}, pass)) << "columns of 16 bytes";
    EXPECT_FALSE(fits({4096, 64, 64, 64}, pass)) << "2 GB";
  }
}

TEST_F(CudaBatchNormFused, ValidOutsideTheBatchIsTheNearestInside) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  for (const std::int64_t told : {std::int64_t{-1}, std::int64_t{7}, kMost, -kMost}) {
    const BatchNormParams meant{{6, 60, 16}, DType::f32, told < 0 ? 0 : 6, true, true, true};
    for (const std::size_t which : {0, 1}) {
      expect_taken_for(cuda(), batch_norm_fused_calls(meant, 0)[which], which == 0 ? 1 : 3, told, told < 0 ? 0 : 6);
    }
  }
}

/// Fills the padding of the inputs with NaN. The padding must not change any sum. In the padding, dx must be 0 and y
/// must be NaN.
TEST_F(CudaBatchNormFused, PaddingTakesNoPart) {
  const BatchNormParams p{{6, 70, 16}, DType::f32, 4, true, true, true};
  const auto with_padding = [](const Generator& start) {
    return [=](GuardedTensor& x) {
      start(x);
      std::vector<double> values = x.values();
      std::fill(values.begin() + 4 * 70 * 16, values.end(), std::nan(""));
      x.assign(values);
    };
  };
  for (const std::size_t which : {0, 1}) {
    OpCase clean = batch_norm_fused_calls(p, 0)[which];
    OpCase item = clean;
    for (auto& input : item.inputs) {
      if (input.shape == p.shape) {
        input.start = with_padding(input.start);
      }
    }
    const CheckedRun with(item, cuda());
    const CheckedRun without(clean, cuda());
    for (std::size_t i = which == 0 ? 1 : 0; i + (which == 0 ? 1 : 0) < item.outputs.size(); ++i) {
      testing::expect_same_bits(with.output(i), without.output(i), concat(item.name, ' ', item.outputs[i].name));
    }
    if (which == 0) {
      EXPECT_TRUE(std::isnan(with.output(0).values().back()));
    }
  }
}

TEST_F(CudaBatchNormFused, SameBitsEveryTime) {
  const BatchNormParams p{{6, 90, 16}, DType::bf16, 5, true, true, true};
  for (const OpCase& item : batch_norm_fused_calls(p, 0)) {
    expect_repeatable(item, cuda());
  }
}

}  // namespace
}  // namespace lockstep::testing
