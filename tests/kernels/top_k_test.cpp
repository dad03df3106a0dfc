#include "tests/kernels/top_k_cases.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

/// Runs the op with this row of logits for each of the labels. Returns how many labels are among the k largest logits.
double found(const std::vector<double>& row, const std::vector<double>& labels, int k) {
  CpuContext context({.threads = 2});
  const auto n = static_cast<std::int64_t>(labels.size());
  const auto classes = static_cast<std::int64_t>(row.size());
  OpCase item = top_k_case({n, classes, k}, DType::f64);
  std::vector<double> rows;
  for (std::int64_t i = 0; i < n; ++i) {
    rows.insert(rows.end(), row.begin(), row.end());
  }
  item.inputs[0].start = values(rows);
  item.inputs[1].start = values(labels);
  const CheckedRun instance(item, context);
  return instance.output(0).values()[0] - 7;
}

TEST(TopK, ByHand) {
  const std::vector<double> row{3, 9, -1, 5};  // ranks 2, 0, 3, 1
  const std::vector<std::vector<double>> firsts{{1}, {1, 3}, {1, 3, 0}, {1, 3, 0, 2}};
  for (int k = 1; k <= 4; ++k) {
    for (int label = 0; label < 4; ++label) {
      const auto& first = firsts[static_cast<std::size_t>(k) - 1];
      EXPECT_EQ(found(row, {static_cast<double>(label)}, k), std::count(first.begin(), first.end(), label))
          << k << ", " << label;
    }
  }
  EXPECT_EQ(found(row, {0, 1, 2, 3, 1}, 2), 3);
}

TEST(TopK, OfEqualLogitsTheLowerIndexIsLarger) {
  EXPECT_EQ(found({2, 2, 2}, {0, 1, 2}, 1), 1);
  EXPECT_EQ(found({2, 2, 2}, {1}, 1), 0);
  EXPECT_EQ(found({2, 2, 2}, {1}, 2), 1);
  EXPECT_EQ(found({1, 2, 2, 3}, {2}, 2), 0);
  EXPECT_EQ(found({1, 2, 2, 3}, {2}, 3), 1);
  EXPECT_EQ(found({-0.0, 0.0}, {0}, 1), 1);
}

TEST(TopK, OutputsWithoutASoftmaxAreWrongWhateverTheLabel) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  EXPECT_EQ(found({-inf, 1, -inf}, {0, 1, 2}, 1), 1);
  EXPECT_EQ(found({-inf, 1, 2}, {0, 1, 2}, 3), 2) << "a label of probability 0 is not found";
  EXPECT_EQ(found({-inf, -inf, -inf}, {0, 1, 2}, 3), 0);
  for (const double bad : {inf, nan, -nan}) {
    for (int k = 1; k <= 3; ++k) {
      EXPECT_EQ(found({bad, 2, 1}, {0, 1, 2}, k), 0) << bad << ", " << k;
      EXPECT_EQ(found({2, 1, bad}, {0, 1, 2}, k), 0) << bad << ", " << k;
      EXPECT_EQ(found({bad, bad, bad}, {0, 1, 2}, k), 0) << bad << ", " << k;
    }
  }
}

TEST(TopK, LabelsOutOfRangeAreWrong) {
  EXPECT_EQ(
      found({1, 2}, {-1, 2, 1, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}, 2),
      1);
}

TEST(TopK, MatchesASortedRow) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const TopKParams& p : top_k_params()) {
      expect_matches(top_k_case(p, dtype), [&](Inputs in, Outputs expected) {
        const std::vector<double> logits = in[0].values();
        const std::vector<double> labels = in[1].values();
        const std::int64_t counting = p.valid < 0 ? p.samples : std::min(p.valid, p.samples);
        double correct = 7;
        for (std::int64_t n = 0; n < counting; ++n) {
          std::vector<std::int64_t> order(static_cast<std::size_t>(p.classes));
          std::iota(order.begin(), order.end(), 0);
          const double* row = logits.data() + n * p.classes;
          std::stable_sort(order.begin(), order.end(), [=](auto a, auto b) { return row[a] > row[b]; });
          const auto last = order.begin() + p.k;
          const auto label = static_cast<std::int64_t>(labels[static_cast<std::size_t>(n)]);
          const double weight = p.weighted ? in[3].values()[static_cast<std::size_t>(n)] : 1;
          correct += std::find(order.begin(), last, label) != last ? weight : 0;
        }
        expected[0].constant(correct);
      });
    }
  }
}

TEST(TopK, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(top_k_case({523, 301, 20, 500}, DType::f32));
}

TEST(TopK, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor logits(Shape{4, 3}, DType::f32), labels(Shape{4}, DType::i32);
  const GuardedTensor valid(Shape{}, DType::i64), result(Shape{}, DType::f64);
  expect_views_checked(
      {logits, labels},
      [&](const std::vector<TensorView>& v) { ops::top_k_correct(context, v[0], v[1], {}, valid, 2, result, {}); },
      true);
  EXPECT_EQ(ops::top_k_workspace_bytes(context, logits), 0U);
  EXPECT_THROW(static_cast<void>(ops::top_k_workspace_bytes(context, labels)), ShapeError);
  for (const int k : {0, -1, 4}) {
    EXPECT_THROW(ops::top_k_correct(context, logits, labels, {}, valid, k, result, {}), UsageError) << k;
  }
  const TensorView none(nullptr, DType::f32, Device::cpu(), Shape{4, 0});
  EXPECT_THROW(ops::top_k_correct(context, none, labels, {}, valid, 1, result, {}), UsageError);
  const auto scalars = [&](const TensorView& count, const TensorView& to) {
    ops::top_k_correct(context, logits, labels, {}, count, 2, to, {});
  };
  const auto weighted = [&](const TensorView& weights) {
    ops::top_k_correct(context, logits, labels, weights, valid, 2, result, {});
  };
  EXPECT_NO_THROW(weighted(GuardedTensor(Shape{4}, DType::f32)));
  EXPECT_THROW(weighted(GuardedTensor(Shape{3}, DType::f32)), ShapeError);
  EXPECT_THROW(weighted(GuardedTensor(Shape{4}, DType::f64)), DTypeError);
  EXPECT_NO_THROW(scalars({}, result));
  EXPECT_THROW(scalars(valid, {}), ShapeError);
  EXPECT_THROW(scalars(GuardedTensor(Shape{2}, DType::i64), result), ShapeError);
  EXPECT_THROW(scalars(GuardedTensor(Shape{}, DType::i32), result), DTypeError);
  EXPECT_THROW(scalars(valid, GuardedTensor(Shape{2}, DType::f64)), ShapeError);
  EXPECT_THROW(scalars(valid, GuardedTensor(Shape{}, DType::f32)), DTypeError);
  for (const GuardedTensor* other : {&logits, &labels, &valid}) {
    EXPECT_THROW(scalars(valid, with(result, &TensorView::data, other->view().data)), ShapeError) << "overlap";
  }
  EXPECT_THROW(scalars(with(valid, &TensorView::device, Device::cuda(0)), result), DeviceError);
  EXPECT_THROW(scalars(valid, with(result, &TensorView::device, Device::cuda(0))), DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
