// Tests batch norm over the batches of all ranks: compares P ranks with one rank that has the whole batch. Ranks are
// threads here; sync_batch_norm_mpi_test.cpp runs processes.
#include "tests/nn/step/sync_batch_norm_runs.hpp"

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/run/checkpoint.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/comm/wrapped_communicator.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;

/// Returns the outcome of every rank.
std::vector<SyncOutcome> train(int ranks, const SyncRun& run) {
  std::vector<SyncOutcome> outcomes(static_cast<std::size_t>(ranks));
  comm::on_ranks(ranks, [&](comm::Communicator& grad, comm::Communicator& control) {
    const auto statistics = grad.split(0, grad.rank());
    outcomes[static_cast<std::size_t>(grad.rank())] = train_rank(run, grad, control, *statistics);
  });
  return outcomes;
}

TEST(SyncBatchNorm, RanksComeToWhatOneRankComesTo) {
  for (const auto& [dtype, tolerance] : {std::pair(DType::f64, 1e-12), std::pair(DType::f32, 1e-4)}) {
    const SyncOutcome one = train_alone({.dtype = dtype});
    for (const int ranks : {2, 3, 4}) {
      const std::vector<SyncOutcome> all = train(ranks, {.dtype = dtype});
      const double error = distance(all[0], one);
      EXPECT_TRUE(error <= tolerance) << ranks << " ranks, " << dtype << ": " << error;
      for (const SyncOutcome& other : all) {
        EXPECT_EQ(other.values, all[0].values) << ranks;
        EXPECT_EQ(other.statistics, all[0].statistics) << ranks;
      }
    }
    const std::vector<SyncOutcome> control = train(2, {.dtype = dtype, .sync = false});
    EXPECT_GT(distance(control[0], one), 1e-2) << "each rank's own statistics must show";
    EXPECT_NE(control[0].statistics, control[1].statistics);
  }
}

TEST(SyncBatchNorm, StreamsAndCommunicatorsDoNotChangeTheBits) {
  const std::vector<SyncOutcome> first = train(3, {.steps = 4});
  for (const bool overlap : {false, true}) {
    for (const bool beside : {false, true}) {
      for (const bool on_worker : {false, true}) {
        const std::vector<SyncOutcome> outcomes =
            train(3, {.steps = 4, .overlap = overlap, .beside = beside, .on_worker = on_worker});
        EXPECT_EQ(outcomes[1].values, first[0].values) << overlap << beside << on_worker;
        EXPECT_EQ(outcomes[2].statistics, first[0].statistics) << overlap << beside << on_worker;
      }
    }
  }
  EXPECT_NE(train(3, {.steps = 3})[0].values, first[0].values) << "the control";
}

TEST(SyncBatchNorm, SixteenBitActivationsHaveF32Statistics) {
  const SyncOutcome one = train_alone({.dtype = DType::bf16, .steps = 3});
  const double error = distance(train(2, {.dtype = DType::bf16, .steps = 3})[0], one);
  const double control = distance(train(2, {.dtype = DType::bf16, .steps = 3, .sync = false})[0], one);
  EXPECT_TRUE(error <= 1e-2) << error;
  EXPECT_GT(control, 3 * error);
}

TEST(SyncBatchNorm, OneRankHasTheSameBitsWithAndWithout) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const SyncOutcome without = train_alone({.dtype = dtype});
    const SyncOutcome with = train_alone({.dtype = dtype}, true);
    EXPECT_EQ(with.values, without.values);
    EXPECT_EQ(with.statistics, without.statistics);
  }
}

// ---- a step without a trainer --------------------------------------------------------------------------------------

constexpr std::int64_t kFeatures = 5;

Model small_model() {
  ModelBuilder b("small", {kFeatures});
  NodeId x = b.batch_norm("bn1", b.linear("1", b.input(), 9), {.relu = true});
  const NodeId shortcut = x;
  x = b.batch_norm("bn2", b.linear("2", x, 9), {.relu = true, .residual = shortcut});
  b.linear("3", x, 2);
  return b.build();
}

struct Samples {
  explicit Samples(std::int64_t count)
      : rows(count), x(normal_numbers(count * kFeatures, 3)), y(normal_numbers(2 * count, 4)) {}
  /// Returns a batch of samples [begin, end), of which the first `valid` count.
  Batch batch(std::int64_t begin, std::int64_t end, std::int64_t valid = Batch::kAllRows) {
    Batch made;
    made.fields = {{StateField::values, TensorView(std::span(x), {rows, kFeatures}).slice(0, begin, end)},
                   {StateField::targets, TensorView(std::span(y), {rows, 2}).slice(0, begin, end)}};
    made.valid = valid;
    return made;
  }
  std::int64_t rows;
  std::vector<double> x, y;
};

TrainStepOptions step_options(std::int64_t max_batch) {
  return {.max_batch = max_batch, .sync_batch_norm = true, .plan = {.dtype = DType::f64, .loss = Loss::mse}};
}

/// Returns rank 0's values and running statistics after body(step, rank) on each of the ranks.
template <class Body>
std::pair<std::vector<double>, std::vector<double>> after(int ranks, Body&& body) {
  std::pair<std::vector<double>, std::vector<double>> result;
  comm::on_ranks(ranks, [&](comm::Communicator& grad) {
    Step step(grad, small_model(), step_options(12));
    body(step, grad.rank());
    if (grad.rank() == 0) {
      result = {step.values(), testing::to_doubles(step.parameters().buffer_arena())};
    }
  });
  return result;
}

TEST(SyncBatchNorm, MicrobatchesOfAllRanksAreOne) {
  // There are two micro-batches, samples 0 to 6 and samples 7 to 11. The second of three ranks has no valid sample in
  // the first micro-batch and one in the second.
  Samples samples(12);
  const auto one = after(1, [&](TrainStep& step, int) {
    for (int i = 0; i < 3; ++i) {
      step.add(samples.batch(0, 7));
      step.update(samples.batch(7, 12), 0.05);
    }
  });
  const auto three = after(3, [&](TrainStep& step, int rank) {
    for (int i = 0; i < 3; ++i) {
      step.add(rank == 0 ? samples.batch(0, 4) : rank == 1 ? samples.batch(0, 2, 0) : samples.batch(4, 7));
      step.add(rank == 0 ? samples.batch(7, 9) : rank == 1 ? samples.batch(9, 10) : samples.batch(10, 12));
      step.update(0.05);
    }
  });
  EXPECT_TRUE(distance(three.first, one.first) <= 1e-12) << distance(three.first, one.first);
  EXPECT_TRUE(distance(three.second, one.second) <= 1e-12) << distance(three.second, one.second);
  const auto whole = after(1, [&](TrainStep& step, int) {  // the control: another division into micro-batches
    for (int i = 0; i < 3; ++i) {
      step.update(samples.batch(0, 12), 0.05);
    }
  });
  EXPECT_GT(distance(whole.first, one.first), 1e-3);
}

TEST(SyncBatchNorm, ARankWhoseNeighbourFailsEnds) {
  Samples samples(4);
  const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad) {
    Step step(grad, small_model(), step_options(4));
    step.update(samples.batch(0, 4), 0.1);
    const Batch next = grad.rank() == 1 ? samples.batch(0, 2, 3) : samples.batch(0, 4);
    step.update(next, 0.1);
  });
  EXPECT_EQ(failures[1], "the batch has 2 samples, of which 3 are to count, expected 0 to 2");
  EXPECT_EQ(failures[0].substr(0, 6), "peer: ") << failures[0];
  testing::expect_holds(failures[0], "bn1 batch_norm gather");
}

TEST(SyncBatchNorm, OneExchangeALayerAndPass) {
  Samples samples(4);
  comm::on_ranks(2, [&](comm::Communicator& grad) {
    const auto statistics = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    TrainStep step(context, {grad, context.stream(), nullptr, statistics.get()}, small_model(), step_options(4));
    step.update(samples.batch(0, 4), 0.1);
    EXPECT_EQ(statistics->counts().calls, 4) << "two layers, forward and backward";
    EXPECT_EQ(statistics->counts().bytes, 2 * (2 * 9 + 1 + 2 * 9) * 8);
    step.evaluate(samples.batch(0, 4));
    (void)step.take_evaluated();
    EXPECT_EQ(statistics->counts().calls, 4) << "an evaluation exchanges nothing";
  });
}

// ---- options -------------------------------------------------------------------------------------------------------

TEST(SyncBatchNorm, BadOptions) {
  CpuContext context;
  TrainStepOptions options = step_options(4);
  comm::LocalGroup one(1);
  const auto ranks = one.communicator(0);
  options.plan.exchange.ranks = ranks.get();
  EXPECT_EQ(error_of<UsageError>([&] { TrainStep(context, small_model(), options); }),
            "train step: PlanOptions::exchange is given, expected the ranks of StepRanks");
  options = step_options(4);
  options.plan.sync_batch_norm = true;
  EXPECT_EQ(error_of<UsageError>([&] { TrainStep(context, small_model(), options); }),
            "train step: PlanOptions::sync_batch_norm is on, expected TrainStepOptions::sync_batch_norm");
  const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad) {
    comm::LocalGroup group(1);
    const auto alone = group.communicator(0);
    TrainStep step(context, {grad, context.stream(), nullptr, alone.get()}, small_model(), step_options(4));
  });
  EXPECT_EQ(failures[1], "train step: statistics is rank 0 of 1, expected rank 1 of 2 as grad");
}

TEST(SyncBatchNorm, IsAPartOfTheRun) {
  const DataSplit data = sync_data({});
  const auto with = option_texts(sync_options({}, data), data);
  const auto without = option_texts(sync_options({.sync = false}, data), data);
  EXPECT_EQ(with.at("sync_batch_norm"), "1");
  EXPECT_EQ(without.count("sync_batch_norm"), 0U) << "checkpoints of earlier versions";
  const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
    CpuContext context({.threads = 1});
    Trainer trainer(context, {grad, control, context.stream()}, cifar_resnet(8, 4, 12, 12), data,
                    sync_options({.sync = grad.rank() == 0}, data));
    trainer.start();
  });
  testing::expect_holds(failures[1], "the ranks do not agree: rank 0 has 'sync_batch_norm 1'");
}

TEST(SyncBatchNorm, AModelWithoutBatchNormComputesAsBefore) {
  ModelBuilder b("plain", {kFeatures});
  b.linear("2", b.linear("1", b.input(), 7, {.activation = ops::Activation::tanh}), 2);
  const Model model = b.build();
  Samples samples(4);
  std::vector<double> values[2];
  for (const bool sync : {false, true}) {
    comm::on_ranks(2, [&](comm::Communicator& grad) {
      TrainStepOptions options = step_options(4);
      options.sync_batch_norm = sync;
      Step step(grad, model, options);
      step.update(samples.batch(2 * grad.rank(), 2 * grad.rank() + 2), 0.1);
      if (grad.rank() == 0) {
        values[sync ? 1 : 0] = step.values();
      }
    });
  }
  EXPECT_EQ(values[0], values[1]);
}

}  // namespace
}  // namespace lockstep::nn
