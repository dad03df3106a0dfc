#include "tests/kernels/batch_norm_pool_cases.hpp"

#include <cmath>

#include <lockstep/kernels/max_pool2d.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;
using ops::PoolDesc;

constexpr PoolDesc kStem{{3, 3}, {2, 2}, {1, 1}, {1, 1}};

GuardedTensor workspace_for(Context& context, const TensorView& x) {
  return {Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(context, x))}, DType::u8};
}

TEST(BatchNormPool, ForwardByHand) {
  CpuContext context;
  // y = 2 x - 2 is not positive for x up to 1, so ReLU makes it 0. The first of equal elements wins. A NaN in a window
  // makes its maximum NaN.
  const GuardedTensor x(Shape{1, 4, 4, 1}, DType::f32), k(Shape{4, 1}, DType::f32), y(Shape{1, 2, 2, 1}, DType::f32),
      index(Shape{1, 2, 2, 1}, DType::u8);
  from_doubles({2, -2, 0, 1}, k);
  from_doubles({0, 1, 0, 3, 1, 1, 3, 0, 0, 0, 0, NAN, 5, 5, 1, 2}, x);
  ops::batch_norm_pool_forward(context, kStem, x, k, y, index);
  EXPECT_EQ(y.values()[0], 0);
  EXPECT_EQ(index.values()[0], ops::kNoWinner);
  EXPECT_EQ(y.values()[1], 4);
  EXPECT_EQ(index.values()[1], 3 * 1 + 2) << "row 0, column 3 of the image comes before row 1, column 2";
  EXPECT_EQ(y.values()[2], 8);
  EXPECT_EQ(index.values()[2], 3 * 2 + 1);
  EXPECT_TRUE(std::isnan(y.values()[3]));
  EXPECT_EQ(index.values()[3], ops::kNoWinner) << "no gradient passes a NaN";
}

TEST(BatchNormPool, MatchesThePlainLoops) {
  CpuContext context({.threads = 2});
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const StemParams& p : stem_params(dtype)) {
      std::vector<OpCase> items = batch_norm_pool_calls(p, 0);
      items.push_back(batch_norm_pool_backward_reduce_case(p, GradMode::accumulate));
      items.push_back(batch_norm_pool_backward_reduce_case(p, GradMode::ignore));
      for (const OpCase& item : items) {
        compare(plain_twin(item), context, item, context,
                item.tolerance + (item.tolerance > 0 ? rounding_of(dtype) : 0));
      }
    }
  }
}

/// Compares the fused forward op with the ops that it replaces, called one after another, on random numbers.
TEST(BatchNormPool, ForwardHasTheBitsOfThreeOps) {
  CpuContext context({.threads = 2});
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Shape shape{3, 23, 18, 67};
    const Shape out = ops::pooled_shape(kStem, shape);
    GuardedTensor x(shape, dtype), k(Shape{4, 67}, ops::accumulation_dtype(dtype));
    const GuardedTensor activated(shape, dtype), y(out, dtype), expected(out, dtype), index(out, DType::u8),
        pixel(out, DType::i32), mask(mask_shape(shape), DType::u8);
    x.normal(1);
    k.normal(2);
    ops::batch_norm_apply(context, x, k, {}, true, activated, mask);
    ops::max_pool2d_forward(context, kStem, activated, expected, pixel);
    ops::batch_norm_pool_forward(context, kStem, x, k, y, index);
    expect_same_bits(y, expected);
    const std::vector<double> places = index.values();
    const std::vector<double> pixels = pixel.values();
    const std::vector<double> values = expected.values();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const double here = plain::place_in_window({shape, kStem, dtype}, out, i, static_cast<std::int64_t>(pixels[i]));
      ASSERT_EQ(places[i], values[i] > 0 ? here : ops::kNoWinner) << dtype << ' ' << i;
    }
  }
}

TEST(BatchNormPool, TheSameBitsForAnyNumberOfThreads) {
  const StemParams p{{{4, 30, 31, 67}, kStem, DType::f32}, 3};
  for (const OpCase& item : batch_norm_pool_calls(p, 0)) {
    expect_same_bits_for_threads(item);
  }
}

TEST(BatchNormPool, GradientsAreFiniteDifferences) {
  CpuContext context({.threads = 2});
  const Shape shape{4, 7, 6, 3};
  const Shape out = ops::pooled_shape(kStem, shape);
  for (const std::int64_t samples : {4, 3}) {
    GuardedTensor x(shape, DType::f64, normal(1)), dx(shape, DType::f64), y(out, DType::f64),
        dy(out, DType::f64, normal(2)), weights(out, DType::f64), index(out, DType::u8),
        weight(Shape{3}, DType::f64, normal(3)), bias(Shape{3}, DType::f64, uniform(4, 0.2, 1)),
        dweight(Shape{3}, DType::f64), dbias(Shape{3}, DType::f64), stats(Shape{7}, DType::f64),
        k(Shape{4, 3}, DType::f64), sums(Shape{2, 3}, DType::f64),
        valid(Shape{}, DType::i64, constant(static_cast<double>(samples)));
    weights.assign(dy.values());
    const TensorView padding = weights.view().slice(0, samples, 4);
    from_doubles(std::vector<double>(static_cast<std::size_t>(padding.numel()), 0.0), padding);
    const GuardedTensor workspace = workspace_for(context, x);
    const auto forward = [&] {
      ops::batch_norm_stats(context, x, valid, stats, workspace);
      ops::batch_norm_finalize(context, stats, weight, bias, 1e-3, 0.1, {}, {}, k);
      ops::batch_norm_pool_forward(context, kStem, x, k, y, index);
      return weighted_sum(y, weights);
    };
    forward();
    ops::batch_norm_pool_backward_reduce(context, kStem, dy, index, x, k, valid, GradMode::overwrite, sums, dweight,
                                         dbias, workspace);
    ops::batch_norm_pool_backward_apply(context, kStem, dy, index, x, k, sums, stats, valid, dx);
    expect_gradients(forward, {{"x", x, dx}, {"weight", weight, dweight}, {"bias", bias, dbias}}, 1e-6,
                     concat(samples, " samples"), 1e-5, 1000);
  }
}

TEST(BatchNormPool, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor x(Shape{2, 4, 5, 3}, DType::f32), k(Shape{4, 3}, DType::f32), y(Shape{2, 2, 3, 3}, DType::f32),
      index(Shape{2, 2, 3, 3}, DType::u8), sums(Shape{2, 3}, DType::f32), stats(Shape{7}, DType::f32),
      dx(Shape{2, 4, 5, 3}, DType::f32), dweight(Shape{3}, DType::f32), dbias(Shape{3}, DType::f32);
  for (GuardedTensor* tensor : {&x, &k, &y, &index, &sums, &stats, &dx}) {
    tensor->constant(1);
  }
  const GuardedTensor workspace = workspace_for(context, x);
  expect_views_checked(
      {x, k, y, index},
      [&](const std::vector<TensorView>& v) { ops::batch_norm_pool_forward(context, kStem, v[0], v[1], v[2], v[3]); },
      true);
  expect_views_checked(
      {y, index, x, k, sums, dweight, dbias},
      [&](const std::vector<TensorView>& v) {
        ops::batch_norm_pool_backward_reduce(context, kStem, v[0], v[1], v[2], v[3], {}, GradMode::overwrite, v[4],
                                             v[5], v[6], workspace);
      },
      true);
  expect_views_checked(
      {y, index, x, k, sums, stats, dx},
      [&](const std::vector<TensorView>& v) {
        ops::batch_norm_pool_backward_apply(context, kStem, v[0], v[1], v[2], v[3], v[4], v[5], {}, v[6]);
      },
      true);
  EXPECT_THROW(ops::batch_norm_pool_forward(context, kStem, x, k, y, y), DTypeError);
  EXPECT_THROW(ops::batch_norm_pool_backward_apply(context, kStem, y, index, x, k, sums, stats, {}, x), ShapeError)
      << "dx over x";
  EXPECT_THROW(ops::batch_norm_pool_backward_reduce(context, kStem, y, index, x, k, {}, GradMode::overwrite, sums,
                                                    dweight, dweight, workspace),
               ShapeError)
      << "dweight over dbias";
  GuardedTensor valid(Shape{}, DType::i64, constant(3));
  EXPECT_THROW(ops::batch_norm_pool_backward_apply(context, kStem, y, index, x, k, sums, stats, valid, dx), ShapeError)
      << "valid above N";
  PoolDesc other = kStem;
  other.stride = {1, 2};
  expect_error<ShapeError>([&] { ops::batch_norm_pool_forward(context, other, x, k, y, index); },
                           {"stride 1 x 2, expected 3 x 3 at 2 x 2"});
}

}  // namespace
}  // namespace lockstep::testing
