// Tests TrainStep::reduce() and apply(), the two halves of an update, and the flat vectors that a program may change
// between them. For every kind of step, the two halves must give the same bits as update().

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/flat_vector.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

Model small() {
  ModelBuilder b("small", {6, 6, 3});
  const NodeId conv = b.conv2d("conv", b.input(), 5, {.kernel = 3, .pad = 1});
  b.linear("out", b.batch_norm("bn", conv), 3);
  return b.build();
}

/// Returns pairs of a number of ranks and options: one pair for each kind of step that handles gradients differently.
std::vector<std::pair<int, TrainStepOptions>> kinds() {
  const TrainStepOptions plain{.max_batch = 6, .seed = 3, .buckets = {.bucket_bytes = 2000}};
  std::vector<std::pair<int, TrainStepOptions>> all(6, {2, plain});
  all[0].first = 1;
  all[1].second.strategy = Strategy::zero1;
  all[1].second.optimizer.clip_norm = 0.1;
  all[2].second.virtual_ranks = 4;
  all[3].second.check_gradients = true;
  all[4].second.average.decay = 0.9;
  all[5].second.optimizer.kind = OptimizerKind::adamw;
  return all;
}

TEST(Halves, HaveTheBitsOfTheWhole) {
  int number = 0;
  for (const auto& kind : kinds()) {
    const auto& [ranks, options] = kind;
    comm::on_ranks(ranks, [&, o = options](comm::Communicator& grad, comm::Communicator&) {
      Step whole(grad, small(), o), halves(grad, small(), o);
      const std::int64_t parts = std::max<std::int64_t>(o.virtual_ranks / grad.size(), 1);
      for (std::int64_t i = 0; i < 3; ++i) {
        for (std::int64_t part = 0; part < parts; ++part) {
          Images images(i * 10 + part, grad.rank());
          whole.add(images.batch());
          halves.add(images.batch());
        }
        whole.update(0.05);
        halves.reduce();
        EXPECT_TRUE(halves.reduced());
        EXPECT_EQ(halves.steps(), i);
        halves.apply(0.05);
        EXPECT_EQ(halves.steps(), i + 1);
        EXPECT_EQ(whole.wait_loss().value, halves.wait_loss().value);
        ASSERT_EQ(whole.lasting(), halves.lasting()) << "kind " << number << ", step " << i;
      }
    });
    ++number;
  }
}

/// Abandoning a step after reduce() must change no parameter. Only the running statistics have changed, in forward.
TEST(Halves, ThatAreAbandonedChangeNoParameter) {
  const TrainStepOptions options{.max_batch = 6, .seed = 3};
  Step step(small(), options), expected(small(), options);
  const std::vector<double> before = step.values();
  for (int attempt = 0; attempt < 12; ++attempt) {  // more attempts than steps whose metrics are kept
    Images images(attempt);
    step.add(images.batch());
    step.reduce();
    EXPECT_EQ(step.wait_loss().step, 1);
    EXPECT_FALSE(step.metrics_of(1).empty());
    step.abandon();
  }
  EXPECT_EQ(step.values(), before);
  EXPECT_EQ(step.steps(), 0);
  Images images(99);
  images.train(step);
  images.train(expected);
  EXPECT_EQ(step.values(), expected.values());
  EXPECT_EQ(step.wait_loss().value, expected.wait_loss().value);
}

/// A flat vector must have elements for frozen parameters, too. The gradients of these elements must be 0.
TEST(FlatVectors, HaveRoomForFrozenParameters) {
  const Model model = small().freezing("conv");
  Step step(model, {.max_batch = 6, .seed = 3});
  const ParameterSet& set = step.parameters();
  const std::int64_t n = flat_size(set, FlatPart::values);
  ASSERT_EQ(flat_size(set, FlatPart::gradients), n);
  EXPECT_EQ(flat_size(set, FlatPart::values_and_statistics), n + 10);
  std::vector<double> gradients(static_cast<std::size_t>(n), 5);
  const TensorView vector(std::span<double>(gradients), {n});
  Images images(1);
  step.add(images.batch());
  step.reduce();
  step.read_gradients(vector);
  const std::size_t frozen = std::size_t{5} * 3 * 3 * 3;
  const std::size_t trained = gradients.size() - frozen;
  EXPECT_EQ(std::count(gradients.begin(), gradients.end(), 0), std::ptrdiff_t{frozen});
  EXPECT_EQ(gradients[trained], 0) << "frozen parameters are the last";
  std::vector<double> before(static_cast<std::size_t>(n)), after = before;
  const auto read = [&](std::vector<double>& values) {
    read_flat(step.context(), set, FlatPart::values, TensorView(std::span(values), {n}));
  };
  read(before);
  std::fill(gradients.begin(), gradients.end(), 2);
  step.write_gradients(vector);
  step.apply(0.5);
  read(after);
  for (std::size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(after[i], before[i] - (i < trained ? 1 : 0), 1e-6) << i;
  }
  write_flat(step.context(), step.parameters(), FlatPart::values, vector);
  read(after);
  EXPECT_EQ(after, std::vector<double>(static_cast<std::size_t>(n), 2));
}

// After abandon(), wait_loss() must return the loss of the last step that made an update, even if it has already
// returned the loss of the abandoned step.
TEST(Halves, AnAbandonedStepHasNoLoss) {
  Step step(small(), {.max_batch = 6, .seed = 3});
  Images images(6);
  step.update(images.batch(), 0.1);
  const StepLoss updated = step.wait_loss();
  ASSERT_EQ(updated.step, 1);
  step.add(images.batch());
  step.reduce();
  ASSERT_EQ(step.wait_loss().step, 2);
  ASSERT_NE(step.wait_loss().value, updated.value);
  step.abandon();
  EXPECT_EQ(step.wait_loss().step, 1);
  EXPECT_EQ(step.wait_loss().value, updated.value);
  EXPECT_TRUE(step.metrics_of(2).empty());
  step.update(images.batch(), 0.1);
  EXPECT_EQ(step.wait_loss().step, 2);
}

TEST(Halves, BadInput) {
  Step step(small(), {.max_batch = 6, .seed = 3});
  std::vector<double> few(3);
  const TensorView vector(std::span<double>(few), {3});
  expect_holds(error_of<StateError>([&] { step.reduce(); }), {"reduce() without a batch"});
  expect_holds(error_of<StateError>([&] { step.apply(0.1); }), {"apply() without reduce()"});
  expect_holds(error_of<StateError>([&] { step.read_gradients(vector); }), {"read_gradients() without gradients"});
  Images images(1);
  step.add(images.batch());
  expect_holds(error_of<ShapeError>([&] { step.write_gradients(vector); }), {"vector is (3)", "expected one axis of"});
  step.reduce();
  expect_holds(error_of<StateError>([&] { step.reduce(); }), {"reduce() after reduce()", "apply() or abandon()"});
  expect_holds(error_of<StateError>([&] { step.update(0.1); }), {"update() after reduce()"});
  expect_holds(error_of<StateError>([&] { step.add(images.batch()); }), {"add() after reduce()"});
  std::vector<double> all(static_cast<std::size_t>(flat_size(step.parameters(), FlatPart::values)));
  expect_holds(error_of<UsageError>([&] {
                 write_flat(step.context(), step.parameters(), FlatPart::values,
                            TensorView(std::span(all), {std::ssize(all)}), 2);
               }),
               {"factor is 2", "expected 1"});
  TrainStepOptions given{.max_batch = 1, .plan = {.loss = Loss::given}};
  given.plan.weights = LossWeights::sample;
  expect_holds(error_of<UsageError>([&] { static_cast<void>(checked_options(given, 1)); }),
               {"the loss is given and has weights"});
  given.plan.weights = LossWeights::none;
  given.virtual_ranks = 2;
  expect_holds(error_of<UsageError>([&] { static_cast<void>(checked_options(given, 1)); }), {"2 virtual ranks"});
}

}  // namespace
}  // namespace lockstep::nn
