#include "tests/kernels/reduce_cases.hpp"

#include <cmath>
#include <limits>

#include <lockstep/runtime/context/parallel.hpp>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

TEST(ReduceRows, ByHand) {
  CpuContext context;
  GuardedTensor x(Shape{3, 2}, DType::f32, {1, -2, 3, 4, 0.5, 8});
  GuardedTensor sums(Shape{2}, DType::f32);
  ops::reduce_rows(context, x, GradMode::overwrite, sums, {});
  EXPECT_EQ(sums.values(), (std::vector<double>{4.5, 10}));
  ops::reduce_rows(context, x, GradMode::accumulate, sums, {});
  EXPECT_EQ(sums.values(), (std::vector<double>{9, 20}));
}

TEST(ReduceRows, MatchesALongDoubleLoop) {
  for (const OpCase& item : reduce_rows_cases()) {
    const bool accumulate = static_cast<bool>(item.outputs[0].start);
    expect_matches(item, [&](Inputs in, Outputs expected) {
      const std::vector<double> x = in[0].values();
      std::vector<double> sums = expected[0].values();
      for (std::size_t c = 0; c < sums.size(); ++c) {
        long double sum = accumulate ? sums[c] : 0.0;
        for (std::size_t i = c; i < x.size(); i += sums.size()) {
          sum += x[i];
        }
        sums[c] = static_cast<double>(sum);
      }
      expected[0].assign(sums);
    });
  }
}

TEST(ReduceRows, ManyEqualValuesDoNotStallInF32) {
  CpuContext context({.threads = 2});
  constexpr std::int64_t kRows = (std::int64_t{1} << 24) + 5;  // an f32 sum of ones would stop at 2^24
  GuardedTensor x(Shape{kRows, 1}, DType::f32);
  GuardedTensor sums(Shape{1}, DType::f32);
  std::fill_n(x.span<float>().begin(), kRows, 2.0F);
  ops::reduce_rows(context, x, GradMode::overwrite, sums, {});
  // 2^25 + 10 is halfway between two f32 numbers and rounds to the even one.
  EXPECT_EQ(sums.values()[0], 2.0 * static_cast<double>(kRows - 1));
}

TEST(ReduceRows, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : {Shape{20011, 5}, Shape{3001, 300}, Shape{64, 4211}}) {
      expect_same_bits_for_threads(reduce_rows_case(shape[0], shape[1], dtype));
    }
  }
  // Control: a sum whose order depends on the number of threads must fail this check.
  OpCase item = reduce_rows_case(20011, 5, DType::f64);
  item.run = [](Context& context, Views in, Views out, const TensorView&) {
    const auto& cpu = static_cast<CpuContext&>(context);
    const auto x = in[0].span<double>();
    const auto parts = static_cast<std::size_t>(cpu.threads());
    for (std::size_t c = 0; c < 5; ++c) {
      double total = 0;
      for (std::size_t part = 0; part < parts; ++part) {
        double sum = 0;
        for (std::size_t i = 20011 * part / parts; i < 20011 * (part + 1) / parts; ++i) {
          sum += x[i * 5 + c];
        }
        total += sum;
      }
      out[0].span<double>()[c] = total;
    }
  };
  EXPECT_FALSE(same_bits_for_threads(item, {1, 2, 3}));
}

TEST(ReduceRows, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor x(Shape{4, 3}, DType::f32);
  const GuardedTensor sums(Shape{3}, DType::f32);
  const auto call = [&](const TensorView& from, const TensorView& to) {
    ops::reduce_rows(context, from, GradMode::overwrite, to, {});
  };
  EXPECT_THROW(ops::reduce_rows(context, x, GradMode::ignore, sums, {}), UsageError);
  EXPECT_THROW(call({}, sums), ShapeError);
  EXPECT_THROW(call(x, {}), ShapeError);
  EXPECT_THROW(call(x.view().reshape(Shape{2, 2, 3}), sums), ShapeError);
  EXPECT_THROW(call(x.view().reshape(Shape{3, 4}), sums), ShapeError);
  EXPECT_THROW(call(x.view().reshape(Shape{3, 4}).permute({1, 0}), sums), ShapeError);
  EXPECT_THROW(call(x, TensorView(sums.view().data, DType::f32, Device::cpu(), Shape{3}, Strides{2})), ShapeError);
  EXPECT_THROW(call(x, x.view().slice(0, 1, 2).reshape(Shape{3})), ShapeError) << "overlap";
  EXPECT_THROW(call(x, GuardedTensor(Shape{3}, DType::f64)), DTypeError);
  EXPECT_THROW(call(GuardedTensor(Shape{4, 3}, DType::f16), GuardedTensor(Shape{3}, DType::f16)), DTypeError);
  EXPECT_THROW(call(x, with(sums, &TensorView::device, Device::cuda(0))), DeviceError);
  EXPECT_THROW(call(with(x, &TensorView::device, Device::cuda(0)), sums), DeviceError);
}

TEST(SquaredNorm, ByHand) {
  CpuContext context;
  GuardedTensor x(Shape{2, 2}, DType::f32, {1, -2, 3, 0.5});
  GuardedTensor result(Shape{}, DType::f64);
  GuardedTensor workspace(Shape{8}, DType::u8);
  ASSERT_EQ(ops::squared_norm_workspace_bytes(context, x), 8U);
  ops::squared_norm(context, x, result, workspace);
  EXPECT_EQ(result.values()[0], 14.25);
  x.assign({1e30, 0, 0, -1e30});  // the squares overflow f32, but not f64
  ops::squared_norm(context, x, result, workspace);
  EXPECT_NEAR(result.values()[0], 2e60, 1e54);
  x.span<float>()[2] = std::nanf("");
  ops::squared_norm(context, x, result, workspace);
  EXPECT_TRUE(std::isnan(result.values()[0]));
}

TEST(Sum, ByHand) {
  CpuContext context;
  GuardedTensor x(Shape{2, 2}, DType::f32, {1, -2, 3, 0.5});
  GuardedTensor result(Shape{}, DType::f64);
  GuardedTensor workspace(Shape{8}, DType::u8);
  ASSERT_EQ(ops::sum_workspace_bytes(context, x), 8U);
  ops::sum(context, x, result, workspace);
  EXPECT_EQ(result.values()[0], 2.5);
  x.assign({0x1p30, 1, -0x1p30, 0x1p-20});  // the exact sum needs 50 bits
  ops::sum(context, x, result, workspace);
  EXPECT_EQ(result.values()[0], 1 + 0x1p-20);
  ops::sum(context, x.view().slice(0, 1, 1), result, {});
  EXPECT_EQ(result.values()[0], 0);
  x.span<float>()[2] = std::nanf("");
  ops::sum(context, x, result, workspace);
  EXPECT_TRUE(std::isnan(result.values()[0]));
}

TEST(Sum, MatchesALongDoubleLoop) {
  for (const bool squares : {false, true}) {
    for (const OpCase& item : sum_cases(squares)) {
      expect_matches(item, [&](Inputs in, Outputs expected) {
        long double sum = 0;
        for (const double value : in[0].values()) {
          sum += squares ? static_cast<long double>(value) * value : value;
        }
        expected[0].constant(static_cast<double>(sum));
      });
    }
  }
}

TEST(Sum, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const bool squares : {false, true}) {
      expect_same_bits_for_threads(sum_case(Shape{300007}, dtype, squares));
    }
  }
}

TEST(AllFinite, FindsWhatIsNot) {
  for (const OpCase& item : all_finite_cases({DType::f32, DType::f64})) {
    expect_matches(item, [&](Inputs in, Outputs expected) {
      for (const double value : in[0].values()) {
        if (std::isnan(value) || std::isinf(value)) {
          expected[0].constant(1);
        }
      }
    });
  }
}

TEST(AllFinite, LargestAndSmallestNumbersAreFinite) {
  CpuContext context;
  GuardedTensor x(Shape{5}, DType::f64,
                  {std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest(),
                   std::numeric_limits<double>::denorm_min(), -0.0, 0.0});
  GuardedTensor found(Shape{}, DType::i32, constant(0));
  ops::all_finite(context, x, found);
  EXPECT_EQ(found.values()[0], 0);
}

TEST(AllFinite, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(all_finite_case(Shape{70001}, DType::f32, 69000, std::nan("")));
}

TEST(AllFinite, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor x(Shape{3, 2}, DType::f32);
  const GuardedTensor found(Shape{}, DType::i32);
  const auto call = [&](const TensorView& from, const TensorView& to) { ops::all_finite(context, from, to); };
  EXPECT_NO_THROW(call(x, found));
  EXPECT_THROW(call({}, found), ShapeError);
  EXPECT_THROW(call(x, {}), ShapeError);
  EXPECT_THROW(call(x, GuardedTensor(Shape{2}, DType::i32)), ShapeError);
  EXPECT_THROW(call(x, GuardedTensor(Shape{}, DType::f32)), DTypeError);
  EXPECT_THROW(call(GuardedTensor(Shape{3}, DType::i32), found), DTypeError);
  EXPECT_THROW(call(GuardedTensor(Shape{3}, DType::f16), found), DTypeError);
  EXPECT_THROW(call(TensorView(x.view().data, DType::f32, Device::cpu(), Shape{3}, Strides{2}), found), ShapeError);
  EXPECT_THROW(call(x, with(found, &TensorView::data, x.view().data)), ShapeError) << "overlap";
  EXPECT_THROW(call(x, with(found, &TensorView::device, Device::cuda(0))), DeviceError);
  EXPECT_THROW(call(with(x, &TensorView::device, Device::cuda(0)), found), DeviceError);
}

/// Tests of sum (false) and squared_norm (true).
class Sums : public ::testing::TestWithParam<bool> {};

TEST_P(Sums, RefuseWhatTheContractExcludes) {
  const bool squares = GetParam();
  CpuContext context;
  const GuardedTensor x(Shape{16385}, DType::f32);
  const GuardedTensor result(Shape{}, DType::f64);
  const GuardedTensor workspace(Shape{24}, DType::u8);
  ASSERT_EQ((squares ? ops::squared_norm_workspace_bytes : ops::sum_workspace_bytes)(context, x), 16U);
  const auto call = [&](const TensorView& from, const TensorView& to, const TensorView& scratch) {
    (squares ? ops::squared_norm : ops::sum)(context, from, to, scratch);
  };
  EXPECT_NO_THROW(call(x, result, workspace));
  EXPECT_THROW(call({}, result, workspace), ShapeError);
  EXPECT_THROW(call(x, {}, workspace), ShapeError);
  EXPECT_THROW(call(x, result, {}), Error);
  EXPECT_THROW(call(x, result, workspace.view().slice(0, 0, 15)), ShapeError);
  EXPECT_THROW(call(x, result, workspace.view().slice(0, 1, 18)), ShapeError) << "alignment";
  EXPECT_THROW(call(x, result, GuardedTensor(Shape{16}, DType::f32)), DTypeError);
  EXPECT_THROW(call(x, GuardedTensor(Shape{2}, DType::f64), workspace), ShapeError);
  EXPECT_THROW(call(x, GuardedTensor(Shape{}, DType::f32), workspace), DTypeError);
  EXPECT_THROW(call(GuardedTensor(Shape{4}, DType::i32), result, workspace), DTypeError);
  EXPECT_THROW(call(TensorView(x.view().data, DType::f32, Device::cpu(), Shape{4}, Strides{2}), result, workspace),
               ShapeError);
  EXPECT_THROW(call(x, with(result, &TensorView::data, x.view().data), workspace), ShapeError);
  EXPECT_THROW(call(x, result, with(workspace, &TensorView::data, x.view().data)), ShapeError);
  for (const GuardedTensor* tensor : {&x, &result, &workspace}) {
    const auto at = [&](const GuardedTensor& t) {
      TensorView view = t;
      view.device = &t == tensor ? Device::cuda(0) : Device::cpu();
      return view;
    };
    EXPECT_THROW(call(at(x), at(result), at(workspace)), DeviceError);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Sums, ::testing::Bool());

}  // namespace
}  // namespace lockstep::testing
