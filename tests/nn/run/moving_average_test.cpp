// Tests the moving average of the weights and its files. The average must equal a reference in f64, even if a run is
// divided into parts, ranks or micro-batches.
#include <cstring>

#include <lockstep/runtime/files/safetensors.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::to_doubles;

class MovingAverage : public TrainerTest {
 protected:
  MovingAverage() { files.emplace_back("/ema.safetensors"); }
};

/// Returns a setup of one rank, with this average.
TrainerSetup averaged(const MovingAverageOptions& average) {
  TrainerSetup setup;
  setup.options.step.average = average;
  return setup;
}

/// Computes the average as torch.optim.swa_utils.AveragedModel does with torchvision's averaging function: decay *
/// average + (1 - decay) * value. The first average is a copy of the weights.
struct AveragedModel {
  double decay = 0;
  std::vector<double> average{};
  int n_averaged = 0;
  void update_parameters(const std::vector<double>& values) {
    if (n_averaged == 0) {
      average = values;
    } else {
      for (std::size_t i = 0; i < values.size(); ++i) {
        average[i] = decay * average[i] + (1 - decay) * values[i];
      }
    }
    ++n_averaged;
  }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    largest = difference <= largest ? largest : difference;  // a NaN difference stays
  }
  return largest;
}

// Compares the average with that of torchvision's references/classification/train.py, with 6 batches an epoch.
TEST_F(MovingAverage, IsTorchvisionsInF64) {
  struct Loop {
    double decay;
    std::int64_t steps;          // value of --model-ema-steps
    std::int64_t warmup_epochs;  // value of --lr-warmup-epochs
  };
  constexpr std::int64_t kBatches = 6;
  for (const Loop& loop : {Loop{0.7, 1, 0}, Loop{0.9, 1, 1}, Loop{0.9, 3, 1}}) {
    const MovingAverageOptions average{
        .decay = loop.decay, .every = loop.steps, .copied_updates = loop.warmup_epochs * kBatches};
    on_trainers(averaged(average), [&](Trainer& trainer) {
      ASSERT_EQ(trainer.batches_per_epoch(), kBatches);
      const ParameterSet& set = trainer.parameters();
      AveragedModel weights{.decay = loop.decay};
      AveragedModel statistics{.decay = loop.decay};
      AveragedModel wrong{.decay = 0.8};
      for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
        for (std::int64_t i = 0; i < kBatches; ++i) {
          trainer.step();
          trainer.train_step().synchronize();
          if (i % loop.steps == 0) {
            weights.update_parameters(to_doubles(set.values()));
            statistics.update_parameters(to_doubles(set.buffer_arena()));
            wrong.update_parameters(to_doubles(set.values()));
            if (epoch < loop.warmup_epochs) {
              weights.n_averaged = statistics.n_averaged = wrong.n_averaged = 0;
            }
          }
          EXPECT_LE(largest_difference(to_doubles(average_of(set).weights), weights.average), 1e-6)
              << "epoch " << epoch << ", batch " << i;
          EXPECT_LE(largest_difference(to_doubles(average_of(set).statistics.reshape({set.buffer_arena().numel()})),
                                       statistics.average),
                    1e-6)
              << "epoch " << epoch << ", batch " << i;
        }
      }
      EXPECT_GT(largest_difference(weights.average, wrong.average), 1e-4) << "a control: another decay";
    });
  }
}

// An epoch has 3 batches of 20 samples, or 7 of 10. All updates of the first epoch copy the weights. If the batch size
// changes, the copies must still end with the samples of the first epoch.
TEST_F(MovingAverage, GoesOnWithBatchesOfAnotherSize) {
  const auto run_from = [&](const std::string& from, std::int64_t batch, const auto& body) {
    TrainerSetup setup = averaged({.decay = 0.9, .copied_updates = 70 / batch});
    setup.options.global_batch = batch;
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress;
      if (!from.empty()) {
        (void)resume_checkpoint(from, trainer, control, nn::identity_of(trainer), progress);
      }
      body(trainer, control);
    });
  };
  const auto save = [](const std::string& folder, Trainer& trainer, comm::Communicator& control) {
    save_checkpoint(folder, trainer, control, nn::identity_of(trainer),
                    {.position = trainer.position(), .samples_seen = trainer.samples_seen()});
  };
  run_from("", 20, [&](Trainer& trainer, comm::Communicator& control) {
    for (int step = 1; step <= 6; ++step) {
      trainer.step();
      if (step == 2 || step == 6) {
        save(path(step == 2 ? "early" : "late"), trainer, control);
      }
    }
  });
  // Makes a step and checks the new average. If `copied`, it must be a copy of the weights. Otherwise it must be 0.9 of
  // the old average plus 0.1 of the weights.
  const auto expect_step = [](Trainer& trainer, bool copied) {
    const ParameterSet& set = trainer.parameters();
    AveragedModel reference{.decay = 0.9, .average = to_doubles(average_of(set).weights), .n_averaged = 1};
    trainer.step();
    trainer.train_step().synchronize();
    const std::vector<double> values = to_doubles(set.values());
    reference.update_parameters(values);
    const std::vector<double> ours = to_doubles(average_of(set).weights);
    EXPECT_LE(largest_difference(ours, copied ? values : reference.average), copied ? 0 : 1e-6)
        << trainer.position().step;
    EXPECT_GT(largest_difference(ours, copied ? reference.average : values), 1e-5) << "a control: the other one";
  };
  run_from(path("late"), 10, [&](Trainer& trainer, comm::Communicator&) {
    EXPECT_EQ(trainer.position().step, 6) << "less than the 7 updates that are copied";
    const ParameterSet& set = trainer.parameters();
    EXPECT_NE(to_doubles(average_of(set).weights), to_doubles(set.values())) << "it was read";
    expect_step(trainer, false);
  });
  run_from(path("early"), 10, [&](Trainer& trainer, comm::Communicator& control) {
    for (int step = 0; step < 4; ++step) {  // three steps of the epoch, and the first step after it
      expect_step(trainer, true);
    }
    expect_step(trainer, false);
    save(path("within"), trainer, control);
    expect_step(trainer, false);
    save(path("whole"), trainer, control);
  });
  run_from(path("within"), 10, [&](Trainer& trainer, comm::Communicator& control) {
    expect_step(trainer, false);
    save(path("part"), trainer, control);
  });
  expect_files("whole", "part");
}

TEST_F(MovingAverage, ChangesNothingElse) {
  RunSetup setup{.ranks = 2, .dir = path("without"), .keep_last = true};
  train(setup);
  setup.dir = path("with");
  setup.average = {.decay = 0.9};
  const EpochEvent last = train(setup).last;
  EXPECT_TRUE(file_text(path("without/last/model.safetensors")) == file_text(path("with/last/model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(path("without/last/ema.safetensors")));
  EXPECT_FALSE(file_text(path("with/last/ema.safetensors")) == file_text(path("with/last/model.safetensors")));
  const RunProgress progress = read_checkpoint_state(path("with/last")).progress;
  EXPECT_EQ(progress.best_by, "ema_test_accuracy") << "what best/ is for";
  EXPECT_EQ(progress.metrics.at("ema_test_loss"), last.test.metrics.at("ema_test_loss"));

  // The file ema.safetensors alone is a model. Its evaluation gives the numbers of the run, up to the order of sums in
  // f64.
  std::filesystem::create_directory(path("alone"));
  std::filesystem::copy(path("with/last/ema.safetensors"), path("alone/model.safetensors"));
  const Metrics alone = train({.dir = path("alone"), .evaluate_only = true}).metrics;
  EXPECT_NEAR(alone.loss(), last.test.metrics.at("ema_test_loss"), 1e-6);
  EXPECT_EQ(alone.accuracy(), last.test.metrics.at("ema_test_accuracy"));
  EXPECT_NE(alone.loss(), last.test.loss);
}

TEST_F(MovingAverage, IsTheSameUnderZero1InMicrobatchesAndInBf16) {
  const MovingAverageOptions average{.decay = 0.9, .every = 2, .copied_updates = 3};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RunSetup setup{.ranks = 2, .dir = path("ddp"), .dtype = dtype, .accumulate = 2, .average = average};
    const RunOutcome ddp = train(setup);
    setup.dir = path("zero1");
    setup.strategy = Strategy::zero1;
    const RunOutcome zero1 = train(setup);
    expect_files("ddp/last", "zero1/last");
    EXPECT_EQ(ddp.last.test.metrics, zero1.last.test.metrics) << dtype;
  }
}

TEST_F(MovingAverage, ARunGoesOnBitForBit) {
  const MovingAverageOptions average{.decay = 0.9, .every = 3, .copied_updates = 5, .ramp = true};
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
    for (const std::int64_t steps : {4, 8}) {
      expect_resumes({.ranks = 2, .strategy = strategy, .average = average}, steps);
      std::filesystem::remove_all(path("part"));
    }
  }
}

TEST_F(MovingAverage, IsTheSameOnAnyNumberOfRanksOfAWorld) {
  RunSetup setup{.dir = path("one"), .virtual_ranks = 4, .average = {.decay = 0.9}};
  train(setup);
  setup.ranks = 2;
  setup.dir = path("two");
  train(setup);
  EXPECT_TRUE(checkpoint_bytes(path("one/last")) == checkpoint_bytes(path("two/last")));
  setup.ranks = 4;
  setup.steps = 7;
  setup.dir = path("moves");
  train(setup);
  setup.ranks = 1;
  setup.steps = 0;
  setup.resume = path("moves/last");
  train(setup);
  expect_files("one/last", "moves/last");
}

TEST_F(MovingAverage, OtherRanksTakeItFromTheFile) {
  train({.ranks = 2, .steps = 8, .dir = path("run"), .average = {.decay = 0.9}});
  for (const int ranks : {1, 3}) {
    resume_and_save_again(
        ranks, path("run/last"), path("again"),
        [&](TrainerOptions& o, int) {
          o.step.average = {.decay = 0.9};
          o.step.strategy = Strategy::zero1;
        },
        [](Trainer& trainer) { return trainer.evaluate_average().loss(); });
    const SafetensorsFile before(path("run/last/ema.safetensors"));
    const SafetensorsFile after(path("again/ema.safetensors"));
    ASSERT_EQ(before.entries().size(), after.entries().size());
    for (const TensorEntry& entry : before.entries()) {
      std::vector<std::byte> a(entry.bytes);
      std::vector<std::byte> b(entry.bytes);
      before.read(entry, a);
      after.read(*after.find(entry.name), b);
      if (entry.name.find("running") == std::string::npos) {
        EXPECT_TRUE(a == b) << entry.name << ", " << ranks << " ranks";
        // Loading replaces the running statistics with their mean over the ranks, which may be rounded. So these values
        // are compared with a tolerance.
      } else {
        for (std::size_t i = 0; i < a.size(); i += sizeof(float)) {
          float x = 0;
          float y = 0;
          std::memcpy(&x, &a[i], sizeof x);
          std::memcpy(&y, &b[i], sizeof y);
          EXPECT_NEAR(x, y, 1e-6 * (1 + std::abs(x))) << entry.name;
        }
      }
    }
  }
}

TEST_F(MovingAverage, BeginsWithTheWeightsOfARunWithoutOne) {
  train({.steps = 8, .dir = path("run")});
  on_trainers(averaged({.decay = 0.9}), [&](Trainer& trainer, comm::Communicator& control) {
    RunProgress progress;
    testing::expect_holds(resume_checkpoint(path("run/last"), trainer, control, nn::identity_of(trainer), progress),
                          "options 'ema': checkpoint nothing, now \"0.9\"");
    const ParameterSet& set = trainer.parameters();
    EXPECT_EQ(to_doubles(average_of(set).weights), to_doubles(set.values()));
    AveragedModel reference{.decay = 0.9, .average = to_doubles(set.values()), .n_averaged = 1};
    trainer.step();
    trainer.train_step().synchronize();
    reference.update_parameters(to_doubles(set.values()));
    EXPECT_LE(largest_difference(to_doubles(average_of(set).weights), reference.average), 1e-6);
  });
}

TEST_F(MovingAverage, TakesThePlaceOfTheParametersOnlyInBetween) {
  on_trainers(averaged({.decay = 0.9}), [&](Trainer& trainer, comm::Communicator& control) {
    steps(trainer, 4);
    TrainStep& step = trainer.train_step();
    save_state(path("state"), step);
    (void)trainer.evaluate();
    const ParameterSet& set = trainer.parameters();
    const std::vector<double> values = to_doubles(set.values());
    const std::vector<double> buffers = to_doubles(set.evaluation_buffer_arena());
    step.begin_average();
    EXPECT_EQ(to_doubles(set.values()), to_doubles(average_of(set).weights));
    EXPECT_NE(to_doubles(set.evaluation_buffer_arena()), buffers);
    const auto error = [](const auto& call) { return error_of<StateError>(call); };
    EXPECT_EQ(error([&] { trainer.step(); }),
              "train step: a step between begin_average() and end_average(), expected end_average() before");
    EXPECT_EQ(error([&] { step.begin_average(); }),
              "train step: begin_average() a second time, expected end_average() before");
    const auto refused = [&](const std::string& name, const std::function<void()>& call) {
      EXPECT_EQ(error(call),
                "train step: " + name + " between begin_average() and end_average(), expected end_average() before");
    };
    RunProgress progress;
    const RunIdentity identity = nn::identity_of(trainer);
    refused("broadcast()", [&] { step.broadcast(); });
    refused("continue_from()", [&] { step.continue_from(1, 1); });
    refused("save_state()", [&] { save_state(path("no"), step); });
    refused("load_state()", [&] { (void)load_state(path("state"), step); });
    refused("save_checkpoint()", [&] { save_checkpoint(path("no"), trainer, control, identity, progress); });
    refused("resume_checkpoint()", [&] { (void)resume_checkpoint(path("no"), trainer, control, identity, progress); });
    EXPECT_FALSE(std::filesystem::exists(path("no")));
    step.end_average();
    EXPECT_EQ(to_doubles(set.values()), values);
    EXPECT_EQ(to_doubles(set.evaluation_buffer_arena()), buffers);
    trainer.step();
    EXPECT_EQ(error([&] { step.end_average(); }),
              "train step: end_average() without begin_average(), expected begin_average() before");
  });
  expect_all_say(with_trainers({.started = false}, [](Trainer& trainer) { (void)trainer.evaluate_average(); }),
                 "begin_average() without a moving average, expected TrainStepOptions::average");
}

TEST_F(MovingAverage, ADamagedFileIsNamed) {
  train({.steps = 8, .dir = path("run"), .average = {.decay = 0.9}});
  std::string text = file_text(path("run/last/ema.safetensors"));
  text.back() ^= 1;
  testing::put_file(path("run/last/ema.safetensors"), text);
  const auto resume = [&](Trainer& trainer, comm::Communicator& control) {
    RunProgress progress;
    (void)resume_checkpoint(path("run/last"), trainer, control, nn::identity_of(trainer), progress);
  };
  expect_all_say(with_trainers(averaged({.decay = 0.9}), resume), "ema.safetensors");
}

}  // namespace
}  // namespace lockstep::nn
