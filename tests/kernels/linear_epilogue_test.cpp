#include "tests/kernels/linear_epilogue_cases.hpp"

#include <array>
#include <cmath>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::Activation;
using ops::GradMode;

TEST(LinearEpilogue, ByHand) {
  CpuContext context;
  std::vector<double> x{1, -2, 3, -4, 5, -6};  // a matrix of 3 x 2
  std::vector<double> bias{-2, 5};
  std::vector<double> residual{10, 20, 30, 40, 50, 60};
  std::vector<double> y(6, NAN);
  const auto rows = [](std::vector<double>& v) { return TensorView(std::span<double>(v), Shape{3, 2}); };
  const auto row = [](std::vector<double>& v) { return TensorView(std::span<double>(v), Shape{2}); };
  ops::linear_epilogue_forward(context, Activation::relu, rows(x), row(bias), rows(residual), rows(y));
  EXPECT_EQ(y, (std::vector<double>{10, 23, 31, 41, 53, 60}));
  ops::linear_epilogue_forward(context, Activation::identity, rows(x), row(bias), {}, rows(y));
  EXPECT_EQ(y, (std::vector<double>{-1, 3, 1, 1, 3, -1}));
  ops::linear_epilogue_forward(context, Activation::relu, rows(x), {}, {}, rows(y));
  EXPECT_EQ(y, (std::vector<double>{1, 0, 3, 0, 5, 0}));

  std::vector<double> dy{1, 2, 4, 8, 16, 32};
  std::vector<double> dx(6, NAN);
  std::vector<double> dbias{100, 200};
  alignas(64) std::array<std::uint8_t, 64> scratch{};
  const TensorView workspace(std::span<std::uint8_t>(scratch), Shape{64});
  ASSERT_LE(ops::linear_epilogue_workspace_bytes(context, rows(x)), 64U);
  ops::linear_epilogue_backward(context, Activation::relu, rows(x), row(bias), rows(dy), GradMode::accumulate, rows(dx),
                                row(dbias), workspace);
  EXPECT_EQ(dx, (std::vector<double>{0, 2, 4, 8, 16, 0}));
  EXPECT_EQ(dbias, (std::vector<double>{120, 210}));
  ops::linear_epilogue_backward(context, Activation::identity, {}, {}, rows(dy), GradMode::overwrite, {}, row(dbias),
                                workspace);
  EXPECT_EQ(dbias, (std::vector<double>{21, 42}));
}

/// Computes the expected output in steps: adds the bias, applies the activation (which activation_test tests), and adds
/// the residual.
void forward_oracle(const LinearEpilogueParams& p, Inputs in, Outputs expected) {
  CpuContext context;
  std::size_t next = 0;
  const GuardedTensor& x = p.in_place ? expected[0] : in[next++];
  GuardedTensor sum(p.shape, DType::f64), value(p.shape, DType::f64);
  std::vector<double> list = x.values();
  const auto columns = static_cast<std::size_t>(p.shape.back());
  if (p.bias) {
    const std::vector<double> bias = in[next++].values();
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] += bias[i % columns];
    }
  }
  sum.assign(list);
  ops::activation_forward(context, p.kind, sum, value);
  list = value.values();
  if (p.residual) {
    const std::vector<double> residual = in[next].values();
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] += residual[i];
    }
  }
  expected[0].assign(list);
}

void backward_oracle(const LinearEpilogueParams& p, Inputs in, Outputs expected) {
  CpuContext context;
  const auto columns = static_cast<std::size_t>(p.shape.back());
  GuardedTensor sum(p.shape, DType::f64), dy(p.shape, DType::f64), dx(p.shape, DType::f64);
  std::vector<double> list = in[0].values();
  if (p.bias) {
    const std::vector<double> bias = in[1].values();
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] += bias[i % columns];
    }
  }
  sum.assign(list);
  dy.assign(p.in_place ? expected[0].values() : in.back().values());
  ops::activation_backward(context, p.kind, sum, dy, dx);
  expected[0].assign(dx.values());
  if (p.mode != GradMode::ignore) {
    std::vector<double> dbias(columns);
    if (p.mode == GradMode::accumulate) {
      dbias = expected[1].values();
    }
    const std::vector<double> gradients = dx.values();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      dbias[i % columns] += gradients[i];
    }
    expected[1].assign(dbias);
  }
}

TEST(LinearEpilogue, MatchesTheSingleSteps) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const LinearEpilogueParams& p : linear_epilogue_params(dtype)) {
      expect_matches(linear_epilogue_forward_case(p),
                     [&](Inputs in, Outputs expected) { forward_oracle(p, in, expected); });
      expect_matches(linear_epilogue_backward_case(p),
                     [&](Inputs in, Outputs expected) { backward_oracle(p, in, expected); });
    }
  }
}

TEST(LinearEpilogue, TheSameBitsForAnyNumberOfThreads) {
  const LinearEpilogueParams p{.kind = Activation::gelu, .shape = {5003, 7}};
  expect_same_bits_for_threads(linear_epilogue_forward_case(p));
  expect_same_bits_for_threads(linear_epilogue_backward_case(p));
}

TEST(LinearEpilogue, GradientsAreTheDerivatives) {
  CpuContext context;
  const Shape shape{5, 7};
  for (const Activation kind : kActivations) {
    GuardedTensor x(shape, DType::f64, normal(1)), bias(Shape{7}, DType::f64, normal(2)),
        residual(shape, DType::f64, normal(3)), y(shape, DType::f64), dy(shape, DType::f64, normal(4)),
        dx(shape, DType::f64), dbias(Shape{7}, DType::f64);
    const auto forward = [&] {
      ops::linear_epilogue_forward(context, kind, x, bias, residual, y);
      return weighted_sum(y, dy);
    };
    const auto bytes = static_cast<std::int64_t>(ops::linear_epilogue_workspace_bytes(context, x));
    const GuardedTensor workspace(Shape{bytes}, DType::u8);
    ops::linear_epilogue_backward(context, kind, x, bias, dy, GradMode::overwrite, dx, dbias, workspace);
    const GuardedTensor dresidual(shape, DType::f64, dy.values());
    expect_gradients(forward, {{"x", x, dx}, {"bias", bias, dbias}, {"residual", residual, dresidual}}, 1e-8,
                     ops::name_of(kind));
  }
}

TEST(LinearEpilogue, OutputsMayReplaceInputs) {
  CpuContext context;
  const Shape shape{5, 7};
  GuardedTensor x(shape, DType::f32, normal(1)), bias(Shape{7}, DType::f32, normal(2)),
      residual(shape, DType::f32, normal(3)), y(shape, DType::f32), dx(shape, DType::f32),
      dy(shape, DType::f32, normal(4));
  ops::linear_epilogue_forward(context, Activation::gelu, x, bias, residual, y);
  ops::linear_epilogue_forward(context, Activation::gelu, x, bias, residual, residual);
  expect_same_bits(residual, y);
  ops::linear_epilogue_backward(context, Activation::gelu, x, bias, dy, GradMode::ignore, dx, {}, {});
  ops::linear_epilogue_backward(context, Activation::gelu, x, bias, dy, GradMode::ignore, x, {}, {});
  expect_same_bits(x, dx);
}

TEST(LinearEpilogue, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const Shape shape{4, 3};
  const GuardedTensor x(shape, DType::f32), y(shape, DType::f32), residual(shape, DType::f32), dy(shape, DType::f32),
      bias(Shape{3}, DType::f32), dbias(Shape{3}, DType::f32), workspace(Shape{4096}, DType::u8);
  constexpr Activation kKind = Activation::relu;
  expect_views_checked({x, bias, residual, y}, [&](const std::vector<TensorView>& v) {
    ops::linear_epilogue_forward(context, kKind, v[0], v[1], v[2], v[3]);
  });
  expect_views_checked({x, bias, dy, y, dbias}, [&](const std::vector<TensorView>& v) {
    ops::linear_epilogue_backward(context, kKind, v[0], v[1], v[2], GradMode::overwrite, v[3], v[4], workspace);
  });
  const auto forward = [&](Activation kind, const TensorView& from, const TensorView& b, const TensorView& r,
                           const TensorView& to) { ops::linear_epilogue_forward(context, kind, from, b, r, to); };
  EXPECT_NO_THROW(forward(kKind, x, {}, {}, y));
  EXPECT_NO_THROW(forward(kKind, x, bias, residual, x)) << "y is x";
  EXPECT_NO_THROW(forward(kKind, x, bias, residual, residual)) << "y is residual";
  EXPECT_THROW(forward(static_cast<Activation>(7), x, bias, residual, y), UsageError);
  EXPECT_THROW(forward(kKind, {}, bias, residual, y), ShapeError);
  EXPECT_THROW(forward(kKind, x, bias, residual, {}), ShapeError);
  const TensorView first = y.view().slice(0, 0, 1);
  EXPECT_THROW(forward(kKind, x.view().slice(0, 0, 1), first.reshape(Shape{3}), {}, first), ShapeError)
      << "y overlaps bias";
  const GuardedTensor memory(Shape{40}, DType::f32);
  const TensorView here = memory.view().slice(0, 0, 12).reshape(shape);
  const TensorView shifted = memory.view().slice(0, 1, 13).reshape(shape);
  EXPECT_THROW(forward(kKind, here, bias, {}, shifted), ShapeError);
  EXPECT_THROW(forward(kKind, x, bias, here, shifted), ShapeError);
  const TensorView none(nullptr, DType::f32, Device::cpu(), Shape{4, 0});
  EXPECT_THROW(forward(kKind, none, {}, {}, none), ShapeError);
  EXPECT_THROW(static_cast<void>(ops::linear_epilogue_workspace_bytes(context, none)), ShapeError);

  const auto backward = [&](Activation kind, const TensorView& from, GradMode mode, const TensorView& dx,
                            const TensorView& db, const TensorView& scratch) {
    ops::linear_epilogue_backward(context, kind, from, bias, dy, mode, dx, db, scratch);
  };
  EXPECT_NO_THROW(backward(kKind, x, GradMode::ignore, y, {}, {}));
  EXPECT_NO_THROW(backward(kKind, x, GradMode::overwrite, {}, dbias, workspace)) << "dx not given";
  EXPECT_NO_THROW(backward(kKind, x, GradMode::overwrite, dy, dbias, workspace)) << "dx is dy";
  EXPECT_NO_THROW(backward(kKind, x, GradMode::overwrite, x, dbias, workspace)) << "dx is x";
  EXPECT_NO_THROW(backward(Activation::identity, {}, GradMode::overwrite, y, dbias, workspace)) << "x not given";
  EXPECT_THROW(backward(kKind, {}, GradMode::overwrite, y, dbias, workspace), ShapeError);
  EXPECT_THROW(backward(static_cast<Activation>(7), x, GradMode::ignore, y, {}, {}), UsageError);
  EXPECT_THROW(backward(kKind, x, GradMode::overwrite, y, {}, workspace), ShapeError);
  EXPECT_THROW(backward(kKind, x, GradMode::overwrite, y, bias, workspace), ShapeError);
  EXPECT_THROW(backward(kKind, x, GradMode::overwrite, y, dbias, {}), ShapeError);
  EXPECT_THROW(ops::linear_epilogue_backward(context, kKind, here, bias, dy, GradMode::ignore, shifted, {}, {}),
               ShapeError);
  EXPECT_THROW(ops::linear_epilogue_backward(context, kKind, x, bias, here, GradMode::ignore, shifted, {}, {}),
               ShapeError);
  const std::size_t bytes = ops::linear_epilogue_workspace_bytes(context, x);
  EXPECT_THROW(backward(kKind, x, GradMode::overwrite, y, dbias,
                        workspace.view().slice(0, 0, static_cast<std::int64_t>(bytes) - 1)),
               ShapeError);
  EXPECT_THROW(backward(kKind, x, GradMode::overwrite, y, dbias, workspace.view().slice(0, 8, 4096)), ShapeError)
      << "not aligned";
}

}  // namespace
}  // namespace lockstep::testing
