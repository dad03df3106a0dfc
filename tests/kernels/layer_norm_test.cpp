#include "tests/kernels/layer_norm_cases.hpp"

#include <cmath>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

TEST(LayerNorm, ByHand) {
  CpuContext context;
  std::vector<double> x{1, 3, 5, 5};  // rows (1, 3) and (5, 5): means 2 and 5, variances 1 and 0
  std::vector<double> weight{2, -4};
  std::vector<double> bias{10, 20};
  std::vector<double> y(4, NAN);
  std::vector<double> mean(2, NAN);
  std::vector<double> inv_std(2, NAN);
  const Shape rows{2, 2};
  const auto vector = [](std::vector<double>& v) { return TensorView(std::span<double>(v), Shape{2}); };
  // With epsilon 3 the first row is divided by sqrt(1 + 3) = 2.
  ops::layer_norm_forward(context, TensorView(std::span<double>(x), rows), vector(weight), vector(bias), 3,
                          TensorView(std::span<double>(y), rows), vector(mean), vector(inv_std));
  EXPECT_EQ(mean, (std::vector<double>{2, 5}));
  EXPECT_EQ(inv_std[0], 0.5);
  EXPECT_DOUBLE_EQ(inv_std[1], 1 / std::sqrt(3.0));
  EXPECT_EQ(y, (std::vector<double>{9, 18, 10, 20}));

  std::vector<double> dy{1, 2, 4, 8};
  std::vector<double> dx(4, NAN);
  std::vector<double> dweight{100, 200};
  std::vector<double> dbias{300, 400};
  alignas(64) std::array<std::uint8_t, 64> scratch{};
  const TensorView workspace(std::span<std::uint8_t>(scratch), Shape{64});
  ASSERT_LE(ops::layer_norm_workspace_bytes(context, TensorView(std::span<double>(x), rows)), 64U);
  ops::layer_norm_backward(context, TensorView(std::span<double>(dy), rows), TensorView(std::span<double>(x), rows),
                           vector(weight), vector(mean), vector(inv_std), GradMode::accumulate,
                           TensorView(std::span<double>(dx), rows), vector(dweight), vector(dbias), workspace);
  EXPECT_EQ(dbias, (std::vector<double>{305, 410}));
  EXPECT_EQ(dweight, (std::vector<double>{99.5, 201}));  // xhat is (-0.5, 0.5) and (0, 0)
  // In the first row g = (2, -8), sum(g) = -6 and sum(g xhat) = -5, so dx = 0.5 * (g - (-6 - 5 * xhat) / 2).
  EXPECT_DOUBLE_EQ(dx[0], 0.5 * (2 - (-6 + 2.5) / 2));
  EXPECT_DOUBLE_EQ(dx[1], 0.5 * (-8 - (-6 - 2.5) / 2));
  EXPECT_DOUBLE_EQ(dx[2], 20 / std::sqrt(3.0));  // g = (8, -32): sum -24
  EXPECT_DOUBLE_EQ(dx[3], -20 / std::sqrt(3.0));
}

TEST(LayerNorm, ForwardMatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : layer_norm_shapes()) {
      for (const bool inference : {false, true}) {
        expect_matches(layer_norm_forward_case(shape, dtype, inference), [&](Inputs in, Outputs expected) {
          const std::vector<double> x = in[0].values();
          const std::vector<double> weight = in[1].values();
          const std::vector<double> bias = in[2].values();
          const std::size_t channels = weight.size();
          std::vector<double> y(x.size());
          std::vector<double> means;
          std::vector<double> inv_stds;
          for (std::size_t row = 0; row < x.size() / channels; ++row) {
            long double sum = 0;
            long double squares = 0;
            for (std::size_t c = 0; c < channels; ++c) {
              sum += x[row * channels + c];
            }
            const long double mean = sum / static_cast<long double>(channels);
            for (std::size_t c = 0; c < channels; ++c) {
              squares += (x[row * channels + c] - mean) * (x[row * channels + c] - mean);
            }
            const long double std = std::sqrt(squares / static_cast<long double>(channels) + kLayerNormEpsilon);
            for (std::size_t c = 0; c < channels; ++c) {
              y[row * channels + c] = static_cast<double>((x[row * channels + c] - mean) / std * weight[c] + bias[c]);
            }
            means.push_back(static_cast<double>(mean));
            inv_stds.push_back(static_cast<double>(1 / std));
          }
          expected[0].assign(y);
          if (!inference) {
            expected[1].assign(means);
            expected[2].assign(inv_stds);
          }
        });
      }
    }
  }
}

/// Computes dx from the Jacobian of a row: d xhat_c / d x_k = inv_std * (delta_ck - 1 / C - xhat_c * xhat_k / C).
void backward_oracle(Inputs in, GradMode mode, bool in_place, Outputs expected) {
  const std::vector<double> x = in[0].values();
  const std::vector<double> weight = in[1].values();
  const std::vector<double> mean = in[2].values();
  const std::vector<double> inv_std = in[3].values();
  const std::vector<double> dy = in_place ? expected[0].values() : in[4].values();
  const std::size_t channels = weight.size();
  std::vector<double> dx(x.size());
  std::vector<double> dweight(channels);
  std::vector<double> dbias(channels);
  if (mode == GradMode::accumulate) {
    dweight = expected[1].values();
    dbias = expected[2].values();
  }
  for (std::size_t row = 0; row < mean.size(); ++row) {
    const auto xhat = [&](std::size_t c) { return (x[row * channels + c] - mean[row]) * inv_std[row]; };
    for (std::size_t c = 0; c < channels; ++c) {
      const double g = dy[row * channels + c];
      dweight[c] += g * xhat(c);
      dbias[c] += g;
      for (std::size_t k = 0; k < channels; ++k) {
        const double jacobian = (c == k ? 1.0 : 0.0) - (1 + xhat(c) * xhat(k)) / static_cast<double>(channels);
        dx[row * channels + k] += g * weight[c] * inv_std[row] * jacobian;
      }
    }
  }
  expected[0].assign(dx);
  if (mode != GradMode::ignore) {
    expected[1].assign(dweight);
    expected[2].assign(dbias);
  }
}

TEST(LayerNorm, BackwardMatchesTheJacobian) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : layer_norm_shapes()) {
      for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate, GradMode::ignore}) {
        for (const bool in_place : {false, true}) {
          if (shape.back() > 1024 && (mode != GradMode::overwrite || in_place)) {
            continue;  // the reference takes quadratic time in C
          }
          expect_matches(layer_norm_backward_case(shape, dtype, mode, in_place),
                         [&](Inputs in, Outputs expected) { backward_oracle(in, mode, in_place, expected); });
        }
      }
    }
  }
}

TEST(LayerNorm, KeepsItsDigitsFarFromZero) {
  CpuContext context;
  GuardedTensor x(Shape{3, 100}, DType::f32), weight(Shape{100}, DType::f32, constant(1)),
      bias(Shape{100}, DType::f32, constant(0)), y(Shape{3, 100}, DType::f32),
      near(Shape{3, 100}, DType::f32, integers(1, -50, 50)), expected(Shape{3, 100}, DType::f32);
  std::vector<double> values = near.values();
  for (double& value : values) {
    value += 1e6;  // exact in f32
  }
  x.assign(values);
  ops::layer_norm_forward(context, near, weight, bias, 1e-5, expected, {}, {});
  ops::layer_norm_forward(context, x, weight, bias, 1e-5, y, {}, {});
  expect_close(y, expected, 1e-6);
}

TEST(LayerNorm, TheSameBitsForAnyNumberOfThreads) {
  for (const OpCase& item : {layer_norm_forward_case({300, 129}, DType::f32),
                             layer_norm_backward_case({5003, 17}, DType::f32, GradMode::accumulate),
                             layer_norm_backward_case({5003, 17}, DType::f64, GradMode::overwrite, true)}) {
    expect_same_bits_for_threads(item);
  }
}

TEST(LayerNorm, GradientIsTheDerivative) {
  CpuContext context;
  const Shape shape{2, 3, 7};
  GuardedTensor x(shape, DType::f64, normal(1, 2, 1)), weight(Shape{7}, DType::f64, normal(2, 1, 1)),
      bias(Shape{7}, DType::f64, normal(3)), mean(Shape{6}, DType::f64), inv_std(Shape{6}, DType::f64),
      y(shape, DType::f64), dy(shape, DType::f64, normal(4)), dx(shape, DType::f64), dweight(Shape{7}, DType::f64),
      dbias(Shape{7}, DType::f64);
  const auto forward = [&] {
    ops::layer_norm_forward(context, x, weight, bias, 1e-3, y, mean, inv_std);
    return weighted_sum(y, dy);
  };
  forward();
  const auto bytes = static_cast<std::int64_t>(ops::layer_norm_workspace_bytes(context, x));
  const GuardedTensor workspace(Shape{bytes}, DType::u8);
  ops::layer_norm_backward(context, dy, x, weight, mean, inv_std, GradMode::overwrite, dx, dweight, dbias, workspace);
  expect_gradients(forward, {{"x", x, dx}, {"weight", weight, dweight}, {"bias", bias, dbias}});
}

TEST(LayerNorm, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const Shape shape{4, 3};
  const GuardedTensor x(shape, DType::f32), y(shape, DType::f32), dy(shape, DType::f32), weight(Shape{3}, DType::f32),
      bias(Shape{3}, DType::f32), mean(Shape{4}, DType::f32), inv_std(Shape{4}, DType::f32),
      workspace(Shape{4096}, DType::u8);
  for (const GuardedTensor* input : {&x, &dy, &weight, &bias, &mean, &inv_std}) {
    const_cast<GuardedTensor*>(input)->constant(1);
  }
  expect_views_checked({x, weight, bias, y, mean, inv_std}, [&](const std::vector<TensorView>& v) {
    ops::layer_norm_forward(context, v[0], v[1], v[2], 1e-5, v[3], v[4], v[5]);
  });
  const GuardedTensor dweight(Shape{3}, DType::f32), dbias(Shape{3}, DType::f32);
  expect_views_checked({dy, x, weight, mean, inv_std, y, dweight, dbias}, [&](const std::vector<TensorView>& v) {
    ops::layer_norm_backward(context, v[0], v[1], v[2], v[3], v[4], GradMode::overwrite, v[5], v[6], v[7], workspace);
  });
  EXPECT_THROW(ops::layer_norm_forward(context, x, weight, bias, 1e-5, y, mean, {}), UsageError);
  EXPECT_THROW(ops::layer_norm_forward(context, x, weight, bias, 0, y, {}, {}), UsageError);
  EXPECT_THROW(ops::layer_norm_forward(context, x, weight, bias, NAN, y, {}, {}), UsageError);
  EXPECT_NO_THROW(ops::layer_norm_forward(context, x, weight, bias, 1e-5, x, {}, {})) << "y may be x";
  EXPECT_THROW(ops::layer_norm_forward(context, x, weight, weight, 1e-5, y, mean, mean), ShapeError);
  const TensorView none(nullptr, DType::f32, Device::cpu(), Shape{4, 0});
  EXPECT_THROW(ops::layer_norm_forward(context, none, weight, bias, 1e-5, none, {}, {}), ShapeError);
  EXPECT_THROW(static_cast<void>(ops::layer_norm_workspace_bytes(context, none)), ShapeError);

  const auto backward = [&](GradMode mode, const TensorView& dx, const TensorView& dw, const TensorView& db,
                            const TensorView& scratch) {
    ops::layer_norm_backward(context, dy, x, weight, mean, inv_std, mode, dx, dw, db, scratch);
  };
  EXPECT_NO_THROW(backward(GradMode::ignore, y, {}, {}, {}));
  EXPECT_NO_THROW(backward(GradMode::overwrite, {}, dweight, dbias, workspace)) << "dx not given";
  EXPECT_NO_THROW(backward(GradMode::overwrite, dy, dweight, dbias, workspace)) << "dx is dy";
  EXPECT_THROW(backward(GradMode::overwrite, x, dweight, dbias, workspace), ShapeError) << "dx is x";
  EXPECT_THROW(backward(GradMode::overwrite, y, {}, dbias, workspace), ShapeError);
  EXPECT_THROW(backward(GradMode::overwrite, y, dweight, dweight, workspace), ShapeError);
  EXPECT_THROW(backward(GradMode::overwrite, y, dweight, weight, workspace), ShapeError);
  EXPECT_THROW(backward(GradMode::overwrite, y, dweight, dbias, {}), ShapeError);
  const std::size_t bytes = ops::layer_norm_workspace_bytes(context, x);
  EXPECT_THROW(backward(GradMode::overwrite, y, dweight, dbias,
                        workspace.view().slice(0, 0, static_cast<std::int64_t>(bytes) - 1)),
               ShapeError);
  EXPECT_THROW(backward(GradMode::overwrite, y, dweight, dbias, workspace.view().slice(0, 8, 4096)), ShapeError)
      << "not aligned";
}

}  // namespace
}  // namespace lockstep::testing
