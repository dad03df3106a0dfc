#include "tests/kernels/batch_norm_fused_cases.hpp"

#include <gtest/gtest.h>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;
using ops::NormPass;

TEST(BatchNormFused, MatchesThePlainLoops) {
  CpuContext context({.threads = 2});
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    int turn = 0;
    for (BatchNormParams p : batch_norm_fused_params()) {
      p.dtype = dtype;
      for (const OpCase& item : batch_norm_fused_calls(p, turn++)) {
        compare(plain_twin(item), context, item, context, item.tolerance + rounding_of(dtype));
      }
    }
  }
}

TEST(BatchNormFused, TheSameBitsForAnyNumberOfThreads) {
  for (const OpCase& item : batch_norm_fused_calls({{700, 7, 24}, DType::f32, 600, true, true, true}, 0)) {
    expect_same_bits_for_threads(item);
  }
}

/// The op can do a pass in one launch if all work items fit into shared memory. An H100 has 132 multiprocessors with
/// 228 KB of shared memory each. A work item of 256 threads keeps 8 rows of 16 bytes for each thread, which is 32 KB
/// for x. The backward pass keeps the gradient, too, so its item has 64 KB.
TEST(BatchNormFused, WhatFitsOnAnH100) {
  CpuContext context;
  const auto fits = [&](const Shape& shape, NormPass pass, DType dtype = DType::bf16) {
    return ops::batch_norm_fits(context, TensorView(nullptr, dtype, context.device(), shape), pass);
  };
  // ResNet-20 with 512 images. Its three shapes have 512, 256 and 128 items. An item has 32 KB in the forward pass and
  // 64 KB in the backward pass.
  EXPECT_TRUE(fits({512, 32, 32, 16}, NormPass::forward));
  EXPECT_FALSE(fits({512, 32, 32, 16}, NormPass::backward)) << "33.6 MB";
  EXPECT_TRUE(fits({512, 16, 16, 32}, NormPass::backward));
  EXPECT_TRUE(fits({512, 8, 8, 64}, NormPass::backward));
  EXPECT_FALSE(fits({512, 32, 32, 16}, NormPass::forward, DType::f32));
  EXPECT_TRUE(fits({256, 32, 32, 16}, NormPass::forward, DType::f32)) << "half as many rows of twice the bytes";
  // The shapes are those of ResNet-50 with 256 images.
  EXPECT_TRUE(fits({256, 7, 7, 512}, NormPass::backward));
  EXPECT_FALSE(fits({256, 7, 7, 2048}, NormPass::forward)) << "51 MB";
  // A tile of the op must consist of whole 16-byte pieces and end at a whole byte of the mask.
  EXPECT_FALSE(fits({4, 17}, NormPass::forward));
  EXPECT_FALSE(fits({4, 12}, NormPass::forward));
  EXPECT_TRUE(fits({4, 56}, NormPass::forward));
  EXPECT_FALSE(fits({4, 56}, NormPass::forward, DType::f32)) << "14 columns in two tiles of 7, each 3 bytes and a half";
  EXPECT_TRUE(fits({0, 8}, NormPass::forward)) << "nothing fits anywhere";
}

TEST(BatchNormFused, GradientsAreFiniteDifferences) {
  CpuContext context({.threads = 2});
  const Shape shape{5, 4, 8};
  for (const std::int64_t samples : {5, 3}) {
    GuardedTensor x(shape, DType::f64, normal(1)), residual(shape, DType::f64, normal(2)), y(shape, DType::f64),
        dy(shape, DType::f64, normal(3)), weights(shape, DType::f64), mask(mask_shape(shape), DType::u8),
        weight(Shape{8}, DType::f64, normal(4)), bias(Shape{8}, DType::f64, normal(5)), stats(Shape{17}, DType::f64),
        k(Shape{4, 8}, DType::f64), sums(Shape{2, 8}, DType::f64), dweight(Shape{8}, DType::f64),
        dbias(Shape{8}, DType::f64), masked(shape, DType::f64), dx(shape, DType::f64),
        valid(Shape{}, DType::i64, constant(static_cast<double>(samples)));
    weights.assign(dy.values());
    const TensorView padding = weights.view().slice(0, samples, 5);
    from_doubles(std::vector<double>(static_cast<std::size_t>(padding.numel()), 0.0), padding);
    const GuardedTensor workspace(Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(context, x))},
                                  DType::u8);
    const auto forward = [&] {
      ops::batch_norm_fused_forward(context, x, valid, weight, bias, 1e-3, 0.1, residual, true, stats, {}, {}, k, y,
                                    mask, workspace);
      return weighted_sum(y, weights);
    };
    forward();
    ops::batch_norm_fused_backward(context, dy, {}, mask, x, k, stats, valid, GradMode::overwrite, sums, dweight, dbias,
                                   masked, dx, workspace);
    expect_gradients(forward,
                     {{"x", x, dx}, {"residual", residual, masked}, {"weight", weight, dweight}, {"bias", bias, dbias}},
                     1e-6, concat(samples, " samples"), 1e-6, 1000);
  }
}

TEST(BatchNormFused, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const Shape shape{4, 8};
  GuardedTensor x(shape, DType::f32), y(shape, DType::f32), dy(shape, DType::f32), dy2(shape, DType::f32),
      dx(shape, DType::f32), masked(shape, DType::f32), weight(Shape{8}, DType::f32), bias(Shape{8}, DType::f32),
      stats(Shape{17}, DType::f32), k(Shape{4, 8}, DType::f32), sums(Shape{2, 8}, DType::f32),
      dweight(Shape{8}, DType::f32), dbias(Shape{8}, DType::f32);
  for (GuardedTensor* tensor : {&x, &dy, &dy2, &weight, &bias, &stats, &k}) {
    tensor->constant(1);
  }
  const GuardedTensor workspace(Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(context, x))},
                                DType::u8);
  const auto forward = [&](const std::vector<TensorView>& v) {
    ops::batch_norm_fused_forward(context, v[0], {}, v[1], v[2], 1e-3, 0.1, {}, false, v[3], {}, {}, v[4], v[5], {},
                                  workspace);
  };
  expect_views_checked({x, weight, bias, stats, k, y}, forward, true);
  const auto backward = [&](const std::vector<TensorView>& v) {
    ops::batch_norm_fused_backward(context, v[0], v[1], {}, v[2], v[3], v[4], {}, GradMode::overwrite, v[5], v[6], v[7],
                                   v[8], v[9], workspace);
  };
  expect_views_checked({dy, dy2, x, k, stats, sums, dweight, dbias, masked, dx}, backward);
  EXPECT_THROW(backward({dy, dy2, x, k, stats, sums, dweight, dbias, TensorView(), dx}), UsageError)
      << "dy2 without masked";
  EXPECT_THROW(backward({dy, dy2, x, k, stats, sums, dweight, dbias, dx, dx}), ShapeError) << "masked over dx";
  EXPECT_THROW(backward({dy, dy2, x, k, stats, sums, dweight, dbias, masked, x}), ShapeError) << "dx over x";
  EXPECT_THROW(forward({x, weight, bias, stats, k, k.view().reshape({4, 8})}), ShapeError) << "y over coefficients";
  GuardedTensor mask(mask_shape(shape), DType::u8);
  EXPECT_THROW(ops::batch_norm_fused_forward(context, x, {}, weight, bias, 1e-3, 0.1, {}, false, stats, {}, {}, k, y,
                                             mask, workspace),
               UsageError)
      << "a mask without relu";
  GuardedTensor valid(Shape{}, DType::i64, constant(5));
  EXPECT_THROW(ops::batch_norm_fused_forward(context, x, valid, weight, bias, 1e-3, 0.1, {}, false, stats, {}, {}, k, y,
                                             {}, workspace),
               ShapeError)
      << "valid above N";
}

}  // namespace
}  // namespace lockstep::testing
