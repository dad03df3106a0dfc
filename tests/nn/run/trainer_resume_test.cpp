// Tests checkpoints of runs. A run that is stopped and resumed must write the same bytes as a run without a stop. A
// checkpoint must also resume on another number of ranks. Checkpoints that do not fit must be refused.
#include <array>
#include <map>
#include <set>

#include <lockstep/comm/error.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/run/observers/metrics_log.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/nn/net.hpp"
#include "tests/nn/run/trainer_runs.hpp"

namespace lockstep::nn {
namespace {

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
    expect_resumes({.ranks = ranks});
    // An epoch has 6 steps: the run was stopped in the middle of the second epoch.
    train({.ranks = ranks, .steps = 8, .dir = path("part")});
    const CheckpointState half = read_checkpoint_state(path("part/last"));
    EXPECT_EQ(half.progress.position.epoch, 1);
    EXPECT_EQ(half.progress.position.batch, 2);
    expect_files("whole/last", "part/last", false);
  }
}

TEST_F(TrainerTest, ARunInChunksIsResumedBitForBitAndAnotherChunkIsNoticed) {
  // 70 samples are 24 chunks of 3 in one window, or 35 chunks of 2 in two windows.
  for (const std::int64_t chunk : {3, 2}) {
    expect_resumes({.ranks = 2, .shuffle_chunk = chunk});
    train({.ranks = 2, .dir = path("without")});
    expect_files("whole/last", "without/last", false);
  }
  const auto differences = [&](std::int64_t chunk, bool save) {
    std::string text;
    on_trainers({.options = {.global_batch = 11, .shuffle_chunk = chunk}},
                [&](Trainer& trainer, comm::Communicator& control) {
                  RunProgress progress;
                  if (save) {
                    progress.samples_seen = trainer.samples_seen();
                    save_checkpoint(path("c"), trainer, control, nn::identity_of(trainer), progress);
                  }
                  text = resume_checkpoint(path("c"), trainer, control, nn::identity_of(trainer), progress);
                });
    return text;
  };
  EXPECT_EQ(differences(4, true), "");
  EXPECT_EQ(differences(5, false), "options 'shuffle_chunk': checkpoint \"4\", now \"5\"\n");
  EXPECT_EQ(differences(0, false), "options 'shuffle_chunk': checkpoint \"4\", now nothing\n");
}

TEST_F(TrainerTest, EveryOptimizerIsResumedBitForBit) {
  std::set<std::string> models;
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    SCOPED_TRACE(name_of(kind));
    expect_resumes({.ranks = 2, .optimizer = {.kind = kind, .clip_norm = 1}});
    models.insert(file_text(path("whole/last/model.safetensors")));
    train({.ranks = 2, .dir = path("other"), .optimizer = {.kind = kind}});
    EXPECT_NE(file_text(path("whole/last/model.safetensors")), file_text(path("other/last/model.safetensors")))
        << "the norm is above 1";
  }
  EXPECT_EQ(models.size(), testing::optimizer_kinds().size()) << "adam and adamw differ";
}

TEST_F(TrainerTest, ARunInMicrobatchesIsResumedBitForBit) {
  expect_resumes({.ranks = 2, .accumulate = 3});
  train({.ranks = 2, .dir = path("other")});
  expect_files("whole/last", "other/last", false);
}

TEST_F(TrainerTest, ADynamicLossScaleChangesNoBitInF32AndIsResumed) {
  const OptimizerOptions scaled{.loss_scale = {.kind = LossScale::Kind::dynamic, .rule = {.interval = 5}}};
  expect_resumes({.ranks = 2, .optimizer = scaled}, 7);
  train({.ranks = 2, .dir = path("plain")});
  EXPECT_EQ(file_text(path("plain/last/model.safetensors")), file_text(path("whole/last/model.safetensors")));
  const SafetensorsFile saved(path("part/last/optimizer.safetensors"));
  std::array<double, 1> scale{};
  std::array<std::int64_t, 1> good{};
  saved.read(*saved.find("loss_scale"), std::as_writable_bytes(std::span(scale)));
  saved.read(*saved.find("loss_scale_good"), std::as_writable_bytes(std::span(good)));
  EXPECT_EQ(scale[0], 4 * 65536) << "12 updates, of which it has grown after 5 and 10";
  EXPECT_EQ(good[0], 2);
  // Resumes a run without a loss scale in a run with a loss scale, and the reverse.
  train({.steps = 3, .dir = path("a")});
  train({.steps = 6, .dir = path("a"), .resume = path("a/last"), .optimizer = scaled});
  train({.dir = path("a"), .resume = path("a/last")});
  train({.dir = path("b")});
  EXPECT_EQ(file_text(path("a/last/model.safetensors")), file_text(path("b/last/model.safetensors")));
}

TEST_F(TrainerTest, ACheckpointOfARunInBf16HoldsMastersAndGoesOnInEitherType) {
  for (const int ranks : {1, 3}) {
    expect_resumes({.ranks = ranks, .dtype = DType::bf16});
    train({.ranks = ranks, .steps = 8, .dir = path("part"), .dtype = DType::bf16});
    train({.ranks = ranks, .dir = path("f32"), .resume = path("part/last")});
    expect_files("whole/last", "f32/last", false);
  }
  const SafetensorsFile saved(path("whole/last/model.safetensors"));
  for (const TensorEntry& entry : saved.entries()) {
    EXPECT_EQ(entry.dtype, "F32") << entry.name;
  }
  // A parameter set in bf16 that loads the file rounds its weights from the f32 masters.
  CpuContext context;
  ParameterSet set(context, cifar_resnet(8, 4, 12, 12), DType::bf16);
  load_model(path("whole/last"), context, set);
  const Tensor rounded = Tensor::empty(context, set.values().shape, DType::bf16);
  copy_now(context, set.values(), rounded.view());
  testing::expect_same_bits(set.weights(), rounded.view());
  EXPECT_FALSE(testing::is_close(set.weights(), set.values(), 1e-5)) << "the masters have more digits";
  // A bf16 evaluation of a checkpoint in f32 loads the f32 values as masters.
  const Metrics f32 = train({.dir = path("f32/last"), .evaluate_only = true}).metrics;
  const Metrics bf16 = train({.dir = path("f32/last"), .evaluate_only = true, .dtype = DType::bf16}).metrics;
  EXPECT_NEAR(bf16.loss(), f32.loss(), 0.02 * f32.loss());
  EXPECT_NE(bf16.loss(), f32.loss());
}

TEST_F(TrainerTest, StoppedAtAnyEventAndResumedItWritesTheBytesOfARunThatWasNot) {
  // An epoch has 6 steps. The run stops at step 3 (in the middle of the first epoch), at step 6 (its end) or at step 9
  // (in the middle of the second epoch).
  train({.ranks = 2, .dir = path("whole")});
  for (const std::int64_t stop_at : {3, 6, 9}) {
    const std::string dir = path("stopped at " + std::to_string(stop_at));
    const RunOutcome stopped = train({.ranks = 2, .dir = dir, .stop_at = stop_at});
    EXPECT_EQ(stopped.result.end, RunEnd::stopped);
    EXPECT_EQ(stopped.last.epoch, stop_at / 6) << "an epoch that is over is evaluated before the run stops";
    EXPECT_EQ(read_checkpoint_state(dir + "/last").progress.position.step, stop_at);
    EXPECT_EQ(train({.ranks = 2, .dir = dir, .resume = dir + "/last"}).result.end, RunEnd::finished);
    for (const char* name : {"/last", "/best"}) {
      EXPECT_TRUE(checkpoint_bytes(dir + name) == checkpoint_bytes(path("whole") + name)) << stop_at << name;
    }
  }
}

TEST_F(TrainerTest, AStopAtTheLastStepOfTheRunLeavesNothingOut) {
  train({.dir = path("whole")});
  RunResult result = train({.dir = path("stopped"), .stop_at = 12}).result;
  EXPECT_EQ(result.end, RunEnd::finished);
  EXPECT_GE(result.progress.test_accuracy, 0.0);
  EXPECT_TRUE(checkpoint_bytes(path("stopped/last")) == checkpoint_bytes(path("whole/last")));
  // A run that resumes from this checkpoint has no step left. It must still report the accuracy of the evaluation.
  result = train({.dir = path("stopped"), .resume = path("stopped/last")}).result;
  EXPECT_EQ(result.end, RunEnd::finished);
  EXPECT_GE(result.progress.test_accuracy, 0.0);
}

TEST_F(TrainerTest, TheEndWithoutAnEvaluationHasNoAccuracy) {
  RunResult result = train({.dir = path("run"), .stop_at = 3}).result;
  EXPECT_EQ(result.end, RunEnd::stopped);
  MetricsLog(path("metrics.jsonl"), false).on_end(75, result);
  const Json line = parse_json(file_text(path("metrics.jsonl")), "metrics.jsonl");
  EXPECT_TRUE(line.member("test_accuracy", "end").is_null());
  EXPECT_TRUE(line.member("best", "end").is_null());
  EXPECT_EQ(line.get<std::string>("best_by", "end"), "test_accuracy");
  EXPECT_EQ(line.get<int>("step", "end"), 3);
  result.progress.test_accuracy = 0;
  MetricsLog(path("metrics.jsonl"), false).on_end(0, result);
  EXPECT_EQ(parse_json(file_text(path("metrics.jsonl")), "metrics.jsonl").get<double>("test_accuracy", "end"), 0);
}

TEST_F(TrainerTest, AnotherNumberOfRanksContinuesAndSaysSo) {
  train({.ranks = 2, .steps = 8, .dir = path("run")});
  on_trainers({}, [&](Trainer& trainer, comm::Communicator& control) {
    RunProgress progress;
    const std::string text = resume_checkpoint(path("run/last"), trainer, control, identity_of({.ranks = 1}), progress);
    testing::expect_holds(text, "ranks: checkpoint 2, now 1");
    EXPECT_EQ(trainer.position().step, 8);
    // A trainer that has resumed on one rank can save a checkpoint before its first step.
    save_checkpoint(path("alone"), trainer, control, identity_of({.ranks = 1}), progress);
    EXPECT_EQ(resume_checkpoint(path("alone"), trainer, control, identity_of({.ranks = 1}), progress), "");
    trainer.step();
    EXPECT_TRUE(std::isfinite(trainer.take_metrics().loss()));
  });
}

TEST_F(TrainerTest, ACheckpointOfAnotherModelIsRefused) {
  train({.steps = 2, .dir = path("run")});
  CpuContext context;
  for (const Model& other : {cifar_resnet(14, 4, 12, 12), cifar_resnet(8, 5, 12, 12), mlp({12, 12, 3}, {}, 4)}) {
    SCOPED_TRACE(other.name());
    ParameterSet set(context, other, DType::f32);
    const std::string text = testing::error_of<DataError>([&] { load_model(path("run/last"), context, set); });
    testing::expect_holds(text, "the file is of another model");
    testing::expect_holds(text, "model.safetensors");
  }
  EXPECT_THROW((void)read_checkpoint_state(path("nowhere")), DataError);
}

TEST_F(TrainerTest, TheStateOfAnotherOptimizerIsRefused) {
  train({.steps = 2, .dir = path("sgd")});
  train({.steps = 2, .dir = path("adam"), .optimizer = {.kind = OptimizerKind::adam}});
  const auto resume = [&](const std::string& dir, OptimizerKind kind,
                          const std::map<std::string, std::string>& options = {}) {
    TrainerSetup setup;
    setup.options.step.optimizer.kind = kind;
    return with_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress;
      RunIdentity identity;
      identity.options = options;
      (void)resume_checkpoint(dir, trainer, control, identity, progress);
      EXPECT_EQ(trainer.parameters().state("step").span<std::int64_t>()[0], 2);
    });
  };
  expect_all_say(resume(path("sgd/last"), OptimizerKind::adam), "of another model or optimizer");
  expect_all_say(resume(path("adam/last"), OptimizerKind::sgd), "of another model or optimizer");
  EXPECT_EQ(resume(path("adam/last"), OptimizerKind::adam), comm::none_failed(1));
  // The optimizer states have the same names but belong to another rule, so the checkpoint must be refused.
  expect_all_say(resume(path("adam/last"), OptimizerKind::adamw, {{"optimizer", "adamw"}}),
                 "the state of optimizer adam, expected adamw");
  // A step count that is impossible must be refused.
  const std::string file = path("adam/last/optimizer.safetensors");
  std::string bytes = file_text(file);
  const SafetensorsFile opened(file);
  const TensorEntry* step = opened.find("step");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->dtype, "I64");
  bytes[step->offset + 7] = '\xff';
  testing::put_file(file, bytes);
  expect_all_say(resume(path("adam/last"), OptimizerKind::adam), "expected a count of at least 0");
}

/// An update rule that changes nothing. Its state is written to checkpoints.
class StandStill final : public UpdateRule {
 public:
  explicit StandStill(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::vector<std::string> states() const override { return {"memory"}; }
  void update(Context&, const ops::ArenaUpdate&, const States&) const override {}

 private:
  std::string name_;
};

TEST_F(TrainerTest, ARuleOfOnesOwnGoesOnUnderItsName) {
  const OptimizerOptions still{.rule = std::make_shared<StandStill>("still")};
  train({.ranks = 2, .steps = 2, .dir = path("run"), .optimizer = still});
  EXPECT_NE(SafetensorsFile(path("run/last/optimizer.safetensors")).find("conv1.weight.memory"), nullptr);
  const auto resume = [&](const OptimizerOptions& options) {
    TrainerSetup setup;
    setup.options.step.optimizer = options;
    return with_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      (void)resume_if_there(path("run/last"), trainer, control, nn::identity_of(trainer));
      EXPECT_EQ(trainer.parameters().state("step").span<std::int64_t>()[0], 2);
    });
  };
  EXPECT_EQ(resume(still), comm::none_failed(1));
  expect_all_say(resume({.rule = std::make_shared<StandStill>("other")}),
                 "the state of optimizer still, expected other");
  expect_all_say(resume({.kind = OptimizerKind::adam}), "the state of optimizer still, expected adam");
}

TEST_F(TrainerTest, LayersWithOtherSettingsAreNamed) {
  const auto resumed = [&](double epsilon, const std::string& from, const std::string& to) {
    ModelBuilder builder = ModelBuilder::for_images("net", {12, 12, 3});
    NodeId x = builder.conv2d("conv", builder.input(), 8, {.pad = 1});
    x = builder.batch_norm("norm", x, {.relu = true, .epsilon = epsilon});
    builder.linear("head", builder.global_average_pool("pool", x), 4);
    std::string found;
    on_trainers({.model = builder.build(), .overlap = true}, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress;
      if (!from.empty()) {
        found = resume_checkpoint(from, trainer, control, nn::identity_of(trainer), progress);
      }
      progress.samples_seen = trainer.samples_seen();
      save_checkpoint(to, trainer, control, nn::identity_of(trainer), progress);
    });
    return found;
  };
  EXPECT_EQ(resumed(1e-5, "", path("a")), "");
  EXPECT_EQ(resumed(1e-5, path("a"), path("b")), "");
  EXPECT_EQ(resumed(1e-3, path("a"), path("b")),
            "layers 'norm': checkpoint \"batch_norm of conv: epsilon 1e-05, momentum 0.1, relu\", now \"batch_norm of "
            "conv: epsilon 0.001, momentum 0.1, relu\"\n");
}

/// Replaces a text in the checkpoint's state.json.
void edit_state(const std::string& dir, const std::string& from, const std::string& to) {
  std::string text = file_text(dir + "/state.json");
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << text;
  text.replace(at, from.size(), to);
  testing::put_file(dir + "/state.json", text);
  std::filesystem::remove(dir + "/checksums.json");
}

TEST_F(TrainerTest, FilesThatAreNotThoseOfTheCheckpointAreNamed) {
  const auto problem = [&](const std::string& dir) {
    std::string text;
    on_trainers({}, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress;
      text = testing::error_of<DataError>(
          [&] { (void)resume_checkpoint(dir, trainer, control, identity_of({.ranks = 1}), progress); });
    });
    return text;
  };
  train({.steps = 2, .dir = path("a")});
  train({.steps = 4, .dir = path("b")});
  for (const std::string name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string file = path("a/last/" + name);
    const std::string whole = testing::get_file(file);
    testing::put_file(file, testing::get_file(path("b/last/" + name)));
    testing::expect_holds(problem(path("a/last")), name + ": ");
    testing::expect_holds(problem(path("a/last")), "that of another checkpoint");
    std::string flipped = whole;
    char& bit = name == "state.json" ? flipped[flipped.find("\"step\": 2") + 8] : flipped[flipped.size() - 3];
    bit ^= 1;
    testing::put_file(file, flipped);
    testing::expect_holds(problem(path("a/last")), name + ": ");
    testing::put_file(file, whole);
  }
  // Without the list of checksums the files are accepted unchecked.
  train({.steps = 4, .dir = path("a"), .resume = path("a/last")});
  std::filesystem::remove(path("b/last/checksums.json"));
  train({.steps = 6, .dir = path("b"), .resume = path("b/last")});
}

/// A data set that counts how often each sample was read.
class Counted final : public Dataset {
 public:
  explicit Counted(const Dataset& data)
      : Dataset(data.name(), data.size(), {data.fields().begin(), data.fields().end()}),
        data_(data),
        reads_(static_cast<std::size_t>(data.size())) {}
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override {
    ++reads_[static_cast<std::size_t>(index)];
    data_.read_sample(index, out);
  }
  [[nodiscard]] std::uint64_t fingerprint() const override { return data_.fingerprint(); }
  [[nodiscard]] std::vector<int> reads() const { return {reads_.begin(), reads_.end()}; }

 private:
  const Dataset& data_;
  mutable std::vector<std::atomic<int>> reads_;
};

TEST_F(TrainerTest, AScheduleByUpdatesEndsWithTheUpdates) {
  const auto rate_behind = [&](bool by_updates, const Position& at, std::int64_t global_batch, std::int64_t batch) {
    double rate = -1;
    TrainerOptions options{.global_batch = batch, .schedule_by_updates = by_updates, .loader_workers = 0};
    options.schedule = {.kind = Schedule::Kind::cosine, .base = 0.1, .total_steps = 10};
    on_trainers({.options = options}, [&](Trainer& trainer) {
      trainer.restore(trainer.continued(at, global_batch), {0});
      rate = trainer.learning_rate();
    });
    return rate;
  };
  // 70 samples in batches of 14 give 5 updates an epoch. After the first of two epochs, one run continues with batches
  // of 14, and one run with batches of 7.
  const Position half{.epoch = 1, .batch = 0, .step = 5};
  EXPECT_NEAR(rate_behind(true, half, 14, 14), 0.05, 1e-12);
  EXPECT_NEAR(rate_behind(false, half, 14, 14), 0.05, 1e-12);
  EXPECT_NEAR(rate_behind(true, half, 14, 7), 0.05, 1e-12) << "five updates are left";
  EXPECT_NEAR(rate_behind(false, half, 14, 7), 0, 1e-12) << "the control: ten batches of 7 are an epoch";
}

TEST_F(TrainerTest, WithBatchesOfAnotherSizeItGoesOnBehindTheSameSamples) {
  const DataSplit data = small_data();  // the set has 70 samples
  const Counted counted(*data.train);
  struct Part {
    int ranks;
    std::int64_t batch;
    int steps;
  };
  std::vector<Position> begins;
  std::vector<double> rates;  // rate in the first step of each part
  double seen = 0;
  const auto go_on = [&](const Part& part) {
    TrainerOptions options{.global_batch = part.batch, .loader_workers = 0};
    options.schedule = {.kind = Schedule::Kind::cosine, .base = 0.1, .total_steps = 2 * (70 / part.batch)};
    const TrainerSetup setup{.ranks = part.ranks, .options = options, .data = TrainingData{counted, *data.test}};
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress = resume_if_there(path("run/last"), trainer, control, nn::identity_of(trainer));
      if (control.rank() == 0) {
        begins.push_back(trainer.position());
        rates.push_back(trainer.learning_rate());
      }
      steps(trainer, part.steps);
      progress.position = trainer.position();
      progress.samples_seen = trainer.samples_seen();
      save_checkpoint(path("run/last"), trainer, control, nn::identity_of(trainer), progress);
      if (control.rank() == 0) {
        seen = std::accumulate(progress.samples_seen.begin(), progress.samples_seen.end(), 0.0);
      }
    });
  };
  const auto expect_begin = [&](std::int64_t epoch, std::int64_t batch, std::int64_t skipped, std::int64_t step) {
    const Position& at = begins.back();
    EXPECT_EQ(at.epoch, epoch);
    EXPECT_EQ(at.batch, batch);
    EXPECT_EQ(at.skipped, skipped);
    EXPECT_EQ(at.step, step);
  };
  // Returns the rate of the cosine schedule after `steps` of `all` steps.
  const auto rate_at = [](double steps, double all) { return 0.05 * (1 + std::cos(std::acos(-1.0) * steps / all)); };
  go_on({.ranks = 1, .batch = 11, .steps = 3});
  expect_begin(0, 0, 0, 0);
  go_on({.ranks = 2, .batch = 6, .steps = 2});
  expect_begin(0, 0, 33, 3);
  EXPECT_NEAR(rates.back(), rate_at(5, 22), 1e-12) << "33 samples are 5 of 22 steps of 6";
  go_on({.ranks = 2, .batch = 6, .steps = 1});  // same batch size as before, so batches are counted on
  expect_begin(0, 2, 33, 5);
  go_on({.ranks = 3, .batch = 9, .steps = 2});
  expect_begin(0, 0, 51, 6);
  EXPECT_EQ(seen, 69);
  std::vector<int> reads = counted.reads();
  EXPECT_EQ(std::count(reads.begin(), reads.end(), 1), 69) << "each sample of the epoch once, one is left over";
  EXPECT_EQ(std::count(reads.begin(), reads.end(), 0), 1);
  go_on({.ranks = 1, .batch = 35, .steps = 1});  // one sample remains, too few for a batch
  expect_begin(1, 0, 0, 8);
  EXPECT_NEAR(rates.back(), rate_at(2, 4), 1e-12);
  go_on({.ranks = 1, .batch = 70, .steps = 1});  // 35 samples remain, too few for a batch
  expect_begin(2, 0, 0, 9);
}

TEST_F(TrainerTest, AStateThatCannotBeIsRefused) {
  struct Case {
    const char* from;
    const char* to;
    std::vector<std::string> words;
  };
  for (const Case& item : {Case{"\"batch\": 2", "\"batch\": 6", {"state.json", "batch 6", "6 batches an epoch"}},
                           Case{"\"batch\": 2", "\"batch\": -1", {"state.json", "batch -1"}},
                           Case{"\"ranks\": 1", "\"ranks\": 4294967297", {"state.json", "ranks"}},
                           Case{"\"ranks\": 1", "\"ranks\": 0", {"state.json", "ranks 0", "at least 1"}},
                           Case{"\"threads\": 1", "\"threads\": 4294967297", {"state.json", "threads"}}}) {
    train({.steps = 8, .dir = path("run")});
    edit_state(path("run/last"), item.from, item.to);
    on_trainers({}, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress;
      testing::expect_error<DataError>(
          [&] { (void)resume_checkpoint(path("run/last"), trainer, control, {}, progress); }, item.words);
    });
  }
}

TEST_F(TrainerTest, ACheckpointThatCannotBeWrittenFailsOnEveryRankAlike) {
  testing::put_file(path("file"), "not a folder");
  const auto failures = with_trainers({.ranks = 3}, [&](Trainer& trainer, comm::Communicator& control) {
    try {
      save_checkpoint(path("file/last"), trainer, control, {}, {});
      ADD_FAILURE() << "it was written";
    } catch (const DataError& error) {
      EXPECT_NE(dynamic_cast<const comm::FoundTogether*>(&error), nullptr);
      throw;
    }
  });
  expect_all_say(failures, path("file"));
  EXPECT_EQ(failures[0], failures[2]);
}

}  // namespace
}  // namespace lockstep::nn
