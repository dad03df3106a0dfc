// Whole runs on ranks as threads: identity, resume, evaluation, checkpoints, allocations.
#include <cmath>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include <lockstep/nn/checkpoint.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/training_run.hpp>

#include "tests/comm/count_allocations.hpp"
#include "tests/comm/local_ranks.hpp"
#include "tests/nn/files.hpp"

namespace lockstep::nn {
namespace {

class TrainerTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

 private:
  testing::TemporaryFolder folder_;
};

struct RunSetup {
  int ranks = 1;
  std::uint64_t seed = 1;
  std::int64_t epochs = 2;
  std::int64_t steps = 0;
  std::string dir{};     ///< checkpoints
  std::string resume{};  ///< checkpoint to go on from
  std::int64_t total_steps = 12;
  bool evaluate_only = false;
  bool augment = true;
};

DataSplit small_data() {
  DataOptions options;
  options.seed = 5;
  options.synthetic = {.train_size = 70, .test_size = 31, .height = 12, .width = 12, .classes = 4};
  return open_data(options);
}

RunIdentity identity_of(const RunSetup& setup) {
  RunIdentity identity;
  identity.model = "resnet8";
  identity.classes = 4;
  identity.height = identity.width = 12;
  identity.seed = setup.seed;
  identity.ranks = setup.ranks;
  identity.global_batch = 11;
  return identity;
}

class LastEpoch final : public RunObserver {
 public:
  void on_epoch(const EpochEvent& event) override { last_ = event; }
  [[nodiscard]] const EpochEvent& last() const { return last_; }

 private:
  EpochEvent last_;
};

/// Trains (or only evaluates) on `ranks` threads; the last evaluation of rank 0.
Metrics train(const RunSetup& setup, EpochEvent* last_epoch = nullptr) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  Metrics last;
  const auto failures = comm::run_ranks(setup.ranks, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    Stream worker = Stream::host_worker("comm");
    TrainerOptions options;
    options.global_batch = 11;
    options.seed = setup.seed;
    options.plan.augment = {.pad = setup.augment ? 2 : 0,
                            .flip = setup.augment,
                            .mean = data.statistics.mean,
                            .std = data.statistics.std,
                            .seed = setup.seed};
    options.schedule.total_steps = setup.total_steps;
    options.buckets.bucket_bytes = 20000;
    Trainer trainer(context, {grad, *control, worker}, model, data, options);
    trainer.start();
    RunProgress progress;
    const RunIdentity identity = identity_of(setup);
    if (!setup.resume.empty()) {
      EXPECT_EQ(resume_checkpoint(setup.resume, trainer, *control, identity, progress), "");
    }
    if (setup.evaluate_only) {
      load_model(setup.dir, context, trainer.parameters());
    } else {
      LastEpoch observer;
      RunOptions run{.epochs = setup.epochs, .steps = setup.steps, .log_every = 3, .checkpoint_dir = setup.dir};
      run_training(trainer, *control, identity, run, progress, observer);
      if (last_epoch != nullptr && grad.rank() == 0) {
        *last_epoch = observer.last();
      }
    }
    const Metrics metrics = trainer.evaluate();
    if (grad.rank() == 0) {
      last = metrics;
    }
  });
  EXPECT_EQ(failures, comm::none_failed(setup.ranks));
  return last;
}

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// All bytes of a checkpoint.
std::string checkpoint_bytes(const std::string& dir) {
  std::string bytes;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    bytes += file_text(dir + "/" + name) + "|";
  }
  return bytes;
}

TEST_F(TrainerTest, TheSameIdentityWritesTheSameBytesAndAnotherSeedDoesNot) {
  for (const int ranks : {1, 2}) {
    train({.ranks = ranks, .dir = path("a")});
    train({.ranks = ranks, .dir = path("b")});
    train({.ranks = ranks, .seed = 2, .dir = path("c")});
    EXPECT_EQ(checkpoint_bytes(path("a/last")), checkpoint_bytes(path("b/last")));
    EXPECT_NE(file_text(path("a/last/model.safetensors")), file_text(path("c/last/model.safetensors")));
  }
}

TEST_F(TrainerTest, ResumingInTheMiddleOfAnEpochContinuesBitForBit) {
  for (const int ranks : {1, 3}) {
    train({.ranks = ranks, .dir = path("whole")});
    // 6 steps an epoch: stopped in the middle of the second, then continued.
    train({.ranks = ranks, .steps = 8, .dir = path("part")});
    const CheckpointState half = read_checkpoint_state(path("part/last"));
    EXPECT_EQ(half.progress.position.epoch, 1);
    EXPECT_EQ(half.progress.position.batch, 2);
    EXPECT_NE(file_text(path("whole/last/model.safetensors")), file_text(path("part/last/model.safetensors")));
    train({.ranks = ranks, .dir = path("part"), .resume = path("part/last")});
    EXPECT_EQ(file_text(path("whole/last/model.safetensors")), file_text(path("part/last/model.safetensors")));
    EXPECT_EQ(file_text(path("whole/last/optimizer.safetensors")), file_text(path("part/last/optimizer.safetensors")));
  }
}

TEST_F(TrainerTest, ManyRanksEvaluateLikeOneThatLoadsTheCheckpoint) {
  const Metrics three = train({.ranks = 3, .dir = path("run")});
  EXPECT_EQ(three.samples, 31) << "every sample once";
  for (const int ranks : {1, 2, 4}) {
    const Metrics again = train({.ranks = ranks, .dir = path("run/last"), .evaluate_only = true});
    EXPECT_EQ(again.correct, three.correct) << ranks;
    EXPECT_EQ(again.samples, three.samples) << ranks;
    EXPECT_NEAR(again.loss(), three.loss(), 1e-6) << ranks;
  }
}

TEST_F(TrainerTest, AnotherNumberOfRanksContinuesAndSaysSo) {
  train({.ranks = 2, .steps = 8, .dir = path("run")});
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  const auto failures = comm::run_ranks(1, [&](comm::Communicator& grad) {
    CpuContext context({.threads = 1});
    const auto control = grad.split(0, 0);
    TrainerOptions options;
    options.global_batch = 11;
    Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
    trainer.start();
    RunProgress progress;
    const std::string text =
        resume_checkpoint(path("run/last"), trainer, *control, identity_of({.ranks = 1}), progress);
    EXPECT_NE(text.find("ranks: checkpoint 2, now 1"), std::string::npos) << text;
    EXPECT_EQ(trainer.position().step, 8);
    trainer.step();
    EXPECT_TRUE(std::isfinite(trainer.take_metrics().loss()));
  });
  EXPECT_EQ(failures, comm::none_failed(1));
}

TEST_F(TrainerTest, ACheckpointOfAnotherModelIsRefused) {
  train({.steps = 2, .dir = path("run")});
  CpuContext context;
  for (const Model& other : {cifar_resnet(14, 4, 12, 12), cifar_resnet(8, 5, 12, 12), mlp({12, 12, 3}, {}, 4)}) {
    ParameterSet set(context, other, DType::f32);
    try {
      load_model(path("run/last"), context, set);
      FAIL() << other.name();
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("checkpoint is of another model"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW((void)read_checkpoint_state(path("nowhere")), DataError);
}

TEST_F(TrainerTest, RanksThatDisagreeAreNamed) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  const auto failures = comm::run_ranks(3, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 11;
    options.seed = grad.rank() == 2 ? 9 : 1;
    Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
    trainer.start();
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("rank 0 has 'seed 1', rank 2 has 'seed 9'"), std::string::npos) << failure;
  }
}

TEST_F(TrainerTest, ABatchSmallerThanTheWorldIsRefused) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  const auto failures = comm::run_ranks(3, [&](comm::Communicator& grad) {
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 2;
    Trainer trainer(context, {grad, grad, context.stream()}, model, data, options);
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("batch size is 2"), std::string::npos) << failure;
  }
}

/// With the providers that `choice` names for all convolutions and products; empty: with the default ones.
void expect_no_allocation(const std::string& choice) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    HostMemoryResource host;
    TrackingMemoryResource memory(host);
    CpuContext context({.threads = 1, .memory = &memory});
    Stream worker = Stream::host_worker("comm");
    TrainerOptions options;
    options.global_batch = 11;
    for (const char* pass : {"forward", "backward_data", "backward_weights"}) {
      for (const Node& node : model.nodes()) {
        if (node.layer && !choice.empty()) {
          options.plan.choices[node.layer->name() + " " + pass] = choice;
        }
      }
    }
    Trainer trainer(context, {grad, *control, worker}, model, data, options);
    trainer.start();
    for (int i = 0; i < 3; ++i) {
      trainer.step();
    }
    const auto before = memory.counts();
    const std::int64_t allocations = count_allocations::allocations;
    count_allocations::counting = true;
    for (int i = 0; i < 8; ++i) {  // over the end of an epoch
      trainer.step();
    }
    count_allocations::counting = false;
    EXPECT_EQ(count_allocations::allocations, allocations);
    EXPECT_EQ(memory.counts().allocations, before.allocations);
  });
  EXPECT_EQ(failures, comm::none_failed(2));
}

TEST_F(TrainerTest, AStepAllocatesNothing) {
  expect_no_allocation("reference");
}

TEST_F(TrainerTest, AStepWithOneDnnAllocatesNothingOfItsOwn) {
  if (!LOCKSTEP_HAS_ONEDNN) {
    GTEST_SKIP() << "needs oneDNN, this build has none";
  }
  const std::int64_t before = count_allocations::bracketed;
  expect_no_allocation("");
  EXPECT_GT(count_allocations::bracketed, before) << "the library was used, and its calls were seen";
}

TEST_F(TrainerTest, TheCounterSeesAnAllocation) {
  const std::int64_t before = count_allocations::allocations;
  count_allocations::counting = true;
  void* memory = ::operator new(40);  // a new-expression without use may be left out by the compiler
  count_allocations::counting = false;
  ::operator delete(memory);
  EXPECT_EQ(count_allocations::allocations, before + 1);
}

TEST_F(TrainerTest, LearnsWhatItTrainsOn) {
  EpochEvent last;
  train({.ranks = 2, .epochs = 30, .total_steps = 180, .augment = false}, &last);
  EXPECT_EQ(last.epoch, 30);
  EXPECT_GT(last.train_accuracy, 0.9) << "four classes: chance is a quarter";
}

}  // namespace
}  // namespace lockstep::nn
