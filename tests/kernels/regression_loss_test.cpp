#include "tests/kernels/regression_loss_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::RegressionLoss;
using ops::RegressionLossOptions;

constexpr RegressionLoss kKinds[] = {RegressionLoss::mse, RegressionLoss::l1, RegressionLoss::huber};

/// A call on three samples of two elements. prediction - target is 1, -3, 0, 0.5, 2 and 100.
struct Call {
  RegressionLossOptions options;
  std::vector<double> prediction{3, 1, 5, 1, 4, 101};
  std::vector<double> target{2, 4, 5, 0.5, 2, 1};
  std::int64_t valid = 2;
  double scale = 0.5;
  std::vector<double> weights{};  // empty: no weights; 3 numbers: one weight for each sample
  std::vector<double> metrics{10, 20, 30};
  std::vector<double> gradient = std::vector<double>(6, std::nan(""));

  void run() {
    CpuContext context;
    const Shape shape{3, 2};
    double partial = 0;
    ops::regression_loss(
        context, options, TensorView(std::span(prediction), shape), TensorView(std::span(target), shape),
        weights.empty() ? TensorView() : TensorView(std::span(weights), weights.size() == 3 ? Shape{3} : shape),
        TensorView(std::span(&valid, 1), Shape{}), TensorView(std::span(&scale, 1), Shape{}),
        TensorView(std::span(gradient), shape), TensorView(std::span(metrics), Shape{3}),
        TensorView(&partial, DType::u8, Device::cpu(), Shape{8}));
  }
};

TEST(RegressionLoss, ByHand) {
  Call mse{{RegressionLoss::mse}};
  mse.run();
  EXPECT_EQ(mse.metrics, (std::vector<double>{10 + (1 + 9) / 2.0 + 0.25 / 2, 20, 30}));
  EXPECT_EQ(mse.gradient, (std::vector<double>{0.5, -1.5, 0, 0.25, 0, 0}));  // 2 d / 2 * 0.5

  Call l1{{RegressionLoss::l1}};
  l1.run();
  EXPECT_EQ(l1.metrics, (std::vector<double>{10 + (1 + 3) / 2.0 + 0.5 / 2, 20, 30}));
  EXPECT_EQ(l1.gradient, (std::vector<double>{0.25, -0.25, 0, 0.25, 0, 0}));

  Call huber{{RegressionLoss::huber, 1}};  // 0.5, 1 * (3 - 0.5), 0, 0.125
  huber.run();
  EXPECT_EQ(huber.metrics, (std::vector<double>{10 + (0.5 + 2.5) / 2 + 0.125 / 2, 20, 30}));
  EXPECT_EQ(huber.gradient, (std::vector<double>{0.25, -0.25, 0, 0.125, 0, 0}));

  Call wide{{RegressionLoss::huber, 2}};  // 0.5, 2 * (3 - 1), 0, 0.125
  wide.run();
  EXPECT_EQ(wide.metrics[0], 10 + (0.5 + 4) / 2 + 0.125 / 2);
  EXPECT_EQ(wide.gradient, (std::vector<double>{0.25, -0.5, 0, 0.125, 0, 0}));
}

TEST(RegressionLoss, WeightsByHand) {
  Call samples{{RegressionLoss::mse}};
  samples.weights = {3, 0.5, std::nan("")};  // the third sample is not valid, so its NaN has no effect
  samples.run();
  EXPECT_EQ(samples.metrics, (std::vector<double>{10 + 3 * (1 + 9) / 2.0 + 0.5 * 0.25 / 2, 20, 30}));
  EXPECT_EQ(samples.gradient, (std::vector<double>{1.5, -4.5, 0, 0.125, 0, 0}));

  Call elements{{RegressionLoss::l1}};
  elements.weights = {2, 0, 5, 4, 1, 1};
  elements.target[1] = std::nan("");  // a NaN with weight 0 has no effect
  elements.run();
  EXPECT_EQ(elements.metrics, (std::vector<double>{10 + 2 / 2.0 + 4 * 0.5 / 2, 20, 30}));
  EXPECT_EQ(elements.gradient, (std::vector<double>{0.5, 0, 0, 1, 0, 0}));
  elements.weights[1] = std::nan("");
  elements.run();
  EXPECT_TRUE(std::isnan(elements.metrics[0]));
  EXPECT_TRUE(std::isnan(elements.gradient[1]));
}

TEST(RegressionLoss, NaNAndInfinitiesShow) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const RegressionLoss kind : kKinds) {
    Call call{{kind}};
    call.prediction = {std::nan(""), inf, -inf, 1, std::nan(""), 1};
    call.target = {1, 1, 1, std::nan(""), 1, inf};
    call.run();
    EXPECT_TRUE(std::isnan(call.metrics[0]));
    EXPECT_TRUE(std::isnan(call.gradient[0]));
    EXPECT_EQ(call.gradient[1], kind == RegressionLoss::mse ? inf : 0.25);
    EXPECT_EQ(call.gradient[2], kind == RegressionLoss::mse ? -inf : -0.25);
    EXPECT_TRUE(std::isnan(call.gradient[3]));
    EXPECT_EQ(call.gradient[4], 0) << "does not count";
    EXPECT_EQ(call.gradient[5], 0) << "does not count";

    Call padded{{kind}};
    padded.prediction[4] = std::nan("");
    padded.run();
    EXPECT_TRUE(std::isfinite(padded.metrics[0])) << "a sample that does not count";
  }
}

/// Compares the op with a reference that computes sample by sample in double, and distinguishes the signs of the
/// differences.
TEST(RegressionLoss, MatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const RegressionLossParams& p : regression_loss_params()) {
      const OpCase item = regression_loss_case(p, dtype);
      expect_matches(item, [&](Inputs in, Outputs expected) {
        const bool in_place = p.gradient == PredictionGradient::in_place;
        const std::vector<double> prediction = (in_place ? expected[1] : in[3]).values();
        const std::vector<double> target = in[0].values();
        const auto samples = static_cast<std::size_t>(p.shape[0]);
        const std::size_t features = samples == 0 ? 0 : target.size() / samples;
        const double delta = p.options.delta;
        const std::vector<double> weights =
            p.weighting == Weighting::none ? std::vector<double>(target.size(), 1.0) : in.back().values();
        double total = 2;
        std::vector<double> gradient(target.size(), 0.0);
        for (std::size_t n = 0; n < samples && (p.valid < 0 || n < static_cast<std::size_t>(p.valid)); ++n) {
          double sample = 0;
          for (std::size_t i = n * features; i < (n + 1) * features; ++i) {
            const double d = prediction[i] - target[i];
            const double weight = weights[weights.size() == samples ? n : i];
            const double before = sample;
            double slope = 0;
            if (p.options.kind == RegressionLoss::mse) {
              sample += d * d;
              slope = 2 * d;
            } else if (p.options.kind == RegressionLoss::l1) {
              sample += d > 0 ? d : -d;
              slope = d > 0 ? 1 : (d < 0 ? -1 : 0);
            } else if (d * d <= delta * delta) {
              sample += d * d / 2;
              slope = d;
            } else {
              sample += d > 0 ? delta * d - delta * delta / 2 : -delta * d - delta * delta / 2;
              slope = d > 0 ? delta : -delta;
            }
            sample = before + weight * (sample - before);
            gradient[i] = weight * slope / static_cast<double>(features) * (p.scaled ? 0.375 : 1);
          }
          total += sample / static_cast<double>(features);
        }
        expected[0].assign({total, 3, 5});
        if (expected.size() > 1) {
          expected[1].assign(gradient);
        }
      });
    }
  }
}

TEST(RegressionLoss, GradientIsTheDerivativeOfTheScaledLoss) {
  CpuContext context({.threads = 2});
  for (const auto& [kind, weighting] : {std::pair{RegressionLoss::mse, Weighting::none},
                                        {RegressionLoss::l1, Weighting::none},
                                        {RegressionLoss::huber, Weighting::none},
                                        {RegressionLoss::mse, Weighting::sample},
                                        {RegressionLoss::huber, Weighting::element}}) {
    GuardedTensor weights(weighting == Weighting::element ? Shape{5, 7} : Shape{5}, DType::f64, normal(3));
    GuardedTensor prediction(Shape{5, 7}, DType::f64, normal(1));
    GuardedTensor target(Shape{5, 7}, DType::f64, normal(2));
    GuardedTensor valid(Shape{}, DType::i64, constant(4));
    GuardedTensor scale(Shape{}, DType::f64, constant(0.3));
    GuardedTensor gradient(Shape{5, 7}, DType::f64);
    GuardedTensor metrics(Shape{3}, DType::f64);
    GuardedTensor workspace(Shape{8}, DType::u8);
    const auto run = [&, kind = kind, weighting = weighting](const TensorView& dprediction) {
      metrics.constant(0);
      ops::regression_loss(context, {kind, 0.9}, prediction, target,
                           weighting == Weighting::none ? TensorView() : weights.view(), valid, scale, dprediction,
                           metrics, workspace);
      return metrics.values()[0] * 0.3;
    };
    run(gradient);
    expect_gradients([&] { return run({}); }, {{"prediction", prediction, gradient}}, 1e-8,
                     concat("kind ", static_cast<int>(kind)));
  }
}

TEST(RegressionLoss, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const RegressionLoss kind : kKinds) {
      OpCase item = regression_loss_case({Shape{523, 301}, {kind, 0.3}, 500, true}, dtype);
      item.inputs[3].start = normal(4);
      expect_same_bits_for_threads(item);
      item = regression_loss_case(
          {Shape{523, 301}, {kind, 0.3}, 500, true, PredictionGradient::apart, Weighting::sample}, dtype);
      item.inputs[3].start = normal(4);
      expect_same_bits_for_threads(item);
    }
  }
}

TEST(RegressionLoss, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor prediction(Shape{2, 3}, DType::f32), target(Shape{2, 3}, DType::f32);
  const GuardedTensor dprediction(Shape{2, 3}, DType::f32), metrics(Shape{3}, DType::f64);
  const GuardedTensor weights(Shape{2, 3}, DType::f32);
  const GuardedTensor valid(Shape{}, DType::i64), scale(Shape{}, DType::f32), workspace(Shape{16}, DType::u8);
  expect_views_checked({prediction, target, dprediction, metrics}, [&](const std::vector<TensorView>& v) {
    ops::regression_loss(context, {}, v[0], v[1], {}, valid, scale, v[2], v[3], workspace);
  });
  struct Arguments {
    RegressionLossOptions options;
    TensorView prediction, target, weights, valid, scale, dprediction, metrics, workspace;
  };
  const auto call = [&](auto&& change) {
    Arguments a{{}, prediction, target, weights, valid, scale, dprediction, metrics, workspace};
    change(a);
    ops::regression_loss(context, a.options, a.prediction, a.target, a.weights, a.valid, a.scale, a.dprediction,
                         a.metrics, a.workspace);
  };
  EXPECT_NO_THROW(call([](Arguments& a) { a.weights = a.valid = a.scale = a.dprediction = {}; }));
  EXPECT_NO_THROW(
      call([](Arguments& a) { a.weights = TensorView(a.weights.data, DType::f32, Device::cpu(), Shape{2}); }));
  EXPECT_NO_THROW(call([](Arguments& a) { a.dprediction = a.prediction; }));
  for (TensorView Arguments::*view :
       {&Arguments::prediction, &Arguments::target, &Arguments::metrics, &Arguments::workspace}) {
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), Error);
  }
  for (TensorView Arguments::*view : {&Arguments::weights, &Arguments::valid, &Arguments::scale}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{4}; }), ShapeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::f64; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { a.dprediction.data = (a.*view).data; }), ShapeError);
  }
  for (TensorView Arguments::*view :
       {&Arguments::prediction, &Arguments::target, &Arguments::weights, &Arguments::valid, &Arguments::scale,
        &Arguments::dprediction, &Arguments::metrics}) {
    if (view != &Arguments::metrics) {
      EXPECT_THROW(call([=](Arguments& a) { a.metrics.data = (a.*view).data; }), ShapeError);
    }
    EXPECT_THROW(call([=](Arguments& a) { a.workspace.data = (a.*view).data; }), ShapeError);
  }
  EXPECT_THROW(call([](Arguments& a) { a.dprediction.data = a.target.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.dprediction.data = static_cast<float*>(a.prediction.data) + 1; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.workspace = a.workspace.slice(0, 0, 7); }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.workspace = a.workspace.slice(0, 1, 16); }), ShapeError) << "alignment";
  EXPECT_THROW(call([](Arguments& a) {
                 a.prediction.shape = a.target.shape = a.dprediction.shape = Shape{2, 0};
               }),
               ShapeError)
      << "samples of nothing";
  EXPECT_THROW(call([](Arguments& a) { a.options.kind = static_cast<RegressionLoss>(3); }), UsageError);
  for (const double delta : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(call([=](Arguments& a) { a.options = {RegressionLoss::huber, delta}; }), UsageError) << delta;
    EXPECT_NO_THROW(call([=](Arguments& a) { a.options = {RegressionLoss::l1, delta}; })) << "not used";
  }
}

}  // namespace
}  // namespace lockstep::testing
