// Tests the settings that all ranks must share, and the errors if they differ.
#include <lockstep/comm/error.hpp>

#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

/// Starts a trainer on each of `ranks` ranks. Returns the text of each rank's exception.
std::vector<std::string> start(int ranks, const std::function<void(TrainerOptions&, int)>& change) {
  return with_trainers({.ranks = ranks, .change = change}, [](Trainer&) {});
}

TEST_F(TrainerTest, RanksThatDisagreeAreNamed) {
  struct Case {
    std::string item;
    std::function<void(TrainerOptions&)> change;
  };
  const std::vector<Case> cases{
      {"seed", [](TrainerOptions& o) { o.step.seed = 9; }},
      {"global_batch", [](TrainerOptions& o) { o.global_batch = 12; }},
      {"accumulate", [](TrainerOptions& o) { o.accumulate = 2; }},
      {"momentum", [](TrainerOptions& o) { o.step.optimizer.momentum = 0.8; }},
      {"clip_norm", [](TrainerOptions& o) { o.step.optimizer.clip_norm = 0.8; }},
      {"skip_non_finite", [](TrainerOptions& o) { o.step.optimizer.skip_non_finite = true; }},
      {"top_k", [](TrainerOptions& o) { o.step.plan.top_k = 2; }},
      {"schedule", [](TrainerOptions& o) { o.schedule.kind = Schedule::Kind::step; }},
      {"learning_rate", [](TrainerOptions& o) { o.schedule.base = 0.3; }},
      {"milestones",
       [](TrainerOptions& o) {
         o.schedule.milestones = {3, 5};
       }},
      {"gamma", [](TrainerOptions& o) { o.schedule.gamma = 0.5; }},
      {"mean", [](TrainerOptions& o) { o.step.plan.augment.mean[2] = 0.5F; }},
      {"std", [](TrainerOptions& o) { o.step.plan.augment.std[1] = 0.25F; }},
      {"augmentation_seed", [](TrainerOptions& o) { o.step.plan.augment.seed = 4; }},
      {"buckets", [](TrainerOptions& o) { o.step.buckets.bucket_bytes = 1000; }},
      {"bucket plan",
       [](TrainerOptions& o) {
         o.step.buckets.ends = {2, static_cast<int>(cifar_resnet(8, 4, 12, 12).parameters().size())};
       }},
      {"keep_last", [](TrainerOptions& o) { o.keep_last = true; }},
  };
  for (const Case& item : cases) {
    const auto change = [&](TrainerOptions& options, int rank) {
      if (rank == 2) {
        item.change(options);
      }
    };
    expect_all_say(start(3, change), "the ranks do not agree: rank 0 has '" + item.item + " ");
  }
  const auto chunk = [](TrainerOptions& options, int rank) { options.shuffle_chunk = rank == 0 ? 4 : 5; };
  expect_all_say(start(2, chunk), "rank 0 has 'shuffle_chunk 4', rank 1 has 'shuffle_chunk 5'");
  // The ranks choose different libraries for conv1, so they must be refused.
  const auto other_choice = [](TrainerOptions& options, int rank) {
    options.step.plan.choices["fc forward"] = "reference";
    options.step.plan.choices["conv1 forward"] = rank == 1 ? "onednn" : "reference";
  };
  if (LOCKSTEP_HAS_ONEDNN) {
    expect_all_say(start(2, other_choice),
                   "rank 0 has 'choice for conv1 forward reference', rank 1 has 'choice for conv1 forward onednn");
  }
}

TEST_F(TrainerTest, AStateThatOneRankLacksIsNamedAtTheStart) {
  const auto unlike = [](Trainer& trainer, comm::Communicator& control) {
    if (control.rank() != 1) {
      trainer.parameters().register_state(trainer.context(), {.name = "seen", .shape = {4}});
    }
    trainer.start();
  };
  expect_all_say(with_trainers({.ranks = 3, .started = false}, unlike),
                 "the ranks do not agree: rank 0 has 'state 'seen' f32 (4) the same on all ranks', rank 1 has ");
}

TEST_F(TrainerTest, ChoicesOfLaterMicrobatchesAndOfEvaluationArePartOfTheRun) {
  const auto choices_with = [](std::int64_t accumulate) {
    Choices choices;
    const TrainerOptions options{.global_batch = 11, .accumulate = accumulate};
    on_trainers({.options = options, .started = false}, [&](Trainer& trainer) {
      choices = trainer.train_step().choices();
      EXPECT_EQ(choices.size(), static_cast<std::size_t>(accumulate) * trainer.train_plan().choices().size() +
                                    trainer.evaluation_plan().choices().size());
    });
    return choices;
  };
  const Choices one = choices_with(1);
  const Choices two = choices_with(2);
  int evaluated = 0;
  for (const auto& [call, choice] : one) {
    EXPECT_EQ(two.count(call), 1U) << call;
    const bool of_evaluation = call.ends_with(" evaluate");
    EXPECT_EQ(two.count(call + " accumulate"), of_evaluation ? 0U : 1U) << call;
    evaluated += of_evaluation ? 1 : 0;
  }
  EXPECT_GT(evaluated, 0);
  // Micro-batches take their own choices ("accumulate") from the options. Ranks whose choices differ must be refused.
  const auto other_choice = [](TrainerOptions& options, int rank) {
    options.accumulate = 2;
    options.step.plan.choices["conv1 forward"] = "reference";
    options.step.plan.choices["conv1 forward accumulate"] = rank == 1 ? "onednn" : "reference";
  };
  if (LOCKSTEP_HAS_ONEDNN) {
    expect_all_say(start(2, other_choice),
                   "rank 0 has 'choice for conv1 forward accumulate reference', rank 1 has 'choice for conv1 forward "
                   "accumulate onednn");
    const auto other_evaluation = [](TrainerOptions& options, int rank) {
      options.step.plan.choices["conv1 forward"] = "reference";
      options.step.plan.choices["conv1 forward evaluate"] = rank == 1 ? "onednn" : "reference";
    };
    expect_all_say(start(2, other_evaluation),
                   "rank 0 has 'choice for conv1 forward evaluate reference', rank 1 has 'choice for conv1 forward "
                   "evaluate onednn");
  }
}

TEST(ChoicesHold, WhereTheCallsAreTheSame) {
  const RunIdentity run{.model = "m",
                        .ranks = 2,
                        .global_batch = 16,
                        .options = {{"dtype", "f32"}, {"accumulate", "2"}, {"device", "a GPU"}, {"pad", "4"}}};
  EXPECT_TRUE(choices_hold(run, run));
  RunIdentity same = run;
  same.seed = 7;
  same.options["pad"] = "2";
  same.options["learning_rate"] = "1";
  EXPECT_TRUE(choices_hold(run, same));
  const std::vector<std::function<void(RunIdentity&)>> changes{
      [](RunIdentity& r) { r.ranks = 1; },
      [](RunIdentity& r) { r.global_batch = 8; },
      [](RunIdentity& r) { r.options["dtype"] = "bf16"; },
      [](RunIdentity& r) { r.options["tf32"] = "1"; },
      [](RunIdentity& r) { r.options.erase("accumulate"); },
      [](RunIdentity& r) { r.options["device"] = "another GPU"; },
      [](RunIdentity& r) { r.options.erase("device"); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    RunIdentity other = run;
    changes[i](other);
    EXPECT_FALSE(choices_hold(run, other)) << i;
    EXPECT_FALSE(choices_hold(other, run)) << i;
  }
}

TEST_F(TrainerTest, RanksThatWouldRunDifferentlyAreNamed) {
  struct Case {
    std::string item;
    std::function<void(RunOptions&)> change;
  };
  for (const Case& item :
       {Case{"log_every", [](RunOptions& o) { o.log_every = 4; }},
        Case{"checkpoint_every", [](RunOptions& o) { o.checkpoint_every = 2; }},
        Case{"epochs", [](RunOptions& o) { o.epochs = 2; }}, Case{"steps", [](RunOptions& o) { o.steps = 2; }},
        Case{"checkpoints", [this](RunOptions& o) { o.checkpoint_dir = path("one"); }}}) {
    const auto failures = with_trainers({.ranks = 2}, [&](Trainer& trainer, comm::Communicator& control) {
      RunOptions options;
      if (control.rank() == 1) {
        item.change(options);
      }
      RunObserver nobody;
      run_training(trainer, control, {}, options, {}, nobody);
    });
    expect_all_say(failures, "the ranks do not agree: rank 0 has '" + item.item + " ");
  }
}

TEST_F(TrainerTest, RunOptionsOutOfRangeAreRefused) {
  on_trainers({}, [&](Trainer& trainer, comm::Communicator& control) {
    RunObserver nobody;
    for (const RunOptions& options : {RunOptions{.log_every = 0}, RunOptions{.epochs = -1}, RunOptions{.steps = -1},
                                      RunOptions{.checkpoint_every = -5}}) {
      EXPECT_THROW(run_training(trainer, control, {}, options, {}, nobody), UsageError);
    }
  });
}

TEST_F(TrainerTest, WhatRanksHaveReadThemselvesIsCompared) {
  on_trainers({.ranks = 3}, [](Trainer& trainer, comm::Communicator& control) {
    trainer.require_same_state();
    ParameterSet& parameters = trainer.parameters();
    if (control.rank() == 1) {
      trainer.restore({.epoch = 0, .batch = 3, .step = 3}, {33});
    }
    EXPECT_THROW(trainer.require_same_state(), UsageError);
    trainer.restore({.epoch = 0, .batch = 3, .step = 3}, {33});
    trainer.require_same_state();
    for (const TensorView& arena :
         {parameters.values(), parameters.state("momentum_buffer"), parameters.evaluation_buffer_arena()}) {
      float& last = arena.span<float>()[static_cast<std::size_t>(arena.numel() - 1)];
      const float kept = last;
      last = control.rank() == 2 ? 77.0F : kept;
      try {
        trainer.require_same_state();
        ADD_FAILURE() << "nothing was found";
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(" with hash "), std::string::npos) << error.what();
        EXPECT_NE(dynamic_cast<const comm::FoundTogether*>(&error), nullptr);
      }
      last = kept;
    }
  });
}

/// Changes a bit of one parameter on rank 1 after a step.
class FlipABit final : public RunObserver {
 public:
  FlipABit(Trainer& trainer, int rank) : trainer_(trainer), rank_(rank) {}
  void on_step_end(const StepEvent& event) override {
    if (event.step == 3 && rank_ == 1) {
      const ParameterSet& set = trainer_.parameters();
      float& weight = set.value(set.find("fc.weight")).span<float>()[5];
      weight = std::nextafter(weight, 1e9F);
    }
  }

 private:
  Trainer& trainer_;
  int rank_;
};

TEST_F(TrainerTest, AReplicaThatDriftsIsNamedWithItsParameter) {
  for (const std::int64_t every : {0, 1, 2, 5}) {
    TrainerSetup setup{.ranks = 3};
    setup.options.schedule.base = 0;  // with a rate of 0 the bit stays changed
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      FlipABit observer(trainer, control.rank());
      const RunOptions options{.steps = 6, .check_replicas = every};
      try {
        run_training(trainer, control, {}, options, {}, observer);
        EXPECT_EQ(every, 0) << "nothing was found";
      } catch (const comm::ReplicaError& error) {
        const std::int64_t found = every == 1 ? 3 : every == 2 ? 4 : 5;
        EXPECT_EQ(std::string(error.what()), concat("the replicas differ after step ", found,
                                                    ": parameter 'fc.weight' of rank(s) 1 is not that of rank 0"));
        EXPECT_NE(dynamic_cast<const comm::FoundTogether*>(&error), nullptr);
      }
    });
  }
}

TEST_F(TrainerTest, AStepBeforeTheStartIsRefused) {
  on_trainers({.started = false}, [](Trainer& trainer) { EXPECT_THROW(trainer.step(), StateError); });
}

TEST_F(TrainerTest, WhatCannotBeIsRefusedBeforeAnythingIsAllocated) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  struct Case {
    TrainerOptions options;
    const char* text;
  };
  for (const Case& item :
       {Case{{.global_batch = 71}, "batch size 71 is larger than the data set, 70 samples"},
        Case{{.global_batch = INT64_MAX}, "is larger than the data set"},
        Case{{.global_batch = 11, .accumulate = 6}, "each of the 2 ranks in each of 6 micro-batches"},
        Case{{.global_batch = 11, .accumulate = 0}, "micro-batches an update is 0, expected at least 1"},
        Case{{.global_batch = 11, .step = {.plan = {.accumulate = true}}}, "PlanOptions::accumulate is on"},
        Case{{.global_batch = 11, .step = {.max_batch = 4}},
             "max_batch is 4, microbatches is 0 and count_samples is on"},
        Case{{.global_batch = 11, .step = {.microbatches = 2}}, "microbatches is 2"},
        Case{{.global_batch = 11, .step = {.count_samples = false}}, "count_samples is off, expected 0, 0 and on"},
        Case{{.global_batch = 11, .loader_workers = 300}, "workers is 300, expected 0 to 256"},
        Case{{.global_batch = 11, .prefetch = 0}, "prefetch is 0, expected 1"}}) {
    const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad) {
      HostMemoryResource host;
      TrackingMemoryResource memory(host);
      CpuContext context({.threads = 1, .memory = &memory});
      try {
        Trainer trainer(context, {grad, grad, context.stream()}, model, data, item.options);
      } catch (const UsageError&) {
        EXPECT_EQ(memory.counts().allocations, 0);
        throw;
      }
    });
    expect_all_say(failures, item.text);
  }
}

TEST_F(TrainerTest, ABatchSmallerThanTheWorldIsRefused) {
  const TrainerSetup setup{.ranks = 3, .options = {.global_batch = 2}, .started = false};
  expect_all_say(with_trainers(setup, [](Trainer&) {}), "batch size is 2");
}

}  // namespace
}  // namespace lockstep::nn
