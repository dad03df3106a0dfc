#include "tests/kernels/softmax_cross_entropy_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

/// A call of the op on host vectors, whose results are compared with numbers computed by hand.
template <class T>
struct Call {
  std::vector<T> logits;
  std::vector<std::int32_t> labels;
  std::int64_t valid = -1;  // number of valid samples; -1: not passed to the op
  T scale = 1;
  double smoothing = 0;
  std::vector<T> weights{};  // empty: not given
  std::vector<double> metrics{0, 0, 0};
  std::vector<T> gradient{};

  void run() {
    CpuContext context({.threads = 2});
    const auto n = static_cast<std::int64_t>(labels.size());
    const Shape shape{n, static_cast<std::int64_t>(logits.size()) / n};
    gradient.assign(logits.size(), std::numeric_limits<T>::quiet_NaN());
    ops::softmax_cross_entropy(context, TensorView(std::span(logits), shape), TensorView(std::span(labels), Shape{n}),
                               weights.empty() ? TensorView() : TensorView(std::span(weights), Shape{n}),
                               valid >= 0 ? TensorView(std::span(&valid, 1), Shape{}) : TensorView(),
                               TensorView(std::span(&scale, 1), Shape{}), smoothing,
                               TensorView(std::span(gradient), shape), TensorView(std::span(metrics), Shape{3}), {});
  }
};

TEST(SoftmaxCrossEntropy, TwoClassesByHand) {
  // softmax(0, ln 3) = (1/4, 3/4)
  Call<double> call{.logits = {0, std::log(3.0)}, .labels = {0}};
  call.run();
  EXPECT_NEAR(call.metrics[0], std::log(4.0), 1e-15);
  EXPECT_EQ(call.metrics[1], 0);
  EXPECT_EQ(call.metrics[2], 0);
  EXPECT_NEAR(call.gradient[0], -0.75, 1e-15);
  EXPECT_NEAR(call.gradient[1], 0.75, 1e-15);

  // With smoothing 0.2 over two classes the targets are 0.9 and 0.1. The scale applies to the gradient, not to the
  // loss.
  Call<double> smooth{.logits = {0, std::log(3.0)}, .labels = {0}, .scale = 0.5, .smoothing = 0.2};
  smooth.run();
  EXPECT_NEAR(smooth.metrics[0], 0.9 * std::log(4.0) + 0.1 * std::log(4.0 / 3.0), 1e-15);
  EXPECT_NEAR(smooth.gradient[0], -0.325, 1e-15);
  EXPECT_NEAR(smooth.gradient[1], 0.325, 1e-15);
}

TEST(SoftmaxCrossEntropy, WeightsByHand) {
  // The losses of the first two samples are ln 4 and ln(4 / 3). The third sample has weight 0, so neither its bad label
  // nor its NaN has an effect.
  const double nan = std::nan("");
  Call<double> call{.logits = {0, std::log(3.0), 0, std::log(3.0), nan, 1},
                    .labels = {0, 1, -100},
                    .scale = 0.5,
                    .weights = {3, 0.25, 0}};
  call.run();
  EXPECT_NEAR(call.metrics[0], 3 * std::log(4.0) + 0.25 * std::log(4.0 / 3), 1e-14);
  EXPECT_EQ(call.metrics[1], 0.25);
  EXPECT_EQ(call.metrics[2], 0);
  const std::vector<double> expected{-0.75 * 1.5, 0.75 * 1.5, 0.25 * 0.125, -0.25 * 0.125, 0, 0};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(call.gradient[i], expected[i], 1e-15) << i;
  }
  call.weights[1] = nan;
  call.run();
  EXPECT_TRUE(std::isnan(call.metrics[0]));
  EXPECT_TRUE(std::isnan(call.gradient[2]));
}

TEST(SoftmaxCrossEntropy, EqualLogitsCostTheLogarithmOfTheClassesAndTheFirstWins) {
  Call<float> call{.logits = {2, 2, 2, 2, 2, 2, 2, 2}, .labels = {0, 1}};
  call.run();
  EXPECT_NEAR(call.metrics[0], 2 * std::log(4.0), 1e-7);
  EXPECT_EQ(call.metrics[1], 1);
  EXPECT_EQ(call.gradient, (std::vector<float>{-0.75F, 0.25F, 0.25F, 0.25F, 0.25F, -0.75F, 0.25F, 0.25F}));
}

TEST(SoftmaxCrossEntropy, LargeLogitsNeitherOverflowNorVanish) {
  Call<float> call{.logits = {1e4F, 0, -1e4F, 0}, .labels = {1, 0}};
  call.run();
  EXPECT_EQ(call.metrics[0], 2e4);
  EXPECT_EQ(call.gradient, (std::vector<float>{1, -1, -1, 1}));
}

TEST(SoftmaxCrossEntropy, InfinitiesAndNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  Call<float> masked{.logits = {1, -inf, 1}, .labels = {0}};
  masked.run();
  EXPECT_NEAR(masked.metrics[0], std::log(2.0), 1e-7);
  EXPECT_EQ(masked.gradient, (std::vector<float>{-0.5F, 0, 0.5F}));
  EXPECT_EQ(masked.metrics[1], 1);
  for (const float bad : {inf, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t place = 0; place < 3; ++place) {
      for (const std::int32_t label : {0, 1, 2}) {
        Call<float> call{.logits = {3, 3, 3}, .labels = {label}};
        call.logits[place] = bad;
        call.run();
        EXPECT_TRUE(std::isnan(call.metrics[0])) << bad << " at " << place;
        EXPECT_EQ(call.metrics[1], 0) << bad << " at " << place << ", label " << label;
        EXPECT_TRUE(std::isnan(call.gradient[0]) || std::isnan(call.gradient[place])) << bad << " at " << place;
      }
    }
  }
  Call<float> nothing{.logits = {-inf, -inf}, .labels = {0}};
  nothing.run();
  EXPECT_EQ(nothing.metrics[1], 0);
}

TEST(SoftmaxCrossEntropy, BadLabelsAreCountedAndTakePartInNothing) {
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  Call<double> call{.logits = {1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 0}, .labels = {-1, 2, 1, kMin, kMax, 7}, .valid = 5};
  call.metrics = {10, 20, 30};
  call.run();
  const double e = std::exp(1.0);
  EXPECT_NEAR(call.metrics[0], 10 + std::log(1 + 1 / e), 1e-14);
  EXPECT_EQ(call.metrics[1], 21);
  EXPECT_EQ(call.metrics[2], 34);  // the sixth sample is not valid, so its bad label is not counted
  for (std::size_t i = 0; i < call.gradient.size(); ++i) {
    const double expected = i == 4 ? 1 / (1 + e) : (i == 5 ? -1 / (1 + e) : 0.0);
    EXPECT_NEAR(call.gradient[i], expected, 1e-15) << i;
  }
}

/// Computes the expected outputs in double, without subtracting the maximum of a row, since the logits are small.
void oracle(const SoftmaxCrossEntropyParams& p, Inputs in, Outputs expected) {
  const bool in_place = p.gradient == LogitsGradient::in_place;
  const GuardedTensor& logits = in_place ? expected[1] : in[3];
  const std::vector<double> x = logits.values();
  const auto k = static_cast<std::size_t>(p.classes);
  const std::size_t n = x.size() / k;
  const double positions = p.positions == 0 ? 1 : static_cast<double>(p.positions);
  const std::vector<double> labels = in[0].values();
  const std::vector<double> weights = p.weighting == Weighting::none ? std::vector<double>(n, 1.0) : in.back().values();
  const double scale = p.scaled ? in[2].values()[0] : 1;
  std::vector<double> metrics{0, 0, 5};
  std::vector<double> gradient(n * k, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    const double* row = x.data() + i * k;
    if (p.valid >= 0 && static_cast<double>(i) >= static_cast<double>(p.valid) * positions) {
      continue;
    }
    const double weight = weights[i * weights.size() / n];
    if (weight == 0) {
      continue;
    }
    if (labels[i] < 0 || labels[i] >= static_cast<double>(k)) {
      metrics[2] += 1;
      continue;
    }
    double total = 0;
    std::size_t best = 0;
    for (std::size_t c = 0; c < k; ++c) {
      total += std::exp(row[c]);
      best = row[c] > row[best] ? c : best;
    }
    for (std::size_t c = 0; c < k; ++c) {
      const double probability = std::exp(row[c]) / total;
      const double target =
          (static_cast<double>(c) == labels[i] ? 1 - p.smoothing : 0.0) + p.smoothing / static_cast<double>(k);
      metrics[0] -= weight * target * std::log(probability);
      gradient[i * k + c] = weight * (probability - target) * scale / positions;
    }
    metrics[1] += static_cast<double>(best) == labels[i] ? weight : 0;
  }
  expected[0].assign(std::vector<double>{2 + metrics[0] / positions, 3 + metrics[1] / positions, metrics[2]});
  if (expected.size() > 1) {
    expected[1].assign(gradient);
  }
}

TEST(SoftmaxCrossEntropy, MatchesTheNaiveFormula) {
  for (const SoftmaxCrossEntropyParams& p : softmax_cross_entropy_params()) {
    expect_matches(softmax_cross_entropy_case(p), [&](Inputs in, Outputs expected) { oracle(p, in, expected); });
  }
}

TEST(SoftmaxCrossEntropy, GradientIsTheDerivativeOfTheScaledLoss) {
  CpuContext context({.threads = 2});
  const std::int64_t n = 7;
  const std::int64_t k = 11;
  const double factor = 0.3;
  for (const double smoothing : {0.0, 0.1}) {
    for (const auto& [count, weighted] : {std::pair{n, false}, {n - 2, false}, {n, true}}) {
      GuardedTensor logits(Shape{n, k}, DType::f64, normal(3, 2));
      GuardedTensor labels(Shape{n}, DType::i32);
      GuardedTensor valid(Shape{}, DType::i64, constant(static_cast<double>(count)));
      GuardedTensor scale(Shape{}, DType::f64, constant(factor));
      GuardedTensor gradient(Shape{n, k}, DType::f64);
      GuardedTensor metrics(Shape{3}, DType::f64);
      labels.integers(4, 0, k - 1);
      labels.span<std::int32_t>()[1] = -1;
      GuardedTensor weights(Shape{n}, DType::f64, {0.5, 2, 1e6, 1e-6, 0, -1, 3});
      const auto run = [&, weighted = weighted](const TensorView& dlogits) {
        metrics.constant(0);
        ops::softmax_cross_entropy(context, logits, labels, weighted ? weights.view() : TensorView(), valid, scale,
                                   smoothing, dlogits, metrics, {});
        return metrics.values()[0] * factor;
      };
      run(gradient);
      expect_gradients([&] { return run({}); }, {{"logits", logits, gradient}}, 1e-8, concat(smoothing, ", ", count));
    }
  }
}

TEST(SoftmaxCrossEntropy, TheSameBitsForAnyNumberOfThreads) {
  for (const SoftmaxCrossEntropyParams& p :
       {SoftmaxCrossEntropyParams{523, 101, DType::f32, 0.1, 500, true},
        SoftmaxCrossEntropyParams{523, 101, DType::f64, 0.1, 500, true, LogitsGradient::in_place},
        SoftmaxCrossEntropyParams{523, 101, DType::f32, 0, 500, true, LogitsGradient::apart, 3, Weighting::element},
        SoftmaxCrossEntropyParams{9, 10007, DType::f32}}) {
    expect_same_bits_for_threads(softmax_cross_entropy_case(p));
  }
}

TEST(SoftmaxCrossEntropy, LossesAreSummedInSampleOrder) {
  CpuContext context({.threads = 2});
  const std::int64_t n = 523;
  const std::int64_t k = 37;
  GuardedTensor logits(Shape{n, k}, DType::f32, normal(5, 30));
  GuardedTensor labels(Shape{n}, DType::i32, integers(6, 0, k - 1));
  GuardedTensor metrics(Shape{3}, DType::f64, constant(0));
  ops::softmax_cross_entropy(context, logits, labels, {}, {}, {}, 0, {}, metrics, {});
  const double together = metrics.values()[0];
  std::vector<double> losses;
  for (std::int64_t i = 0; i < n; ++i) {
    metrics.constant(0);
    ops::softmax_cross_entropy(context, logits.view().slice(0, i, i + 1), labels.view().slice(0, i, i + 1), {}, {}, {},
                               0, {}, metrics, {});
    losses.push_back(metrics.values()[0]);
  }
  double forwards = 0;
  double backwards = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    forwards += losses[i];
    backwards += losses[losses.size() - 1 - i];
  }
  EXPECT_EQ(together, forwards);
  EXPECT_NE(together, backwards) << "these losses must tell one order from another";
}

TEST(SoftmaxCrossEntropy, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor logits(Shape{2, 3}, DType::f32);
  const GuardedTensor labels(Shape{2}, DType::i32);
  const GuardedTensor weights(Shape{2}, DType::f32);
  const GuardedTensor valid(Shape{}, DType::i64);
  const GuardedTensor scale(Shape{}, DType::f32);
  const GuardedTensor dlogits(Shape{2, 3}, DType::f32);
  const GuardedTensor metrics(Shape{3}, DType::f64);
  struct Arguments {
    TensorView logits, labels, weights, valid, scale, dlogits, metrics;
    double smoothing = 0;
  };
  const Arguments good{logits, labels, weights, valid, scale, dlogits, metrics, 0.1};
  const auto call = [&](auto&& change) {
    Arguments a = good;
    change(a);
    ops::softmax_cross_entropy(context, a.logits, a.labels, a.weights, a.valid, a.scale, a.smoothing, a.dlogits,
                               a.metrics, {});
  };
  EXPECT_NO_THROW(call([](Arguments&) {}));
  for (TensorView Arguments::*view : {&Arguments::logits, &Arguments::labels, &Arguments::weights, &Arguments::valid,
                                      &Arguments::scale, &Arguments::dlogits, &Arguments::metrics}) {
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).device = Device::cuda(0); }), DeviceError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).dtype = DType::f16; }), DTypeError);
    EXPECT_THROW(call([=](Arguments& a) { (a.*view).shape = Shape{2, 1, 5}; }), ShapeError);
  }
  for (TensorView Arguments::*view : {&Arguments::logits, &Arguments::labels, &Arguments::metrics}) {
    EXPECT_THROW(call([=](Arguments& a) { a.*view = {}; }), ShapeError) << "not given";
  }
  EXPECT_THROW(call([](Arguments& a) { a.logits.strides = Strides{1, 2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.dlogits.strides = Strides{1, 2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.labels.strides = Strides{2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.scale.dtype = DType::f64; }), DTypeError);
  EXPECT_THROW(call([](Arguments& a) { a.dlogits.data = static_cast<float*>(a.logits.data) + 1; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.dlogits.data = a.labels.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.dlogits.data = a.scale.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.dlogits.data = a.weights.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.metrics.data = a.weights.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.weights.shape = Shape{2, 3}; }), ShapeError) << "a weight a logit";
  EXPECT_THROW(call([](Arguments& a) { a.weights.strides = Strides{2}; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.weights.dtype = DType::f64; }), DTypeError);
  EXPECT_THROW(call([](Arguments& a) { a.metrics.data = a.logits.data; }), ShapeError);
  EXPECT_THROW(call([](Arguments& a) { a.logits.shape = a.logits.strides = Shape{2, 0}; }), ShapeError);
  for (const double smoothing : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THROW(call([=](Arguments& a) { a.smoothing = smoothing; }), UsageError) << smoothing;
  }
}

}  // namespace
}  // namespace lockstep::testing
