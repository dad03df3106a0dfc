#include "tests/kernels/low_rank_cases.hpp"

#include <array>
#include <cmath>

#include "tests/kernels/low_rank_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::Column;

template <class T>
TensorView matrix(std::vector<T>& values, std::int64_t rows) {
  return {std::span<T>(values), Shape{rows, static_cast<std::int64_t>(values.size()) / rows}};
}

struct Orthonormal {
  std::vector<double> x;
  std::vector<std::int32_t> columns;
};

Orthonormal orthonormal(std::vector<double> x, std::int64_t rows, double epsilon = 1e-8) {
  CpuContext context;
  std::vector<std::int32_t> columns(x.size() / static_cast<std::size_t>(rows), -1);
  ops::orthonormalise(context, epsilon, matrix(x, rows),
                      TensorView(std::span(columns), Shape{static_cast<std::int64_t>(columns.size())}));
  return {x, columns};
}

double dot(const std::vector<double>& x, std::size_t r, std::size_t i, std::size_t j) {
  long double sum = 0;
  for (std::size_t row = 0; row < x.size() / r; ++row) {
    sum += static_cast<long double>(x[row * r + i]) * x[row * r + j];
  }
  return static_cast<double>(sum);
}

TEST(LowRank, OrthonormalByHand) {
  // The columns are (3, 4) and (1, 1). The second column's component along (3/5, 4/5) is 7/5, so (4, -3) / 25 remains.
  const Orthonormal made = orthonormal({3, 1, 4, 1}, 2);
  const std::vector<double> expected{0.6, 0.8, 0.8, -0.6};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(made.x[i], expected[i], 1e-14) << i;
  }
  EXPECT_EQ(made.columns, (std::vector<std::int32_t>{1, 1}));
}

TEST(LowRank, DependentColumnsAndZerosAreDropped) {
  // columns a, 0, 2a, b
  const Orthonormal made = orthonormal({1, 0, 2, 0, 2, 0, 4, 1, 2, 0, 4, -1}, 3);
  EXPECT_EQ(made.columns, (std::vector<std::int32_t>{1, 0, 0, 1}));
  for (std::size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(made.x[row * 4 + 1], 0);
    EXPECT_EQ(made.x[row * 4 + 2], 0);
  }
  EXPECT_NEAR(dot(made.x, 4, 0, 0), 1, 1e-14);
  EXPECT_NEAR(dot(made.x, 4, 3, 3), 1, 1e-14);
  EXPECT_NEAR(dot(made.x, 4, 0, 3), 0, 1e-14);
}

/// All columns are nearly equal to the first, and the op must make them orthogonal. A single pass of Gram-Schmidt would
/// leave them far from orthogonal.
TEST(LowRank, ColumnsAreOrthogonalAlsoWhenTheyAreNearlyEqual) {
  constexpr std::size_t kColumns = 3;
  std::vector<double> x;
  for (int row = 0; row < 50; ++row) {
    const double common = std::sin(1.0 + row);
    for (std::size_t j = 0; j < kColumns; ++j) {
      x.push_back(common + 1e-6 * std::cos(static_cast<double>(j) * row + 3.0 * static_cast<double>(j)));
    }
  }
  const Orthonormal made = orthonormal(x, 50);
  for (std::size_t i = 0; i < kColumns; ++i) {
    EXPECT_EQ(made.columns[i], 1);
    for (std::size_t j = 0; j < kColumns; ++j) {
      EXPECT_NEAR(dot(made.x, kColumns, i, j), i == j ? 1 : 0, 1e-12) << i << ' ' << j;
    }
  }
}

/// Compares the op with two passes of Gram-Schmidt in long double.
TEST(LowRank, OrthonormaliseMatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 3}, Shape{255, 2}, Shape{700, 4}}) {
      const OpCase item = orthonormalise_case(shape, dtype);
      GuardedTensor start(shape, dtype);
      item.outputs[0].start(start);
      expect_matches(item, [&](Inputs, Outputs expected) {
        const auto r = static_cast<std::size_t>(shape[1]);
        const std::vector<double> from = start.values();
        std::vector<long double> x(from.begin(), from.end());
        const std::size_t rows = x.size() / r;
        for (std::size_t j = 0; j < r; ++j) {
          for (std::size_t turn = 0; turn < 2; ++turn) {
            for (std::size_t i = 0; i < j; ++i) {
              long double along = 0;
              for (std::size_t row = 0; row < rows; ++row) {
                along += x[row * r + i] * x[row * r + j];
              }
              for (std::size_t row = 0; row < rows; ++row) {
                x[row * r + j] -= along * x[row * r + i];
              }
            }
          }
          long double squares = 0;
          for (std::size_t row = 0; row < rows; ++row) {
            squares += x[row * r + j] * x[row * r + j];
          }
          for (std::size_t row = 0; row < rows; ++row) {
            x[row * r + j] /= std::sqrt(squares);
          }
        }
        expected[0].assign({x.begin(), x.end()});
        expected[1].constant(static_cast<double>(Column::kept));
      });
    }
  }
}

TEST(LowRank, EqualColumnsLeaveOne) {
  CpuContext context;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const CheckedRun instance(orthonormalise_case(Shape{255, 2}, dtype, true), context);
    EXPECT_EQ(instance.output(1).values(), (std::vector<double>{1, 0}));
    for (std::size_t row = 0; row < 255; ++row) {
      ASSERT_NEAR(instance.output(0).values()[2 * row], 1 / std::sqrt(255.0), 1e-7);
      ASSERT_EQ(instance.output(0).values()[2 * row + 1], 0);
    }
  }
}

TEST(LowRank, ANumberThatIsNotFiniteIsTold) {
  CpuContext context;
  for (const DType dtype : {DType::f32, DType::f64}) {
    expect_not_finite_is_told(context, dtype);
  }
}

TEST(LowRank, ResidualMatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t r : {1, 2, 4}) {
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{65, 132}}) {
        for (const bool finite : {true, false}) {
          expect_matches(low_rank_residual_case(shape[0], shape[1], r, dtype, finite),
                         [&](Inputs in, Outputs expected) {
                           if (!finite) {
                             return;  // the op must leave the output unchanged
                           }
                           std::vector<double> error = in[0].values();
                           const std::vector<double> p = in[1].values();
                           const std::vector<double> q = in[2].values();
                           const auto rank = static_cast<std::size_t>(r);
                           const std::size_t columns = q.size() / rank;
                           for (std::size_t i = 0; i < error.size(); ++i) {
                             for (std::size_t j = 0; j < rank; ++j) {
                               error[i] -= p[i / columns * rank + j] * q[i % columns * rank + j];
                             }
                           }
                           expected[0].assign(error);
                         });
        }
      }
    }
  }
}

TEST(LowRank, OnlyKeptColumnsAreTaken) {
  CpuContext context;
  std::vector<float> from{1, 2, 3, 4, 5, 6};
  std::vector<float> to{-1, -2, -3, -4, -5, -6};
  std::vector<std::int32_t> columns{0, 1, 2};
  ops::keep_columns(context, matrix(from, 2), TensorView(std::span(columns), Shape{3}), matrix(to, 2));
  EXPECT_EQ(to, (std::vector<float>{-1, 2, -3, -4, 5, -6}));
}

TEST(LowRank, SameBitsForThreads) {
  expect_same_bits_for_threads(low_rank_residual_case(700, 132, 3, DType::f32));
  expect_same_bits_for_threads(orthonormalise_case(Shape{700, 4}, DType::f32));
}

TEST(LowRank, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor x(Shape{6, 4}, DType::f32);
  const GuardedTensor p(Shape{6, 2}, DType::f32);
  const GuardedTensor q(Shape{4, 2}, DType::f32);
  const GuardedTensor other(Shape{4, 2}, DType::f32);
  const GuardedTensor error(Shape{6, 4}, DType::f32);
  const GuardedTensor columns(Shape{2}, DType::i32);
  for (const double epsilon : {0.0, 1.0, -1.0, std::nan("")}) {
    EXPECT_THROW(ops::orthonormalise(context, epsilon, p, columns), UsageError) << epsilon;
  }
  const auto residual = [&](const std::vector<TensorView>& v) {
    ops::low_rank_residual(context, v[0], v[1], v[2], columns, v[3]);
  };
  expect_views_checked({x, p, q, error}, residual, true);
  EXPECT_THROW(residual({x, p, q, x}), ShapeError);
  EXPECT_THROW(ops::low_rank_residual(context, x, p, q, q, error), DTypeError);
  const auto keep = [&](const std::vector<TensorView>& v) { ops::keep_columns(context, v[0], columns, v[1]); };
  expect_views_checked({q, other}, keep, true);
  EXPECT_THROW(keep({q, q}), ShapeError);
  EXPECT_THROW(ops::orthonormalise(context, 0.1, columns, columns), ShapeError);
  const GuardedTensor half(Shape{6, 2}, DType::bf16);
  EXPECT_THROW(ops::orthonormalise(context, 0.1, half, columns), DTypeError);
  const GuardedTensor none(Shape{0, 2}, DType::f32);
  EXPECT_THROW(ops::orthonormalise(context, 0.1, none, columns), ShapeError);
  EXPECT_THROW(ops::orthonormalise(context, 0.1, with(p, &TensorView::device, Device::cuda(0)), columns), DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
