// Tests weights of the loss. A weighted step must equal a step with repeated samples, and a step without the samples of
// weight 0. Weighted steps of several ranks must equal a step of one rank that has all samples. Also compares updates
// with finite differences of the loss, and tests sums of weights that cannot be a divisor.
#include <cmath>
#include <cstring>
#include <limits>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/inference.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds, testing::to_doubles;
using List = std::vector<double>;

constexpr std::int64_t kFeatures = 5;
constexpr std::int64_t kOutputs = 3;
constexpr double kRate = 0.05;
const double kNaN = std::nan("");

/// Returns a model from kFeatures to kOutputs numbers. With `positions`, the same layers compute each position of a
/// sequence.
Model model(std::int64_t positions = 0) {
  ModelBuilder b("weighed", positions == 0 ? Shape{kFeatures} : Shape{positions, kFeatures});
  b.linear("2", b.linear("1", b.input(), 4, {.activation = ops::Activation::tanh}), kOutputs);
  return b.build();
}

/// Rows of inputs, targets, labels and weights. Weights may have any shape.
struct Data {
  explicit Data(std::int64_t n) : rows(n), x(normal_numbers(n * kFeatures, 3)), y(normal_numbers(n * kOutputs, 4)) {
    for (std::int64_t i = 0; i < n; ++i) {
      labels.push_back(static_cast<std::int32_t>((i * 7 + i / 3) % kOutputs));
    }
  }
  [[nodiscard]] Batch batch(std::int64_t begin, std::int64_t end, Loss loss, const TensorView& weights = {}) {
    Batch made;
    made.fields = {{StateField::values, TensorView(std::span(x), {rows, kFeatures}).slice(0, begin, end)}};
    if (loss == Loss::cross_entropy) {
      made.fields.push_back({StateField::labels, TensorView(std::span(labels), {rows}).slice(0, begin, end)});
    } else {
      made.fields.push_back({StateField::targets, TensorView(std::span(y), {rows, kOutputs}).slice(0, begin, end)});
    }
    if (weights.given()) {
      made.fields.push_back({StateField::weights, weights.slice(0, begin, end)});
    }
    return made;
  }
  [[nodiscard]] Data repeated(const List& times) const {
    Data data(0);
    for (std::size_t i = 0; i < times.size(); ++i) {
      for (int k = 0; k < static_cast<int>(times[i]); ++k) {
        const auto row = static_cast<std::ptrdiff_t>(i);
        data.x.insert(data.x.end(), x.begin() + row * kFeatures, x.begin() + (row + 1) * kFeatures);
        data.y.insert(data.y.end(), y.begin() + row * kOutputs, y.begin() + (row + 1) * kOutputs);
        data.labels.push_back(labels[i]);
        ++data.rows;
      }
    }
    return data;
  }
  std::int64_t rows;
  List x, y;
  std::vector<std::int32_t> labels;
};

TensorView view(List& list, const Shape& shape) {
  return {std::span(list), shape};
}

TrainStepOptions options_of(std::int64_t max_batch, Loss loss, LossWeights weights,
                            OptimizerKind kind = OptimizerKind::sgd) {
  return {.max_batch = max_batch,
          .seed = 11,
          .plan = {.dtype = DType::f64, .loss = loss, .weights = weights},
          .optimizer = {.kind = kind},
          .weight_decay = 0.01};
}

/// Returns the outputs that the model computes for the data with its current parameters.
List outputs_of(Step& step, Data& data) {
  Inference predict(step.context(), model(), step.parameters(),
                    {.max_batch = data.rows, .plan = {.dtype = DType::f64}});
  List out(static_cast<std::size_t>(data.rows * kOutputs));
  predict.run(view(data.x, {data.rows, kFeatures}), view(out, {data.rows, kOutputs}));
  step.context().synchronize();
  return out;
}

void expect_near(const List& got, const List& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - expected[i]), tolerance * (1 + std::abs(expected[i]))) << what << ", element " << i;
  }
}

/// Returns the parameters after three steps from all data without weights.
List plain(Data& data, Loss loss, OptimizerKind kind = OptimizerKind::sgd) {
  Step step(model(), options_of(data.rows, loss, LossWeights::none, kind));
  for (int i = 0; i < 3; ++i) {
    step.update(data.batch(0, data.rows, loss), kRate);
  }
  return step.values();
}

TEST(LossWeights, OnesGiveTheBitsOfNone) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const Loss loss : {Loss::cross_entropy, Loss::mse}) {
      std::vector<List> all;
      for (const LossWeights weights : {LossWeights::none, LossWeights::sample, LossWeights::element}) {
        Data data(13);
        List ones(13 * kOutputs, 1);
        const bool wide = weights == LossWeights::element && loss == Loss::mse;
        const TensorView w = weights == LossWeights::none ? TensorView()
                                                          : TensorView(std::span(ones).first(wide ? 13 * kOutputs : 13),
                                                                       wide ? Shape{13, kOutputs} : Shape{13});
        TrainStepOptions options = options_of(8, loss, weights, OptimizerKind::adamw);
        options.plan.dtype = dtype;
        Step step(model(), options);
        for (int i = 0; i < 3; ++i) {
          step.add(data.batch(0, 5, loss, w));
          step.update(data.batch(5, 13, loss, w), kRate);
        }
        const StepLoss mean = step.wait_loss();
        all.push_back(step.values());
        const Metrics metrics = step.take_trained();
        EXPECT_EQ(metrics.samples, 39);
        EXPECT_EQ(metrics.weight, 39);
        EXPECT_GT(mean.value, 0);
      }
      EXPECT_EQ(all[1], all[0]) << dtype << ' ' << name_of(loss);
      EXPECT_EQ(all[2], all[0]) << dtype << ' ' << name_of(loss);
    }
  }
}

/// Weighted steps must equal the steps of an oracle without weights. The batch of the oracle contains a sample of
/// weight 3 three times, and leaves out a sample of weight 0.
TEST(LossWeights, AreAsRepeatedSamples) {
  const List times{1, 3, 0, 2, 1, 0, 4, 1, 1, 2, 0, 1, 5};
  for (const Loss loss : {Loss::cross_entropy, Loss::mse, Loss::huber}) {
    for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
      Data repeated = Data(13).repeated(times);
      const List expected = plain(repeated, loss, kind);
      for (const double size : {1.0, 1e-6, 1e6, 1e-30, 1e30}) {  // a common factor cancels
        for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{0, 13}, {0, 2, 3, 9, 13}}) {
          for (const bool joined : {false, true}) {
            Data data(13);
            List weights = times;
            for (double& weight : weights) {
              weight *= size;
            }
            Step step(model(), options_of(13, loss, LossWeights::sample, kind));
            for (int i = 0; i < 3; ++i) {
              for (std::size_t part = 0; part + 1 < cut.size(); ++part) {
                const Batch batch = data.batch(cut[part], cut[part + 1], loss, view(weights, {13}));
                if (joined && part + 2 == cut.size()) {
                  step.update(batch, kRate);
                } else {
                  step.add(batch);
                }
              }
              if (!joined) {
                step.update(kRate);
              }
            }
            expect_near(step.values(), expected, 1e-12, concat(name_of(loss), ' ', size));
          }
        }
      }
    }
  }
}

/// In f32 the sum of weights is f32, too. Weights far from 1 must neither overflow nor vanish in this sum.
TEST(LossWeights, SizesDoNotMatterInF32) {
  const List times{1, 3, 0, 2, 1, 0, 4, 1, 1, 2, 0, 1, 5};
  List first;
  for (const double size : {1.0, 1e-6, 1e6, 1e-25, 1e25}) {
    Data data(13);
    List weights = times;
    for (double& weight : weights) {
      weight *= size;
    }
    TrainStepOptions options = options_of(13, Loss::mse, LossWeights::sample);
    options.plan.dtype = DType::f32;
    Step step(model(), options);
    for (int i = 0; i < 3; ++i) {
      step.update(data.batch(0, 13, Loss::mse, view(weights, {13})), kRate);
    }
    (void)step.wait_loss();
    const List got = step.values();
    first = first.empty() ? got : first;
    expect_near(got, first, 2e-6, concat("size ", size));
  }
}

/// Returns sum(w l) / sum(w) with the weights w and the losses l, which are computed from `outputs`. `weights` has a
/// number for each element (regression) or for each row.
double loss_of(Loss loss, const List& outputs, const Data& data, const List& weights) {
  double sum = 0, divisor = 0;
  for (std::size_t n = 0; n < static_cast<std::size_t>(data.rows); ++n) {
    const double* out = outputs.data() + n * kOutputs;
    if (loss == Loss::cross_entropy) {
      double total = 0;
      for (std::size_t k = 0; k < kOutputs; ++k) {
        total += std::exp(out[k]);
      }
      sum += weights[n] * (std::log(total) - out[data.labels[n]]);
      divisor += weights[n];
      continue;
    }
    for (std::size_t k = 0; k < kOutputs; ++k) {
      const bool by_row = weights.size() == static_cast<std::size_t>(data.rows);
      const double weight = by_row ? weights[n] : weights[n * kOutputs + k];
      const double d = out[k] - data.y[n * kOutputs + k];
      sum += weight * (loss == Loss::mse ? d * d : std::abs(d));
      divisor += weight;
    }
  }
  return sum / divisor;
}

/// An update of plain SGD must be the negative gradient of the weighted mean loss, by finite differences over all
/// parameters. The loss and the accuracy of a step and of an evaluation must equal the formula.
TEST(LossWeights, AnUpdateIsTheGradientOfTheWeightedMean) {
  struct Case {
    Loss loss;
    LossWeights kind;
  };
  for (const auto& [loss, kind] : {Case{Loss::mse, LossWeights::element}, Case{Loss::l1, LossWeights::element},
                                   Case{Loss::mse, LossWeights::sample}, Case{Loss::cross_entropy, LossWeights::sample},
                                   Case{Loss::cross_entropy, LossWeights::element}}) {
    SCOPED_TRACE(concat(name_of(loss), ' ', name_of(kind)));
    Data data(6);
    const bool wide = kind == LossWeights::element && loss != Loss::cross_entropy;
    List weights = normal_numbers(wide ? 6 * kOutputs : 6, 9);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = i % 5 == 0 ? -0.1 : weights[i] * weights[i];  // a few weights are negative
    }
    const TensorView w = view(weights, wide ? Shape{6, kOutputs} : Shape{6});
    TrainStepOptions options = options_of(6, loss, kind);
    options.optimizer.momentum = 0;
    options.weight_decay = 0;
    Step step(model(), options);
    const TensorView values = step.parameters().values();
    const auto formula = [&, loss = loss] { return loss_of(loss, outputs_of(step, data), data, weights); };
    step.synchronize();
    const auto number = static_cast<std::size_t>(step.parameters().trainable_numel());
    const List before = to_doubles(values);
    List expected(before);
    for (std::size_t i = 0; i < number; ++i) {
      double& value = values.span<double>()[i];
      value = before[i] + 1e-6;
      const double above = formula();
      value = before[i] - 1e-6;
      expected[i] -= kRate * (above - formula()) / 2e-6;
      value = before[i];
    }
    const double now = formula();
    step.evaluate(data.batch(0, 6, loss, w));
    EXPECT_NEAR(step.take_evaluated().loss(), now, 1e-12);
    step.update(data.batch(0, 6, loss, w), kRate);
    EXPECT_NEAR(step.wait_loss().value, now, 1e-12);
    EXPECT_NE(to_doubles(values), before);
    expect_near(to_doubles(values), expected, 1e-9, "finite differences");
  }
}

TEST(LossWeights, AccuracyIsWeightedToo) {
  Data data(6);
  List weights{1, 0, 0.5, 4, 2, 0};
  TrainStepOptions options = options_of(6, Loss::cross_entropy, LossWeights::sample);
  options.plan.top_k = 2;
  Step step(model(), options);
  const List out = outputs_of(step, data);
  double first = 0, second = 0;
  for (std::size_t n = 0; n < 6; ++n) {
    const double own = out[n * kOutputs + static_cast<std::size_t>(data.labels[n])];
    int above = 0;
    for (std::size_t k = 0; k < kOutputs; ++k) {
      above += out[n * kOutputs + k] > own ? 1 : 0;
    }
    first += above == 0 ? weights[n] : 0;
    second += above <= 1 ? weights[n] : 0;
  }
  // The label of sample 1, whose weight is 0, is invalid, so the sample does not count.
  data.labels[1] = -100;
  Batch batch = data.batch(0, 6, Loss::cross_entropy, view(weights, {6}));
  batch.valid = 5;
  step.evaluate(batch);
  const Metrics metrics = step.take_evaluated();
  EXPECT_EQ(metrics.samples, 5);
  EXPECT_EQ(metrics.weight, 7.5);
  EXPECT_NEAR(metrics.accuracy(), first / 7.5, 1e-15);
  EXPECT_NEAR(metrics.top_k_accuracy(), second / 7.5, 1e-15);
  EXPECT_GT(second, 0);
}

/// Sequences of unequal lengths are padded, and the padding has weight 0. The result must equal that of an oracle that
/// takes every existing position as a separate sample.
TEST(LossWeights, MaskedPositionsAreAsIfTheyWereNotThere) {
  constexpr std::int64_t kLength = 5;
  const std::vector<std::int64_t> lengths{5, 2, 1, 4};
  for (const Loss loss : {Loss::cross_entropy, Loss::mse}) {
    Data data(4 * kLength);
    List mask;
    for (const std::int64_t length : lengths) {
      for (std::int64_t t = 0; t < kLength; ++t) {
        mask.push_back(t < length ? 1 : 0);
      }
    }
    Data there = data.repeated(mask);
    const List expected = plain(there, loss);
    List weights;
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) {
        data.labels[i] = -100;
        data.y[i * kOutputs] = kNaN;
      }
      weights.insert(weights.end(), loss == Loss::mse ? kOutputs : 1, mask[i]);
    }
    Step step(model(kLength), options_of(4, loss, LossWeights::element));
    const FieldView x{StateField::values, view(data.x, {4, kLength, kFeatures})};
    for (int i = 0; i < 3; ++i) {
      if (loss == Loss::mse) {
        step.update({x,
                     {StateField::targets, view(data.y, {4, kLength, kOutputs})},
                     {StateField::weights, view(weights, {4, kLength, kOutputs})}},
                    kRate);
      } else {
        step.update({x,
                     {StateField::labels, TensorView(std::span(data.labels), {4, kLength})},
                     {StateField::weights, view(weights, {4, kLength})}},
                    kRate);
      }
    }
    EXPECT_TRUE(std::isfinite(step.wait_loss().value));
    expect_near(step.values(), expected, 1e-12, std::string(name_of(loss)));
  }
}

/// Each rank has one subdomain: one sample with its own number of cells. If a sample's weight is proportional to its
/// number of cells, the result must be that of one rank with all cells. The control: without weights the result
/// differs.
TEST(LossWeights, UnevenSubdomainsComeToTheWhole) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool overlap : {false, true}) {
      for (const bool weighed : {true, false}) {
        const std::vector<std::int64_t> cells{7, 2, 11};
        std::int64_t all = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          all += cells[static_cast<std::size_t>(rank)];
        }
        Data whole(all);
        const List expected = plain(whole, Loss::mse);
        comm::on_ranks(ranks, [&](comm::Communicator& grad) {
          std::int64_t begin = 0;
          for (int rank = 0; rank < grad.rank(); ++rank) {
            begin += cells[static_cast<std::size_t>(rank)];
          }
          const std::int64_t own = cells[static_cast<std::size_t>(grad.rank())];
          Data data(all);
          List weight{static_cast<double>(own) * 1e-3};
          TrainStepOptions options = options_of(1, Loss::mse, weighed ? LossWeights::sample : LossWeights::none);
          options.buckets.bucket_bytes = 64;
          CpuContext context;
          Stream stream = overlap ? Stream::host_worker("reduce") : Stream::host_inline();
          TrainStep step(context, {grad, stream}, model(own), options);
          Batch batch;
          batch.fields = {{StateField::values,
                           view(data.x, {all, kFeatures}).slice(0, begin, begin + own).reshape({1, own, kFeatures})},
                          {StateField::targets,
                           view(data.y, {all, kOutputs}).slice(0, begin, begin + own).reshape({1, own, kOutputs})}};
          if (weighed) {
            batch.fields.push_back({StateField::weights, view(weight, {1})});
          }
          for (int i = 0; i < 3; ++i) {
            step.update(batch, kRate);
          }
          step.synchronize();
          const List got = to_doubles(step.parameters().values());
          if (weighed || ranks == 1) {
            expect_near(got, expected, 1e-12, concat(ranks, " ranks"));
          } else {
            double apart = 0;
            for (std::size_t i = 0; i < got.size(); ++i) {
              apart = std::max(apart, std::abs(got[i] - expected[i]));
            }
            EXPECT_GT(apart, 1e-4) << "the control";
          }
        });
      }
    }
  }
}

/// Rank 0 has no weights, rank 1 has weights for elements, and rank 2 has weights for samples. All weights of rank 2
/// are 0. The result must equal that of one rank with repeated samples. Steps have micro-batches.
TEST(LossWeights, RanksMayHaveDifferentKinds) {
  const List times{1, 1, 1, 1, 0, 3, 0, 2, 0, 0, 0, 0};
  Data repeated = Data(12).repeated(times);
  const List expected = plain(repeated, Loss::mse);
  comm::on_ranks(3, [&](comm::Communicator& grad) {
    Data data(12);
    List rows = times, elements;
    for (const double weight : times) {
      elements.insert(elements.end(), kOutputs, weight);
    }
    const int rank = grad.rank();
    const LossWeights kind = rank == 0 ? LossWeights::none : rank == 1 ? LossWeights::element : LossWeights::sample;
    const TensorView w = rank == 0 ? TensorView() : rank == 1 ? view(elements, {12, kOutputs}) : view(rows, {12});
    Step step(grad, model(), options_of(4, Loss::mse, kind));
    const std::int64_t begin = 4 * rank;
    for (int i = 0; i < 3; ++i) {
      step.add(data.batch(begin, begin + 1, Loss::mse, w));
      step.update(data.batch(begin + 1, begin + 4, Loss::mse, w), kRate);
    }
    (void)step.wait_loss();
    expect_near(step.values(), expected, 1e-12, concat("rank ", rank));
  });
}

/// A step whose weights have no positive, finite sum must not change anything: parameters, momenta, counters, the loss
/// scale, and all later steps.
TEST(LossWeights, ASumThatIsNoDivisorChangesNothing) {
  struct Case {
    List weights;
    std::string sum;
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const Case& bad : {Case{{0, 0, 0, 0}, "0"}, Case{{-1, 0.5, 0, 0}, "-0.5"}, Case{{1, kNaN, 1, 1}, "nan"},
                          Case{{1, inf, 1, 1}, "inf"}, Case{{1, -1, 2, -2}, "0"}}) {
    for (const OptimizerKind kind :
         {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::lars}) {
      for (const bool scaled : {false, true}) {
        SCOPED_TRACE(concat(name_of(kind), ", sum ", bad.sum, scaled ? ", scaled" : ""));
        Data data(4);
        List good{1, 2, 0, 1}, weights = bad.weights;
        TrainStepOptions options = options_of(4, Loss::mse, LossWeights::sample, kind);
        if (scaled) {
          options.optimizer.loss_scale = {.kind = LossScale::Kind::dynamic, .initial = 1024, .rule = {.interval = 3}};
        }
        Step step(model(), options), without(model(), options);
        const Batch one = data.batch(0, 4, Loss::mse, view(good, {4}));
        for (int i = 0; i < 2; ++i) {
          step.update(one, kRate);
          without.update(one, kRate);
        }
        const auto before = step.lasting();
        step.update(data.batch(0, 4, Loss::mse, view(weights, {4})), kRate);
        EXPECT_EQ(step.lasting(), before);
        EXPECT_EQ(error_of<DataError>([&] { (void)step.wait_loss(); }),
                  "step 3: the weights of its samples sum to " + bad.sum +
                      " over all ranks, expected a positive, finite number; it changed nothing");
        (void)step.wait_loss();  // does not throw, because the error is reported only once
        for (int i = 0; i < 2; ++i) {
          step.update(one, kRate);
          without.update(one, kRate);
        }
        EXPECT_EQ(step.lasting(), without.lasting());
        EXPECT_NE(step.lasting(), before) << "control";
        EXPECT_TRUE(std::isfinite(step.wait_loss().value));
        EXPECT_TRUE(std::isfinite(step.take_trained().loss())) << "its metrics are not among those of the others";
      }
    }
  }
}

TEST(LossWeights, AbandonForgetsWeights) {
  Data data(13);
  const List expected = plain(data, Loss::mse);
  List ones(13, 1), bad(13, kNaN);
  Step step(model(), options_of(13, Loss::mse, LossWeights::sample));
  for (int i = 0; i < 3; ++i) {
    step.add(data.batch(0, 5, Loss::mse, view(bad, {13})));
    step.abandon();
    step.update(data.batch(0, 13, Loss::mse, view(ones, {13})), kRate);
  }
  (void)step.wait_loss();
  expect_near(step.values(), expected, 1e-12, "abandoned");
}

TEST(LossWeights, OnlyTheSumOverAllRanksDecides) {
  comm::on_ranks(3, [&](comm::Communicator& grad) {
    Data data(4);
    List ones{1, 1, 1, 1}, none{0, 0, 0, 0}, negative{-1, 0, 0, 0};
    Step step(grad, model(), options_of(4, Loss::mse, LossWeights::sample));
    const TensorView w = view(grad.rank() == 0 ? none : grad.rank() == 1 ? negative : ones, {4});
    const auto before = step.lasting();
    step.update(data.batch(0, 4, Loss::mse, w), kRate);
    (void)step.wait_loss();
    EXPECT_NE(step.lasting(), before);
    const auto after = step.lasting();
    step.update(data.batch(0, 4, Loss::mse, view(none, {4})), kRate);
    EXPECT_THROW((void)step.wait_loss(), DataError) << "on every rank";
    EXPECT_EQ(step.lasting(), after);
  });
}

TEST(LossWeights, OfAnyTypeStridesAndAxes) {
  Data data(6);
  List weights = normal_numbers(6 * kOutputs, 5);
  for (double& weight : weights) {
    weight = static_cast<double>(static_cast<float>(weight * weight));
  }
  std::vector<float> turned(weights.size());      // weights of sample 3 a + b at (a, output, b) of (2, kOutputs, 3)
  std::vector<float> spread(2 * weights.size());  // weights in every second element
  for (std::size_t n = 0; n < 6; ++n) {
    for (std::size_t c = 0; c < kOutputs; ++c) {
      const auto weight = static_cast<float>(weights[n * kOutputs + c]);
      turned[(n / 3 * kOutputs + c) * 3 + n % 3] = weight;
      spread[2 * (n * kOutputs + c)] = weight;
    }
  }
  TensorView apart = TensorView(std::span(spread), {6, kOutputs, 2});
  apart = apart.slice(2, 0, 1);
  apart.shape = Shape{6, kOutputs};
  apart.strides = Strides{2 * kOutputs, 2};
  const std::vector<FieldView> fields{{StateField::weights, view(weights, {6, kOutputs})},
                                      {StateField::weights, TensorView(std::span(turned), {2, kOutputs, 3}), "ncn"},
                                      {StateField::weights, apart}};
  std::vector<List> all;
  for (const FieldView& field : fields) {
    Step step(model(), options_of(6, Loss::mse, LossWeights::element));
    Batch batch = data.batch(0, 6, Loss::mse);
    batch.fields.push_back(field);
    step.update(batch, kRate);
    all.push_back(step.values());
    EXPECT_EQ(all.back(), all.front());
  }
}

TEST(LossWeights, ABatchBringsWhatThePlanReads) {
  Data data(4);
  List weights(4 * kOutputs, 1);
  const TensorView rows = TensorView(std::span(weights).first(4), {4});
  Step none(model(), options_of(4, Loss::mse, LossWeights::none));
  Step sample(model(), options_of(4, Loss::mse, LossWeights::sample));
  Step element(model(), options_of(4, Loss::mse, LossWeights::element));
  const auto before = sample.lasting();
  for (Step* step : {&sample, &element}) {
    EXPECT_EQ(error_of<UsageError>([&] { step->update(data.batch(0, 4, Loss::mse), kRate); }),
              "the batch has no field 'weights', expected it for model weighed");
    EXPECT_THROW(step->evaluate(data.batch(0, 4, Loss::mse)), UsageError);
  }
  EXPECT_EQ(error_of<ShapeError>([&] { none.add(data.batch(0, 4, Loss::mse, rows)); }),
            "model weighed takes no weights: it is planned without (PlanOptions::weights)");
  EXPECT_EQ(error_of<ShapeError>([&] { element.add(data.batch(0, 4, Loss::mse, rows)); }),
            "the weight has shape (4), expected 2 axes (nc), as model weighed counts them");
  EXPECT_THROW(sample.add(data.batch(0, 4, Loss::mse, view(weights, {4, kOutputs}))), ShapeError);
  EXPECT_THROW(element.add(data.batch(0, 4, Loss::mse, view(weights, {4, kOutputs}).slice(1, 0, 2))), ShapeError);
  EXPECT_EQ(sample.lasting(), before);
  EXPECT_EQ(sample.steps(), 0);
  TrainStepOptions options = options_of(4, Loss::mse, LossWeights::sample);
  options.count_samples = false;
  EXPECT_EQ(error_of<UsageError>([&] { const Step step(model(), options); }),
            "train step: count_samples is off with weights of the loss, expected it on: their sum is the divisor");
}

TEST(LossWeights, InferenceKnowsNone) {
  Data data(4);
  List first;
  std::size_t bytes = 0;
  for (const LossWeights weights : {LossWeights::none, LossWeights::sample, LossWeights::element}) {
    Step step(model(), options_of(4, Loss::mse, weights));
    Inference predict(step.context(), model(), step.parameters(),
                      {.max_batch = 4, .plan = options_of(4, Loss::mse, weights).plan});
    List out(4 * kOutputs);
    predict.run(view(data.x, {4, kFeatures}), view(out, {4, kOutputs}));
    step.context().synchronize();
    first = weights == LossWeights::none ? out : first;
    bytes = weights == LossWeights::none ? predict.bytes() : bytes;
    EXPECT_EQ(out, first);
    EXPECT_EQ(predict.bytes(), bytes);
  }
}

/// Samples that each have a second label, and the shares of both labels.
struct Mixtures {
  explicit Mixtures(std::int64_t n) : data(n), share(static_cast<std::size_t>(n)), other_share(share) {
    Random random(6, RandomUse::test);
    for (std::size_t i = 0; i < share.size(); ++i) {
      share[i] = i == 0 ? 1 : (i == 1 ? 0 : random.uniform());
      other_share[i] = 1 - share[i];
      others.push_back(static_cast<std::int32_t>(random.below(kOutputs)));
    }
  }
  [[nodiscard]] Batch batch(std::int64_t begin, std::int64_t end) {
    Batch made = data.batch(begin, end, Loss::cross_entropy);
    const auto n = static_cast<std::int64_t>(share.size());
    made.fields.push_back({StateField::other_labels, TensorView(std::span(others), {n}).slice(0, begin, end)});
    made.fields.push_back({StateField::shares, view(share, {n}).slice(0, begin, end)});
    made.fields.push_back({StateField::other_shares, view(other_share, {n}).slice(0, begin, end)});
    return made;
  }
  Data data;
  List share, other_share;
  std::vector<std::int32_t> others;
};

TEST(TwoLabels, TheLossIsTheFormula) {
  constexpr std::int64_t kSamples = 13;
  for (const double smoothing : {0.0, 0.1}) {
    Mixtures mixed(kSamples);
    TrainStepOptions options = options_of(kSamples, Loss::cross_entropy, LossWeights::none);
    options.plan.two_labels = true;
    options.plan.label_smoothing = smoothing;
    Step step(model(), options);
    const List logits = outputs_of(step, mixed.data);
    double loss = 0;
    double correct = 0;
    for (std::size_t n = 0; n < kSamples; ++n) {
      const double* row = logits.data() + n * kOutputs;
      double sum = 0;
      int largest = 0;
      for (int k = 0; k < kOutputs; ++k) {
        sum += std::exp(row[k]);
        largest = row[k] > row[largest] ? k : largest;
      }
      for (int k = 0; k < kOutputs; ++k) {
        const double target = mixed.share[n] * (mixed.data.labels[n] == k ? 1 : 0) +
                              mixed.other_share[n] * (mixed.others[n] == k ? 1 : 0);
        loss -= ((1 - smoothing) * target + smoothing / kOutputs) * (row[k] - std::log(sum));
        correct += largest == k ? target : 0;
      }
    }
    step.update(mixed.batch(0, kSamples), kRate);
    EXPECT_NEAR(step.wait_loss().value, loss / kSamples, 1e-12);
    EXPECT_NEAR(step.take_trained().correct, correct, 1e-12);
  }
}

TEST(TwoLabels, AStepIsThatOfTwoWeightedSamples) {
  constexpr std::int64_t kSamples = 13;
  Mixtures mixed(kSamples);
  TrainStepOptions options = options_of(8, Loss::cross_entropy, LossWeights::none);
  options.plan.two_labels = true;
  Step step(model(), options);
  Data twice(0);
  List weights;
  for (std::int64_t i = 0; i < 2 * kSamples; ++i) {
    const auto n = static_cast<std::size_t>(i / 2);
    twice.x.insert(twice.x.end(), mixed.data.x.begin() + i / 2 * kFeatures,
                   mixed.data.x.begin() + (i / 2 + 1) * kFeatures);
    twice.labels.push_back(i % 2 == 0 ? mixed.data.labels[n] : mixed.others[n]);
    weights.push_back(i % 2 == 0 ? mixed.share[n] : mixed.other_share[n]);
  }
  twice.rows = 2 * kSamples;
  Step weighted(model(), options_of(2 * kSamples, Loss::cross_entropy, LossWeights::sample));
  for (int i = 0; i < 3; ++i) {
    step.add(mixed.batch(0, 5));
    step.update(mixed.batch(5, kSamples), kRate);
    weighted.update(twice.batch(0, 2 * kSamples, Loss::cross_entropy, view(weights, {2 * kSamples})), kRate);
  }
  step.synchronize();
  expect_near(step.values(), weighted.values(), 1e-13, "parameters");
  // The control: another second label changes the result.
  Mixtures wrong(kSamples);
  wrong.others[4] = (wrong.others[4] + 1) % kOutputs;
  Step control(model(), options);
  for (int i = 0; i < 3; ++i) {
    control.add(wrong.batch(0, 5));
    control.update(wrong.batch(5, kSamples), kRate);
  }
  EXPECT_NE(control.values(), step.values());
  // In an evaluation each sample has one label.
  step.evaluate(mixed.data.batch(0, 8, Loss::cross_entropy));
  EXPECT_EQ(step.take_evaluated().samples, 8);
}

TEST(TwoLabels, WhatIsMissingOrTooMuchIsRefused) {
  Mixtures mixed(4);
  TrainStepOptions options = options_of(4, Loss::cross_entropy, LossWeights::none);
  Step plain_step(model(), options);
  expect_holds(error_of<ShapeError>([&] { plain_step.update(mixed.batch(0, 4), kRate); }), "two_labels");
  options.plan.two_labels = true;
  Step step(model(), options);
  for (const StateField field : {StateField::other_labels, StateField::shares, StateField::other_shares}) {
    Batch batch = mixed.batch(0, 4);
    std::erase_if(batch.fields, [&](const FieldView& given) { return given.field == field; });
    expect_holds(error_of<UsageError>([&] { step.update(batch, kRate); }), std::string(name_of(field)));
  }
  mixed.share[2] = kNaN;
  step.update(mixed.batch(0, 4), kRate);
  EXPECT_TRUE(std::isnan(step.wait_loss().value));
  for (const auto& [loss, weights] :
       {std::pair(Loss::mse, LossWeights::none), std::pair(Loss::cross_entropy, LossWeights::sample)}) {
    TrainStepOptions bad = options_of(4, loss, weights);
    bad.plan.two_labels = true;
    expect_holds(error_of<UsageError>([&] { Step refused(model(), bad); }), "two labels");
  }
}

}  // namespace
}  // namespace lockstep::nn
