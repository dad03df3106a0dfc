// Tests virtual ranks: the bits of a run must not depend on the number of ranks that share the virtual ranks. Ranks are
// threads here; train_resnet_test.cpp and train_text_test.cpp run processes.
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/compare.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

class World : public TrainerTest {
 protected:
  /// Returns the bytes of the files of a run on `ranks` ranks.
  [[nodiscard]] std::string bytes_of(RunSetup setup, int ranks) const {
    setup.ranks = ranks;
    setup.dir = path("on" + std::to_string(ranks));
    train(setup);
    return checkpoint_bytes(setup.dir + "/last");
  }
  [[nodiscard]] std::string model_of(RunSetup setup, int ranks) const {
    (void)bytes_of(setup, ranks);
    return file_text(path("on" + std::to_string(ranks) + "/last/model.safetensors"));
  }
};

TEST_F(World, EveryFileIsTheSameOnAnyNumberOfRanks) {
  const OptimizerOptions clipped{.kind = OptimizerKind::adam, .clip_norm = 0.5};
  const OptimizerOptions skipping{.nesterov = true, .skip_non_finite = true};
  // An epoch of 70 samples in batches of 11 ends with a batch of 4 samples: fewer than the 8 virtual ranks.
  for (const RunSetup& setup : {RunSetup{.virtual_ranks = 8, .keep_last = true},
                                RunSetup{.optimizer = clipped, .dtype = DType::f64, .virtual_ranks = 4},
                                RunSetup{.optimizer = skipping, .dtype = DType::bf16, .virtual_ranks = 4}}) {
    const std::string one = bytes_of(setup, 1);
    for (int ranks = 2; ranks <= setup.virtual_ranks; ranks *= 2) {
      EXPECT_TRUE(bytes_of(setup, ranks) == one)
          << ranks << " ranks, " << setup.virtual_ranks << " virtual ones, " << setup.dtype;
    }
  }
}

TEST_F(World, WithoutVirtualRanksTheyDiffer) {
  const RunSetup layout{.sums = {.order = comm::SumOrder::ranks}};
  EXPECT_FALSE(model_of(layout, 1) == model_of(layout, 2));
  EXPECT_FALSE(model_of({.virtual_ranks = 4}, 2) == model_of({.virtual_ranks = 8}, 2)) << "they decide the numbers";
}

// Two virtual ranks, on one rank or on two, must write the same files as two real ranks. Their sums have only two
// terms, so every order gives the same bits.
TEST_F(World, TwoVirtualRanksAreTwoRanks) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    train({.ranks = 2, .dir = path("real"), .dtype = dtype, .keep_last = true});
    for (const int ranks : {1, 2}) {
      const std::string name = "virtual" + std::to_string(ranks);
      train({.ranks = ranks, .dir = path(name), .dtype = dtype, .virtual_ranks = 2, .keep_last = true});
      expect_files("real/last", name + "/last");
    }
  }
  train({.dir = path("one")});
  train({.dir = path("virtual"), .virtual_ranks = 1});
  EXPECT_TRUE(file_text(path("one/last/model.safetensors")) == file_text(path("virtual/last/model.safetensors")));
}

TEST_F(World, ARunMovesFromOneRankToFourToTwo) {
  const RunSetup whole{.dir = path("whole"), .virtual_ranks = 8, .checkpoint_every = 2, .keep = 8};
  train(whole);  // 12 steps: two epochs of 6
  // Each run resumes from a checkpoint of the run before, in the middle of an epoch. train() expects that its settings
  // equal those of the checkpoint.
  RunSetup four = whole;
  four.ranks = 4;
  four.dir = path("four");
  four.resume = path("whole/last.5");
  EXPECT_EQ(read_checkpoint_state(four.resume).progress.position.step, 2);
  train(four);
  RunSetup two = four;
  two.ranks = 2;
  two.dir = path("two");
  two.resume = path("four/last.2");
  EXPECT_EQ(read_checkpoint_state(two.resume).progress.position.step, 8);
  train(two);
  EXPECT_TRUE(checkpoint_bytes(path("two/last")) == checkpoint_bytes(path("whole/last")));
  EXPECT_TRUE(checkpoint_bytes(path("two/best")) == checkpoint_bytes(path("whole/best")));
  const SafetensorsFile file(path("two/last/optimizer.safetensors"));
  EXPECT_EQ(file.find("rank_buffers")->shape.front(), 8);
  TrainerSetup other{.ranks = 2};
  other.options.step.virtual_ranks = 4;
  const auto resume = [&](Trainer& trainer, comm::Communicator& control) {
    RunProgress progress;
    (void)resume_checkpoint(path("two/last"), trainer, control, identity_of(trainer), progress);
  };
  expect_all_say(with_trainers(other, resume), path("two/last") + ": the run has 8 virtual ranks, expected 4");
}

TEST_F(World, DividedStatesGiveTheSameFiles) {
  const OptimizerOptions adam{.kind = OptimizerKind::adam};
  const auto files_of = [&](Strategy strategy, int ranks) {
    train({.ranks = ranks, .dir = path("run"), .optimizer = adam, .strategy = strategy, .virtual_ranks = 4});
    return file_text(path("run/last/model.safetensors")) + file_text(path("run/last/optimizer.safetensors"));
  };
  const std::string ddp = files_of(Strategy::ddp, 1);
  for (const int ranks : {1, 2, 4}) {
    EXPECT_TRUE(files_of(Strategy::zero1, ranks) == ddp) << ranks;
  }
}

TEST_F(World, ReportsAndMetricsOfYourOwnStepsAreTheSame) {
  std::vector<EpochEvent> events;
  for (const int ranks : {1, 2, 4}) {
    events.push_back(train({.ranks = ranks, .virtual_ranks = 4, .log_every = 4}).last);
  }
  for (const EpochEvent& event : events) {
    EXPECT_EQ(event.train_loss, events[0].train_loss);
    EXPECT_EQ(event.train_accuracy, events[0].train_accuracy);
    EXPECT_EQ(event.test.loss, events[0].test.loss);
  }
  EXPECT_GT(events[0].train_loss, 0);
}

TEST_F(World, WhatDoesNotFitIsSaidBeforeAnythingIsAllocated) {
  const auto refusal = [](TrainStepOptions step, int ranks = 2, std::int64_t accumulate = 1) {
    step.virtual_ranks = step.virtual_ranks == 0 ? 4 : step.virtual_ranks;
    const TrainerOptions options{.global_batch = 11, .accumulate = accumulate, .step = step};
    const auto failures = with_trainers({.ranks = ranks, .options = options, .started = false}, [](Trainer&) {});
    for (const std::string& failure : failures) {
      EXPECT_EQ(failure, failures[0]);
    }
    return failures[0];
  };
  EXPECT_EQ(refusal({.virtual_ranks = 6}), "the number of virtual ranks is 6, expected a power of two");
  EXPECT_EQ(refusal({}, 3),
            "4 virtual ranks on 3 ranks, expected a number of ranks that divides the number of virtual ranks");
  EXPECT_EQ(refusal({.virtual_ranks = 16}),
            "the batch size is 11, expected at least one sample for each of the 16 virtual ranks");
  expect_holds(refusal({}, 2, 2), "2 micro-batches an update with 4 virtual ranks");
  expect_holds(refusal({.sync_batch_norm = true}), "sync_batch_norm is on with virtual ranks");
  expect_holds(refusal({.sums = {.dtype = DType::bf16}}), "travel as bf16 with virtual ranks");
  expect_holds(refusal({.optimizer = {.clip_norm = 1}, .strategy = Strategy::zero1}),
               "zero1 with virtual ranks and a clip_norm of 1");
  const auto differ = [](TrainerOptions& o, int rank) { o.step.virtual_ranks = rank == 0 ? 4 : 2; };
  expect_all_say(with_trainers({.ranks = 2, .change = differ}, [](Trainer&) {}), "the ranks do not agree");
}

TEST_F(World, PlannedMemoryHasTheArenasOfTheTree) {
  for (const std::int64_t all : {1, 2, 4, 8}) {
    TrainerSetup setup{.started = false};
    setup.options.step.virtual_ranks = all;
    on_trainers(setup, [&](Trainer& trainer) {
      const TrainStep& step = trainer.train_step();
      const ParameterSet& set = trainer.parameters();
      EXPECT_EQ(step.tree_arenas(), std::llround(std::log2(all)));
      EXPECT_EQ(step.tree_bytes(),
                static_cast<std::size_t>(step.tree_arenas()) * set.gradients_and_weight_sum().bytes());
      EXPECT_GE(step.planned_bytes(), step.tree_bytes() + set.bytes() + step.train_plan().workspace_bytes());
      EXPECT_EQ(set.statistics().shape, (Shape{all, set.buffer_arena().numel()}));
    });
  }
}

/// Results of three steps of a model with dropout and loss weights. The step itself computes the sum of the weights.
struct OfSteps {
  std::vector<double> values;
  double loss = 0;
};
OfSteps weighted_steps(int ranks, std::int64_t all, bool one_by_one = true) {
  constexpr std::int64_t kRows = 3;
  OfSteps outcome;
  comm::on_ranks(ranks, [&](comm::Communicator& grad) {
    ModelBuilder b("weighted", {5});
    b.linear("last", b.dropout("drop", b.linear("first", b.input(), 16), 0.3), 4);
    const Model model = b.build();
    Step step(grad, model, {.max_batch = kRows, .virtual_ranks = all, .plan = {.weights = LossWeights::sample}});
    const std::int64_t each = all / ranks;
    std::vector<float> x(kRows * 5);
    std::vector<float> weights(kRows);
    std::vector<std::int32_t> labels(kRows);
    for (int s = 0; s < 3; ++s) {
      for (std::int64_t v = grad.rank() * each; v < (grad.rank() + 1) * each; ++v) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = static_cast<float>((static_cast<std::int64_t>(i) * 7 + v * 11 + s * 13) % 17) / 8 - 1;
        }
        for (std::size_t i = 0; i < labels.size(); ++i) {
          labels[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(i) + v + s) % 4);
          weights[i] = 0.3F + static_cast<float>((static_cast<std::int64_t>(i) + v) % 5);
        }
        const Batch batch{.fields = {{StateField::values, TensorView(std::span(x), {kRows, 5})},
                                     {StateField::labels, TensorView(std::span(labels), {kRows})},
                                     {StateField::weights, TensorView(std::span(weights), {kRows})}}};
        if (v + 1 < (grad.rank() + 1) * each || one_by_one) {
          step.add(batch);
        } else {
          step.update(batch, 0.1);
        }
      }
      if (one_by_one) {
        step.update(0.1);
      }
    }
    const double loss = step.wait_loss().value;
    if (grad.rank() == 0) {
      outcome = {step.values(), loss};
    }
    EXPECT_EQ(step.microbatches(), 3);
  });
  return outcome;
}

TEST(WorldSteps, WeightsOfTheLossAndSamplesWithoutIdsFollowTheTree) {
  const OfSteps one = weighted_steps(1, 8);
  for (const int ranks : {1, 2, 4, 8}) {
    EXPECT_EQ(weighted_steps(ranks, 8).values, one.values) << ranks;
    EXPECT_EQ(weighted_steps(ranks, 8, false).values, one.values) << ranks;
  }
  EXPECT_TRUE(std::isfinite(one.loss));
}

TEST(WorldSteps, EveryVirtualRankHasOneMicrobatch) {
  ModelBuilder b("small", {2});
  b.linear("last", b.input(), 2);
  const Model model = b.build();
  Step step(model, {.max_batch = 1, .virtual_ranks = 2});
  std::vector<float> x{1, 2};
  std::vector<std::int32_t> label{1};
  const Batch batch{.fields = {{StateField::values, TensorView(std::span(x), {1, 2})},
                               {StateField::labels, TensorView(std::span(label), {1})}}};
  step.add(batch);
  EXPECT_EQ(error_of<StateError>([&] { step.update(0.1); }),
            "train step: update() after 1 micro-batches, expected one for each of the 2 virtual ranks of this rank");
  step.add(batch);
  EXPECT_EQ(error_of<StateError>([&] { step.add(batch); }),
            "train step: micro-batch 3 of a step, expected one for each of the 2 virtual ranks of this rank");
  step.abandon();
  step.add(batch);
  step.add(batch);
  step.update(0.1);
  EXPECT_EQ(step.steps(), 1);
  EXPECT_EQ(error_of<UsageError>([&] { Step(model, {.max_batch = 1, .virtual_ranks = 3}); }),
            "train step: 3 virtual ranks on 1 rank, expected a power of two that the ranks divide");
  const TrainStepOptions both{.max_batch = 1, .microbatches = 2, .virtual_ranks = 2};
  expect_holds(error_of<UsageError>([&] { Step(model, both); }), "2 micro-batches with virtual ranks");
}

}  // namespace
}  // namespace lockstep::nn
