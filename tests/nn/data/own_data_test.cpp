// Tests training on a user's own data: tensors in memory, a regression, sequences, several ranks, and a resumed run.
#include <cstring>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::to_doubles;

constexpr std::int64_t kSize = 50;

/// A data set in memory for linear regression: normal inputs of shape (kSize, 3), and targets of shape (kSize, 1),
/// which are the inputs' product with (1, -2, 0.5).
struct Line {
  explicit Line(std::uint64_t seed) {
    Random random(seed, RandomUse::test);
    for (std::int64_t i = 0; i < kSize; ++i) {
      const double a = random.normal(), b = random.normal(), c = random.normal();
      x.insert(x.end(), {a, b, c});
      y.push_back(a - 2 * b + 0.5 * c);
    }
  }
  [[nodiscard]] MemoryDataset dataset(const std::string& name = "line", const TensorView& weights = {}) {
    std::vector<FieldView> fields{values(), targets()};
    if (weights.given()) {
      fields.push_back({StateField::weights, weights});
    }
    return {name, fields};
  }
  [[nodiscard]] FieldView values() { return {StateField::values, TensorView(std::span(x), {kSize, 3})}; }
  [[nodiscard]] FieldView targets() { return {StateField::targets, TensorView(std::span(y), {kSize, 1})}; }
  std::vector<double> x, y;
};

Model linear() {
  ModelBuilder b("line", {3});
  b.linear("fc", b.input(), 1);
  return b.build();
}

TrainerOptions regression_options(int workers = 1) {
  TrainerOptions options{.global_batch = 7, .schedule = {.base = 0.05}, .keep_last = true, .loader_workers = workers};
  options.step.plan = {.dtype = DType::f64, .loss = Loss::mse};
  options.step.weight_decay = 0;
  return options;
}

TrainerSetup regression(int ranks, const TrainingData& data) {
  return {.ranks = ranks, .options = regression_options(), .model = linear(), .data = data};
}

/// The parameters after some epochs, and the last test loss.
struct Outcome {
  std::vector<double> parameters;
  double test_loss = 0;
};

Outcome trained(int ranks, std::int64_t epochs, const std::string& folder = {}, bool resume = false) {
  Outcome outcome;
  Line train(1), test(2);
  const MemoryDataset train_set = train.dataset(), test_set = test.dataset();
  on_trainers(regression(ranks, {train_set, test_set}), [&](Trainer& trainer, comm::Communicator& control) {
    const RunIdentity identity = identity_of(trainer);
    RunProgress progress;
    if (resume) {
      std::string differences = "not read";
      progress = resume_if_there(folder + "/last", trainer, control, identity, &differences);
      EXPECT_EQ(differences, "");
      EXPECT_EQ(progress.position.epoch, 2);
    }
    RunObserver silent;
    run_training(trainer, control, identity, {.epochs = epochs, .checkpoint_dir = folder}, progress, silent);
    const double loss = trainer.evaluate().loss();
    if (control.rank() == 0) {
      outcome = {to_doubles(trainer.parameters().values()), loss};
    }
  });
  return outcome;
}

TEST(OwnData, RegressionOnAnyNumberOfRanks) {
  const Outcome one = trained(1, 30);
  EXPECT_LT(one.test_loss, 1e-4);
  for (const int ranks : {2, 3}) {
    Outcome several = trained(ranks, 30);
    std::vector<double> expected = one.parameters;
    const Shape shape{static_cast<std::int64_t>(expected.size())};
    testing::expect_close(TensorView(std::span(several.parameters), shape), TensorView(std::span(expected), shape),
                          1e-10);
  }
}

TEST(OwnData, ResumeGoesOnBitForBit) {
  const testing::TemporaryFolder folder;
  const Outcome whole = trained(2, 5);
  (void)trained(2, 2, folder.path() + "/run");
  EXPECT_EQ(trained(2, 5, folder.path() + "/run", true).parameters, whole.parameters);
}

/// Returns parameters and metrics after two epochs of weighted samples. Each sample has one weight, or the same weight
/// for each element. The target of a sample with weight 0 is NaN, which must have no effect.
Outcome weighed(int ranks, LossWeights kind, std::int64_t accumulate) {
  Line train(1);
  std::vector<double> weights;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kSize); ++i) {
    weights.push_back(static_cast<double>(i % 3) * 1e-3);
    if (i % 3 == 0) {
      train.y[i] = std::nan("");
    }
  }
  const TensorView w = TensorView(std::span(weights), kind == LossWeights::element ? Shape{kSize, 1} : Shape{kSize});
  const MemoryDataset set = train.dataset("weighed", w);
  TrainerSetup setup = regression(ranks, {set, set});
  setup.options.global_batch = 10;
  setup.options.step.plan.weights = kind;
  setup.options.accumulate = accumulate;
  Outcome outcome;
  on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
    steps(trainer, static_cast<int>(2 * trainer.batches_per_epoch()));
    const Metrics trained = trainer.take_metrics();
    EXPECT_EQ(trained.samples, 100);
    EXPECT_NEAR(trained.weight, 2 * 0.049, 1e-12);
    const Metrics tested = trainer.evaluate();
    EXPECT_EQ(tested.samples, 50);
    EXPECT_NEAR(tested.weight, 0.049, 1e-12);
    if (control.rank() == 0) {
      outcome = {to_doubles(trainer.parameters().values()), tested.loss()};
      outcome.parameters.push_back(trained.loss());
    }
  });
  return outcome;
}

TEST(OwnData, WeightsOnAnyNumberOfRanks) {
  const Outcome one = weighed(1, LossWeights::sample, 1);
  EXPECT_TRUE(std::isfinite(one.test_loss));
  for (const int ranks : {1, 2, 3}) {
    for (const LossWeights kind : {LossWeights::sample, LossWeights::element}) {
      for (const std::int64_t accumulate : {1, 2}) {
        const Outcome other = weighed(ranks, kind, accumulate);
        ASSERT_EQ(other.parameters.size(), one.parameters.size());
        for (std::size_t i = 0; i < one.parameters.size(); ++i) {
          EXPECT_NEAR(other.parameters[i], one.parameters[i], 1e-12) << ranks << ' ' << name_of(kind);
        }
        EXPECT_NEAR(other.test_loss, one.test_loss, 1e-12);
      }
    }
  }
}

TEST(OwnData, RanksAgreeOnTheKindOfWeights) {
  Line line(1);
  std::vector<double> ones(static_cast<std::size_t>(kSize), 1);
  const MemoryDataset by_sample = line.dataset("by sample", TensorView(std::span(ones), {kSize}));
  const MemoryDataset by_element = line.dataset("by element", TensorView(std::span(ones), {kSize, 1}));
  const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
    CpuContext context({.threads = 1});
    TrainerOptions options = regression_options();
    options.step.plan.weights = grad.rank() == 0 ? LossWeights::sample : LossWeights::element;
    const MemoryDataset& own = grad.rank() == 0 ? by_sample : by_element;
    Trainer trainer(context, {grad, control, context.stream()}, linear(), {own, own}, options);
    trainer.start();
  });
  expect_all_say(failures, "loss_weights");
}

TEST(OwnData, SequencesOfTokens) {
  constexpr std::int64_t kLength = 8;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(kSize * kLength));  // i64, which the loader converts
  std::vector<std::int64_t> next(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int64_t>(i * 3 % 5);
    next[i] = (tokens[i] + 3) % 5;
  }
  const TensorView view(std::span<std::int64_t>{tokens}, {kSize, kLength});
  const TensorView answers(std::span<std::int64_t>{next}, {kSize, kLength});
  const MemoryDataset set("counting", {{StateField::tokens, view}, {StateField::labels, answers}});
  const TrainerSetup setup{
      .options = {.global_batch = 10,
                  .step = {.optimizer = {.kind = OptimizerKind::adam}, .weight_decay = 1e-4},
                  .schedule = {.base = 0.01}},
      .model = transformer({.vocabulary = 5, .length = kLength, .width = 16, .heads = 2, .layers = 1}),
      .data = TrainingData{set, set}};
  on_trainers(setup, [](Trainer& trainer, comm::Communicator& control) {
    RunObserver silent;
    run_training(trainer, control, identity_of(trainer), {.epochs = 20}, {}, silent);
    EXPECT_LT(trainer.evaluate().loss(), 0.05);
  });
}

TEST(OwnData, WhatDoesNotFitTheModel) {
  Line line(1);
  const MemoryDataset good = line.dataset();
  const MemoryDataset narrow("narrow", {{StateField::values, line.values().view.slice(1, 0, 2)}, line.targets()});
  const MemoryDataset blind("blind", {line.values()});
  CpuContext context;
  const auto grad = comm::LocalGroup(1).communicator(0);
  const auto control = comm::LocalGroup(1).communicator(0);
  TrainerOptions options = regression_options();
  const auto with = [&](const Dataset& train, const Dataset& test) {
    const Trainer trainer(context, {*grad, *control, context.stream()}, linear(), {train, test}, options);
  };
  EXPECT_EQ(error_of<ShapeError>([&] { with(narrow, good); }), "narrow: the input has 2 features, model line takes 3");
  EXPECT_EQ(error_of<UsageError>([&] { with(good, blind); }),
            "blind: the batch has no field 'targets', expected it for model line for its loss (PlanOptions::loss)");
  std::vector<double> ones(static_cast<std::size_t>(kSize), 1);
  const MemoryDataset weighed = line.dataset("weighed", TensorView(std::span(ones), {kSize}));
  EXPECT_EQ(error_of<ShapeError>([&] { with(weighed, good); }),
            "weighed: model line takes no weights: it is planned without (PlanOptions::weights)");
  options.pictures = PicturesOn::device;
  EXPECT_EQ(error_of<UsageError>([&] { with(good, good); }),
            concat("trainer: pictures become images on 'device', and ", good.name(),
                   " leaves nothing to a device, expected 'host'"));
  const FieldView short_of_one{StateField::targets, TensorView(std::span(line.y).first(49), {49, 1})};
  EXPECT_THROW(MemoryDataset("two", {line.values(), short_of_one}), ShapeError);
  EXPECT_THROW(MemoryDataset("none", {}), UsageError);
  EXPECT_THROW(MemoryDataset("twice", {line.values(), line.values()}), UsageError);
}

}  // namespace
}  // namespace lockstep::nn
