// Tests TrainStep. The update must be the same however a batch is divided into micro-batches and ranks. It is compared
// with a step made by hand.
#include <array>
#include <cstring>
#include <limits>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/nn/data/partition.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/net.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::to_doubles;

constexpr std::int64_t kFeatures = 5;
constexpr std::int64_t kOutputs = 2;
constexpr double kRate = 0.05;

Model regression() {
  ModelBuilder b("regression", {kFeatures});
  b.linear("2", b.linear("1", b.input(), 7, {.activation = ops::Activation::tanh}), kOutputs);
  return b.build();
}

/// Data with normally distributed inputs, and with targets that are a function of the inputs.
struct Data {
  explicit Data(std::int64_t n, std::uint64_t seed = 3) : x(normal_numbers(n * kFeatures, seed)), rows(n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double* row = x.data() + i * kFeatures;
      y.push_back(row[0] - 0.5 * row[1]);
      y.push_back(0.3 * row[2] * row[3]);
    }
  }
  [[nodiscard]] Batch batch(std::int64_t begin, std::int64_t count) {
    Batch made;
    made.fields = {{StateField::values, TensorView(std::span(x), {rows, kFeatures}).slice(0, begin, begin + count)},
                   {StateField::targets, TensorView(std::span(y), {rows, kOutputs}).slice(0, begin, begin + count)}};
    return made;
  }
  std::vector<double> x;  // inputs, shape (rows, kFeatures)
  std::vector<double> y;  // targets, shape (rows, kOutputs)
  std::int64_t rows;
};

TrainStepOptions options_of(std::int64_t max_batch, OptimizerKind kind = OptimizerKind::sgd) {
  return {.max_batch = max_batch,
          .seed = 11,
          .plan = {.dtype = DType::f64, .loss = Loss::mse},
          .optimizer = {.kind = kind},
          .weight_decay = 0.01};
}

/// The oracle: `steps` updates from the whole batch, made by hand from plan and optimizer.
struct ByHand {
  ByHand(Data& data, int steps, OptimizerOptions optimizer_options, double weight_decay) {
    CpuContext context;
    const Model model = regression();
    const PlanOptions plan_options{.dtype = DType::f64, .loss = Loss::mse};
    ParameterSet set(context, model, DType::f64, {.weight_decay = weight_decay});
    Optimizer optimizer(context, set, optimizer_options);
    Plan plan(context, model, Mode::train, data.rows, plan_options);
    StepState state(context, data.rows, step_layout(model, plan_options));
    const Buffer workspace(plan.workspace_bytes(), context);
    set.initialise(context, 11);
    plan.bind(set, state, workspace);
    for (int step = 0; step < steps; ++step) {
      std::memcpy(state.view(StateField::values).data, data.x.data(), data.x.size() * sizeof(double));
      std::memcpy(state.view(StateField::targets).data, data.y.data(), data.y.size() * sizeof(double));
      state.set(context, {.learning_rate = kRate,
                          .sample_weight = 1.0 / static_cast<double>(data.rows),
                          .valid = data.rows,
                          .epoch = 0});
      plan.run(context);
      losses.push_back(state.metrics(context).loss_sum / static_cast<double>(data.rows));
      optimizer.update(context, state.view(StateField::learning_rate));
    }
    parameters = to_doubles(set.values());
  }
  std::vector<double> losses;
  std::vector<double> parameters;
};

void expect_near(const TensorView& got, std::vector<double>& expected, double tolerance, const std::string& what) {
  testing::expect_close(got, TensorView(std::span(expected), got.shape), tolerance, what);
}

// Dropout must draw new random numbers in each step. A learning rate of 0 changes no parameter, so losses of one batch
// differ only by dropout.
TEST(TrainStep, DropoutDrawsAnewInEachStep) {
  ModelBuilder b("dropout", {kFeatures});
  b.linear("2", b.dropout("drop", b.linear("1", b.input(), 32), 0.5), kOutputs);
  const Model model = b.build();
  Data data(4);
  TrainStepOptions options = options_of(4);
  options.weight_decay = 0;
  Step step(model, options);
  const auto loss = [&](const Batch& batch) {
    step.update(batch, 0);
    return step.wait_loss().value;
  };
  // Without sample ids and epochs, each step must draw new random numbers, also with micro-batches.
  const double first = loss(data.batch(0, 4));
  const double second = loss(data.batch(0, 4));
  EXPECT_NE(first, second);
  step.add(data.batch(0, 4));
  EXPECT_NE(loss(data.batch(0, 4)), second);
  // If a batch gives sample ids and an epoch, these alone decide the drawn numbers.
  std::vector<std::int64_t> ids{7, 1, 3, 5};
  Batch named = data.batch(0, 4);
  named.fields.push_back({StateField::sample_ids, TensorView(std::span(ids), {4})});
  const double once = loss(named);
  EXPECT_EQ(loss(named), once) << "the same ids in the same epoch";
  named.epoch = 1;
  EXPECT_NE(loss(named), once);
  // continue_from() sets the number of steps, so this step draws the numbers of the second step above.
  Step other(model, options);
  other.continue_from(1, 1);
  other.update(data.batch(0, 4), 0);
  EXPECT_EQ(other.wait_loss().value, second);
}

TEST(TrainStep, TellsTheWatchdogHowFarBackwardIs) {
  comm::detail::Progress progress{};
  comm::Watchdog watchdog(
      3600, [](const std::string&) {}, {}, &progress);
  std::vector<std::string> texts;
  TrainStepOptions options = options_of(4);
  options.buckets = {.bucket_bytes = 64, .tail_bytes = 64};
  options.sums.hook = comm::make_gradient_hook(
      "note", [&](const TensorView&, Stream&, comm::Communicator&) { texts.push_back(progress.text()); });
  CpuContext context;
  const auto alone = comm::LocalGroup(1).communicator(0);
  TrainStep step(context, {*alone, context.stream(), &watchdog}, regression(), options);
  Data data(4);
  step.update(data.batch(0, 4), kRate);
  step.update(data.batch(0, 4), kRate);
  const std::vector<comm::Bucket>& buckets = step.reducer().buckets();
  ASSERT_GT(buckets.size(), 2U);
  ASSERT_EQ(texts.size(), 2 * buckets.size());
  for (std::size_t k = 0; k < texts.size(); ++k) {
    const std::string step_text = concat("reducing gradients of step ", 1 + k / buckets.size(), ", ");
    ASSERT_EQ(texts[k].substr(0, step_text.size()), step_text);
    const std::size_t bucket = k % buckets.size();
    const std::size_t enqueued = std::stoul(texts[k].substr(step_text.size()));
    // One gradient may complete several buckets, as backward of a layer writes all of its gradients at once.
    EXPECT_TRUE(bucket == 0 ? enqueued == 0 : enqueued <= bucket) << texts[k];
    testing::expect_holds(texts[k], concat(" of ", buckets.size(), " buckets enqueued, "));
    const bool second_layer = texts[k].find(" enqueued, 2.") != std::string::npos;
    EXPECT_TRUE(second_layer || texts[k].find(" enqueued, 1.") != std::string::npos) << texts[k];
    EXPECT_EQ(second_layer, buckets[bucket].first < 2) << texts[k];
  }
}

TEST(TrainStep, CountsItsSamples) {
  Data data(13);
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw, OptimizerKind::lars}) {
    for (const double clip : {0.0, 0.1}) {
      TrainStepOptions options = options_of(20, kind);
      options.optimizer.clip_norm = clip;
      ByHand oracle(data, 4, options.optimizer, options.weight_decay);
      Step step(regression(), options);
      for (int i = 0; i < 4; ++i) {
        step.update(data.batch(0, 13), kRate);
        const StepLoss loss = step.wait_loss();
        EXPECT_EQ(loss.step, i + 1);
        EXPECT_NEAR(loss.value, oracle.losses[static_cast<std::size_t>(i)], 1e-12);
      }
      expect_near(step.parameters().values(), oracle.parameters, 1e-12, concat(name_of(kind), ' ', clip));
    }
  }
}

TEST(TrainStep, WithALossScale) {
  Data data(13);
  TrainStepOptions options = options_of(13);
  ByHand oracle(data, 3, options.optimizer, options.weight_decay);
  options.optimizer.loss_scale = {.kind = LossScale::Kind::fixed, .initial = 512};
  Step step(regression(), options);
  for (int i = 0; i < 3; ++i) {
    step.update(data.batch(0, 13), kRate);
  }
  step.synchronize();
  expect_near(step.parameters().values(), oracle.parameters, 1e-12, "fixed scale");
}

TEST(TrainStep, MicroBatchesOfAnyNumber) {
  Data data(13);
  TrainStepOptions options = options_of(8);
  ByHand oracle(data, 3, options.optimizer, options.weight_decay);
  const std::vector<std::vector<std::int64_t>> cuts{{0, 8, 13}, {0, 1, 2, 7, 13}, {0, 5, 5, 13}};
  for (const std::vector<std::int64_t>& cut : cuts) {
    for (const bool joined : {false, true}) {  // true: update(batch, rate) takes the last micro-batch
      Step step(regression(), options);
      for (int i = 0; i < 3; ++i) {
        for (std::size_t part = 0; part + 1 < cut.size(); ++part) {
          const Batch batch = data.batch(cut[part], cut[part + 1] - cut[part]);
          if (joined && part + 2 == cut.size()) {
            step.update(batch, kRate);
          } else {
            step.add(batch);
          }
        }
        if (!joined) {
          step.update(kRate);
        }
        EXPECT_NEAR(step.wait_loss().value, oracle.losses[static_cast<std::size_t>(i)], 1e-12);
      }
      expect_near(step.parameters().values(), oracle.parameters, 1e-12, "cut");
      EXPECT_EQ(step.steps(), 3);
      EXPECT_EQ(step.loss().step, 3);
    }
  }
}

TEST(TrainStep, RanksWithUnequalParts) {
  Data whole(13);
  TrainStepOptions options = options_of(13);
  options.optimizer.clip_norm = 0.2;
  ByHand oracle(whole, 4, options.optimizer, options.weight_decay);
  for (const int ranks : {2, 3}) {
    for (const bool overlap : {false, true}) {
      comm::on_ranks(ranks, [&](comm::Communicator& grad) {
        Data data(13);
        std::vector<double> expected = oracle.parameters;
        CpuContext context;
        Stream stream = overlap ? Stream::host_worker("reduce") : Stream::host_inline();
        TrainStepOptions mine = options;
        mine.buckets.bucket_bytes = 64;
        TrainStep step(context, {grad, stream}, regression(), mine);
        // Rank 0 has one sample, the last rank the other samples; the second of three ranks has none.
        const bool first = grad.rank() == 0;
        const bool last = grad.rank() == grad.size() - 1;
        for (int i = 0; i < 4; ++i) {
          if (last) {
            step.add(data.batch(1, 5));
            step.update(data.batch(6, 7), kRate);
          } else {
            step.update(data.batch(0, first ? 1 : 0), kRate);
          }
        }
        step.synchronize();
        expect_near(step.parameters().values(), expected, 1e-12, concat(ranks, " ranks"));
      });
    }
  }
}

TEST(TrainStep, AStepWithoutSamplesChangesNothingAndIsAnError) {
  Data data(4);
  Batch none = data.batch(0, 4);
  none.valid = 0;
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    Step step(regression(), options_of(4, kind));  // the options have momentum and weight decay
    step.update(data.batch(0, 4), kRate);
    const auto before = step.lasting();
    const std::vector<double> values = step.values();
    step.update(none, kRate);
    EXPECT_EQ(error_of<DataError>([&] { (void)step.wait_loss(); }),
              "step 2 had no samples that count on any rank, expected at least one; it changed nothing");
    EXPECT_EQ(step.lasting(), before);
    step.update(data.batch(0, 4), kRate);
    EXPECT_TRUE(std::isfinite(step.wait_loss().value));
    EXPECT_NE(step.values(), values) << "control";
  }
}

TEST(TrainStep, AbandonForgets) {
  Data data(13);
  TrainStepOptions options = options_of(13);
  ByHand oracle(data, 2, options.optimizer, options.weight_decay);
  Step step(regression(), options);
  for (int i = 0; i < 2; ++i) {
    step.add(data.batch(2, 9));
    step.abandon();
    step.update(data.batch(0, 13), kRate);
    EXPECT_NEAR(step.wait_loss().value, oracle.losses[static_cast<std::size_t>(i)], 1e-12);
  }
  expect_near(step.parameters().values(), oracle.parameters, 1e-12, "abandoned");
  EXPECT_NEAR(step.take_trained().samples, 26, 0);
}

// The loss of a step must not include an evaluation or abandoned micro-batches, whenever the program calls loss().
TEST(TrainStep, TheLossIsThatOfTheStepAlone) {
  Data data(13);
  Data other(9, 77);
  TrainStepOptions options = options_of(13);
  ByHand oracle(data, 4, options.optimizer, options.weight_decay);
  Step step(regression(), options);
  for (int i = 0; i < 4; ++i) {
    step.evaluate(other.batch(0, 9));
    step.add(data.batch(0, 6));
    if (i % 2 == 0) {
      (void)step.loss();
    }
    step.update(data.batch(6, 7), kRate);
    step.add(other.batch(0, 4));  // adds samples before the loss of the step is taken
    if (i == 1) {
      (void)step.loss();
    }
    step.abandon();
    EXPECT_NEAR(step.wait_loss().value, oracle.losses[static_cast<std::size_t>(i)], 1e-12) << i;
    EXPECT_EQ(step.loss().step, i + 1);
  }
  EXPECT_EQ(step.take_trained().samples, 4 * 13);
  EXPECT_EQ(step.take_evaluated().samples, 4 * 9);
}

TEST(TrainStep, WithoutSamplesIsAnErrorAlsoWhereTheLossWasAskedForBetween) {
  Data data(4);
  Step step(regression(), options_of(4));
  Batch none = data.batch(0, 4);
  none.valid = 0;
  step.add(none);
  (void)step.loss();
  step.update(kRate);
  EXPECT_THROW((void)step.wait_loss(), DataError);
}

TEST(TrainStep, TheCountIsNotRounded) {
  TrainStepOptions options = options_of(4);
  options.plan.dtype = DType::f32;
  options.sums.dtype = DType::bf16;
  EXPECT_THROW(Step(regression(), options), UsageError);
  options.count_samples = false;
  EXPECT_NO_THROW(Step(regression(), options));
}

TEST(TrainStep, TakesFieldsInAnyOrderOfAxes) {
  Data data(6);
  TrainStepOptions options = options_of(6);
  ByHand oracle(data, 1, options.optimizer, options.weight_decay);
  std::vector<float> turned(data.x.size());  // inputs of sample 3 a + b at (a, feature, b) of (2, kFeatures, 3)
  for (std::int64_t n = 0; n < 6; ++n) {
    for (std::int64_t c = 0; c < kFeatures; ++c) {
      turned[static_cast<std::size_t>((n / 3 * kFeatures + c) * 3 + n % 3)] =
          static_cast<float>(data.x[static_cast<std::size_t>(n * kFeatures + c)]);
    }
  }
  Step step(regression(), options);
  step.update({{StateField::values, TensorView(std::span(turned), {2, kFeatures, 3}), "ncn"},
               {StateField::targets, TensorView(std::span(data.y), {6, kOutputs})}},
              kRate);
  EXPECT_NEAR(step.wait_loss().value, oracle.losses[0], 1e-6);
  expect_near(step.parameters().values(), oracle.parameters, 1e-6, "f32 inputs, turned");
}

TEST(TrainStep, BadInputIsSaidInTheUsersWordsAndChangesNothing) {
  Data data(13);
  const TrainStepOptions options = options_of(8);
  Step step(regression(), options);
  const std::vector<double> before = to_doubles(step.parameters().values());
  EXPECT_EQ(error_of<UsageError>([&] { step.add(data.batch(0, 9)); }),
            "the batch has 9 samples, expected at most 8 (max_batch)");
  EXPECT_EQ(error_of<StateError>([&] { step.update(kRate); }),
            "train step: update() without a batch, expected add() before");
  EXPECT_EQ(error_of<UsageError>([&] {
              step.update({{StateField::values, TensorView(std::span(data.x), {13, kFeatures}).slice(0, 0, 4)}}, kRate);
            }),
            "the batch has no field 'targets', expected it for model regression for its loss (PlanOptions::loss)");
  const auto changed = [&](auto change) {
    return [&, change] {
      Batch batch = data.batch(0, 4);
      change(batch);
      step.add(batch);
    };
  };
  EXPECT_EQ(error_of<ShapeError>(changed([](Batch& b) { b.fields[0].view = b.fields[0].view.slice(1, 0, 3); })),
            "the input has 3 features, model regression takes 5");
  EXPECT_EQ(error_of<ShapeError>(changed([](Batch& b) { b.fields[1].view = b.fields[1].view.slice(0, 0, 3); })),
            "the batch has 4 samples in values and 3 in targets, expected as many in each");
  EXPECT_EQ(error_of<UsageError>(changed([](Batch& b) { b.valid = 5; })),
            "the batch has 4 samples, of which 5 are to count, expected 0 to 4");
  EXPECT_THROW(changed([](Batch& b) { b.global_valid = 4; })(), UsageError);
  EXPECT_EQ(to_doubles(step.parameters().values()), before);
  EXPECT_EQ(step.steps(), 0);
  step.update(data.batch(0, 4), kRate);
  EXPECT_EQ(step.wait_loss().step, 1) << "nothing of it stays";
  EXPECT_THROW(Step(regression(), options_of(0)), UsageError);
}

TEST(TrainStep, OneMicroBatchWhereOneWasAnnounced) {
  Data data(4);
  TrainStepOptions options = options_of(4);
  options.microbatches = 1;
  Step step(regression(), options);
  step.add(data.batch(0, 2));
  EXPECT_THROW(step.add(data.batch(2, 2)), StateError);
  step.update(kRate);
  EXPECT_EQ(step.wait_loss().step, 1);
}

TEST(TrainStep, LentMemoryHoldsWhatTheStepLearns) {
  CpuContext context;
  const Model model = regression();
  Data data(8);
  TrainStepOptions options = options_of(8, OptimizerKind::adam);
  Step own(model, options);
  ParameterSet lender(context, model, DType::f64);
  options.lent = lender.arenas();
  {
    Step lent(model, options);
    EXPECT_EQ(lent.added(), 0);
    for (int i = 0; i < 3; ++i) {
      own.add(data.batch(0, 8));
      own.update(kRate);
      lent.add(data.batch(0, 8));
      EXPECT_EQ(lent.added(), 1);
      const std::uint64_t version = lender.version();
      lent.update(kRate);
      EXPECT_GT(lender.version(), version) << "an Inference over the lender packs the new weights";
    }
    EXPECT_TRUE(testing::has_same_bits(lender.values(), lent.parameters().values()));
  }
  // The parameters must keep their values after the step is destroyed.
  EXPECT_TRUE(testing::has_same_bits(lender.values(), own.parameters().values()));
}

}  // namespace
}  // namespace lockstep::nn
