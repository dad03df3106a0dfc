#include "tests/kernels/weight_sum_cases.hpp"

#include <cmath>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

TEST(WeightSum, ByHand) {
  CpuContext context;
  OpCase item = weight_sum_case({Shape{3, 2}, 2, true, GradMode::accumulate}, DType::f64);
  item.inputs[0].start = values({1, 2, -4, 8, std::nan(""), 1});  // the valid samples have mean weights 1.5 and 2
  const CheckedRun instance(item, context);
  EXPECT_EQ(instance.output(0).values()[0], 0.5 + 0.375 * 3.5);
  EXPECT_EQ(instance.output(1).values()[0], 7 + 3.5);
  item.inputs[0].start = values({1, std::nan(""), -4, 8, 1, 1});
  const CheckedRun shows(item, context);
  EXPECT_TRUE(std::isnan(shows.output(0).values()[0]));
  EXPECT_TRUE(std::isnan(shows.output(1).values()[0]));
}

/// If every weight is the same number, the sum is the number of valid samples times the weight. The sum must be exact
/// for small and for large weights.
TEST(WeightSum, OnesCountAndSizesDoNotMatter) {
  CpuContext context;
  for (const double size : {1.0, 1e-6, 1e6}) {
    OpCase item = weight_sum_case({Shape{1000, 7}, 900, true}, DType::f32);
    item.inputs[0].start = constant(size);
    const CheckedRun instance(item, context);
    const auto held = static_cast<double>(static_cast<float>(size));
    EXPECT_EQ(instance.output(0).values()[0], static_cast<double>(static_cast<float>(0.375 * 900 * held))) << size;
    EXPECT_NEAR(instance.output(1).values()[0], 7 + 900 * held, 1e-9 * size);
  }
}

TEST(WeightSum, MatchesTheNaiveFormula) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const WeightSumParams& p : weight_sum_params()) {
      expect_matches(weight_sum_case(p, dtype), [&](Inputs in, Outputs out) {
        const std::vector<double> weights = in[0].values();
        const std::int64_t samples = p.valid < 0 ? p.shape[0] : std::min(p.valid, p.shape[0]);
        double sum = 0;
        for (std::int64_t n = 0; n < samples; ++n) {
          const std::int64_t features = p.shape.numel() / p.shape[0];
          double sample = 0;
          for (std::int64_t i = 0; i < features; ++i) {
            sample += weights[static_cast<std::size_t>(n * features + i)];
          }
          sum += sample / static_cast<double>(features);
        }
        if (p.mode != GradMode::ignore) {
          out[0].constant((p.mode == GradMode::accumulate ? 0.5 : 0) + sum * (p.scaled ? 0.375 : 1));
        }
        if (p.total) {
          out[1].constant(7 + sum);
        }
      });
    }
  }
}

TEST(WeightSum, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(weight_sum_case({Shape{523, 301}, 500, true}, DType::f32));
  expect_same_bits_for_threads(weight_sum_case({Shape{523, 301}, 500, true}, DType::f64));
}

TEST(WeightSum, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor weights(Shape{2, 3}, DType::f32), valid(Shape{}, DType::i64), scale(Shape{}, DType::f32);
  const GuardedTensor sum(Shape{}, DType::f32), total(Shape{}, DType::f64), workspace(Shape{16}, DType::u8);
  struct Arguments {
    TensorView weights, valid, scale, sum, total, workspace;
    GradMode mode = GradMode::accumulate;
  };
  const auto call = [&](auto&& change) {
    Arguments a{weights, valid, scale, sum, total, workspace};
    change(a);
    ops::weight_sum(context, a.weights, a.valid, a.scale, a.mode, a.sum, a.total, a.workspace);
  };
  EXPECT_NO_THROW(call([](Arguments& a) { a.valid = a.scale = a.total = {}; }));
  EXPECT_THROW(call([](Arguments& a) { a.sum = {}; }), UsageError);
  EXPECT_THROW(call([](Arguments& a) { a.mode = GradMode::ignore; }), UsageError);
  for (TensorView Arguments::*view : {&Arguments::weights, &Arguments::workspace}) {
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), Error);
  }
  for (TensorView Arguments::*view :
       {&Arguments::weights, &Arguments::valid, &Arguments::scale, &Arguments::sum, &Arguments::total}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::bf16; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { a.workspace.data = (a.*view).data; }), ShapeError);
    if (view != &Arguments::weights) {
      EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{2}; }), ShapeError);
    }
    if (view != &Arguments::total) {
      EXPECT_THROW(call([=](Arguments& a) { a.total.data = (a.*view).data; }), ShapeError);
    }
  }
  EXPECT_THROW(call([](Arguments& a) { a.sum.data = a.scale.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.weights.strides = Strides{1, 2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.weights.shape = Shape{2, 0}; }), ShapeError) << "samples of nothing";
  EXPECT_THROW(call([](Arguments& a) { a.workspace = a.workspace.slice(0, 1, 16); }), ShapeError) << "alignment";
}

}  // namespace
}  // namespace lockstep::testing
