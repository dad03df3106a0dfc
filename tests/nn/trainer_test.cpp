// Whole runs on ranks as threads: identity, resume, evaluation, checkpoints, allocations.
#include <atomic>
#include <barrier>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <thread>

#include <gtest/gtest.h>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/metrics_log.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/nn/step/microbatch_pipeline.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/comm/count_allocations.hpp"
#include "tests/comm/local_ranks.hpp"
#include "tests/comm/wrapped_communicator.hpp"
#include "tests/nn/files.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/guarded.hpp"

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
  std::int64_t stop_at = 0;  ///< step at whose event the run is told to stop; 0: never
  RunResult* result = nullptr;
  OptimizerOptions optimizer{};
  int top_k = 0;
  DType dtype = DType::f32;
  std::int64_t accumulate = 1;
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
  identity.options["optimizer"] = name_of(setup.optimizer.kind);
  return identity;
}

/// Keeps the last epoch and, on one rank, sets `stop` at the event of step `stop_at`.
class Watch final : public RunObserver {
 public:
  Watch(std::int64_t stop_at, std::atomic<int>& stop) : stop_at_(stop_at), stop_(stop) {}
  void on_step(const StepEvent& event) override {
    if (event.step == stop_at_) {
      stop_ = 1;
    }
  }
  void on_epoch(const EpochEvent& event) override { last_ = event; }
  [[nodiscard]] const EpochEvent& last() const { return last_; }

 private:
  std::int64_t stop_at_;
  std::atomic<int>& stop_;
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
    options.accumulate = setup.accumulate;
    options.seed = setup.seed;
    options.plan.augment = {.pad = setup.augment ? 2 : 0,
                            .flip = setup.augment,
                            .mean = data.statistics.mean,
                            .std = data.statistics.std,
                            .seed = setup.seed};
    options.plan.top_k = setup.top_k;
    options.plan.dtype = setup.dtype;
    options.schedule.total_steps = setup.total_steps;
    options.buckets.bucket_bytes = 20000;
    options.optimizer = setup.optimizer;
    if (setup.optimizer.kind == OptimizerKind::adam || setup.optimizer.kind == OptimizerKind::adamw) {
      options.schedule.base = 1e-3;
    }
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
      std::atomic<int> stop{0};
      Watch observer(grad.rank() == grad.size() - 1 ? setup.stop_at : 0, stop);  // a signal may reach one rank alone
      RunOptions run{
          .epochs = setup.epochs, .steps = setup.steps, .log_every = 3, .checkpoint_dir = setup.dir, .stop = &stop};
      const RunResult result = run_training(trainer, *control, identity, run, progress, observer);
      if (setup.result != nullptr && grad.rank() == 0) {
        *setup.result = result;
      }
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

TEST_F(TrainerTest, EveryOptimizerIsResumedBitForBit) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::lars}) {
    const OptimizerOptions optimizer{.kind = kind, .clip_norm = 1};
    const std::string name{name_of(kind)};
    train({.ranks = 2, .dir = path(name), .optimizer = optimizer});
    train({.ranks = 2, .steps = 8, .dir = path("part"), .optimizer = optimizer});
    train({.ranks = 2, .dir = path("part"), .resume = path("part/last"), .optimizer = optimizer});
    for (const char* file : {"/last/model.safetensors", "/last/optimizer.safetensors"}) {
      EXPECT_TRUE(file_text(path(name + file)) == file_text(path("part") + file)) << name << file;
    }
    train({.ranks = 2, .dir = path("other"), .optimizer = {.kind = kind}});
    EXPECT_NE(file_text(path(name + "/last/model.safetensors")), file_text(path("other/last/model.safetensors")))
        << "the norm is above 1";
  }
  EXPECT_NE(file_text(path("adam/last/model.safetensors")), file_text(path("adamw/last/model.safetensors")));
}

TEST_F(TrainerTest, ClippingIsTheSameOnAnyNumberOfRanks) {
  // No batch norm and f64, so that shares add up to the whole.
  const auto parameters = [&](int ranks, double clip_norm) {
    const DataSplit data = small_data();
    const Model model = mlp({12, 12, 3}, {9}, 4);
    std::vector<double> values;
    const auto failures = comm::run_ranks(ranks, [&](comm::Communicator& grad) {
      const auto control = grad.split(0, grad.rank());
      CpuContext context({.threads = 1});
      TrainerOptions options;
      options.global_batch = 11;
      options.plan.dtype = DType::f64;
      options.optimizer.clip_norm = clip_norm;
      Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
      trainer.start();
      for (int i = 0; i < 5; ++i) {
        trainer.step();
      }
      context.synchronize();
      if (grad.rank() == 0) {
        values = testing::to_doubles(trainer.parameters().values());
      }
    });
    EXPECT_EQ(failures, comm::none_failed(ranks));
    return values;
  };
  const auto view = [](const std::vector<double>& values) {
    return TensorView(std::span(values), {static_cast<std::int64_t>(values.size())});
  };
  const std::vector<double> one = parameters(1, 0.1);
  testing::expect_close(view(parameters(2, 0.1)), view(one), 1e-12);
  testing::expect_close(view(parameters(3, 0.1)), view(one), 1e-12);
  EXPECT_FALSE(testing::is_close(view(parameters(2, 0)), view(one), 1e-6));
}

TEST_F(TrainerTest, GradientsMayTravelIn16Bits) {
  const auto parameters = [](DType reduce_dtype) {
    const DataSplit data = small_data();
    const Model model = mlp({12, 12, 3}, {9}, 4);
    std::vector<std::vector<double>> values(2);
    const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad) {
      const auto control = grad.split(0, grad.rank());
      CpuContext context({.threads = 1});
      TrainerOptions options;
      options.global_batch = 11;
      options.reduce_dtype = reduce_dtype;
      Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
      trainer.start();
      for (int i = 0; i < 3; ++i) {
        trainer.step();
      }
      context.synchronize();
      values[static_cast<std::size_t>(grad.rank())] = testing::to_doubles(trainer.parameters().values());
    });
    EXPECT_EQ(failures, comm::none_failed(2));
    EXPECT_EQ(values[0], values[1]) << "both ranks have the same bits";
    return values[0];
  };
  const auto view = [](const std::vector<double>& values) {
    return TensorView(std::span(values), {static_cast<std::int64_t>(values.size())});
  };
  const std::vector<double> exact = parameters(DType::f32);
  const std::vector<double> rounded = parameters(DType::bf16);
  EXPECT_NE(rounded, exact);
  testing::expect_close(view(rounded), view(exact), 1e-2);
}

/// Gradients of the last step, parameters, and metrics of all steps.
struct Outcome {
  std::vector<double> gradients;
  std::vector<double> parameters;
  std::vector<double> metrics;
  std::size_t bytes = 0;
};

/// An epoch of 7 steps, in f64 unless said otherwise: 6 of 11 samples and a last one of 4, which leaves some passes
/// without a sample.
Outcome accumulated(int ranks, std::int64_t passes, bool batch_norm = false, bool overlap = false,
                    DType dtype = DType::f64, std::uint64_t augmentation_seed = 3) {
  const DataSplit data = small_data();
  ModelBuilder b = ModelBuilder::for_images("plain", {12, 12, 3});
  NodeId x = b.relu("r1", b.conv2d("c1", b.input(), 6, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  if (batch_norm) {
    x = b.batch_norm("bn", x, {});
  }
  x = b.relu("r2", b.linear("l1", x, 9, {.he_init = true}));
  b.linear("fc", x, 4);
  const Model model = b.build();
  Outcome outcome;
  const auto failures = comm::run_ranks(ranks, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 11;
    options.accumulate = passes;
    options.keep_last = true;
    options.plan.dtype = dtype;
    options.plan.augment = {.pad = 2, .flip = true, .seed = augmentation_seed};
    options.buckets.bucket_bytes = 3000;
    options.loader_workers = passes > 1 ? 2 : 0;
    Stream worker = overlap ? Stream::host_worker("comm") : Stream::host_inline();
    Trainer trainer(context, {grad, *control, worker}, model, data, options);
    trainer.start();
    for (int i = 0; i < 7; ++i) {
      trainer.step();
    }
    EXPECT_EQ(trainer.position().epoch, 1);
    EXPECT_EQ(trainer.position().step, 7);
    const Metrics trained = trainer.take_metrics();
    const Metrics tested = trainer.evaluate();
    context.synchronize();
    if (grad.rank() == 0) {
      outcome = {testing::to_doubles(trainer.parameters().gradients()),
                 testing::to_doubles(trainer.parameters().values()),
                 {trained.loss_sum, trained.correct, trained.samples, tested.loss_sum, tested.correct, tested.samples},
                 trainer.planned_bytes()};
      EXPECT_EQ(trained.samples, 70);
      EXPECT_EQ(tested.samples, 31);
    }
  });
  EXPECT_EQ(failures, comm::none_failed(ranks));
  return outcome;
}

TEST_F(TrainerTest, PassesAddUpToTheGradientOfTheWholeBatch) {
  const auto view = [](const std::vector<double>& values) {
    return TensorView(std::span(const_cast<std::vector<double>&>(values)), {static_cast<std::int64_t>(values.size())});
  };
  const Outcome whole = accumulated(1, 1);
  const auto expect_same = [&](const Outcome& other) {
    testing::expect_close(view(other.gradients), view(whole.gradients), 1e-12);
    testing::expect_close(view(other.parameters), view(whole.parameters), 1e-12);
    testing::expect_close(view(other.metrics), view(whole.metrics), 1e-12);
  };
  for (const std::int64_t passes : {2, 5, 11}) {
    const Outcome other = accumulated(1, passes);
    expect_same(other);
    if (passes < 11) {  // with passes of one sample what they are sent from is more than this small model saves
      EXPECT_LT(other.bytes, whole.bytes) << "memory is planned for a pass";
    }
  }
  expect_same(accumulated(2, 3, false, true));
  expect_same(accumulated(3, 2));
  // What batch norm computes does depend on what it sees at a time.
  const Outcome normalised = accumulated(1, 1, true);
  EXPECT_FALSE(testing::is_close(view(accumulated(1, 2, true).gradients), view(normalised.gradients), 1e-6));
}

TEST_F(TrainerTest, ARunInPassesIsResumedBitForBit) {
  train({.ranks = 2, .dir = path("whole"), .accumulate = 3});
  train({.ranks = 2, .steps = 8, .dir = path("part"), .accumulate = 3});
  train({.ranks = 2, .dir = path("part"), .resume = path("part/last"), .accumulate = 3});
  train({.ranks = 2, .dir = path("other")});
  for (const char* file : {"/last/model.safetensors", "/last/optimizer.safetensors"}) {
    EXPECT_TRUE(file_text(path("whole") + file) == file_text(path("part") + file)) << file;
    EXPECT_FALSE(file_text(path("whole") + file) == file_text(path("other") + file)) << file;
  }
}

TEST_F(TrainerTest, ADynamicLossScaleChangesNoBitInF32AndIsResumed) {
  OptimizerOptions scaled;
  scaled.loss_scale = {.kind = LossScale::Kind::dynamic, .rule = {.interval = 5}};
  train({.ranks = 2, .dir = path("plain")});
  train({.ranks = 2, .dir = path("whole"), .optimizer = scaled});
  EXPECT_EQ(file_text(path("plain/last/model.safetensors")), file_text(path("whole/last/model.safetensors")));
  train({.ranks = 2, .steps = 7, .dir = path("part"), .optimizer = scaled});
  train({.ranks = 2, .dir = path("part"), .resume = path("part/last"), .optimizer = scaled});
  for (const char* file : {"/last/model.safetensors", "/last/optimizer.safetensors"}) {
    EXPECT_TRUE(file_text(path("whole") + file) == file_text(path("part") + file)) << file;
  }
  const SafetensorsFile saved(path("part/last/optimizer.safetensors"));
  std::array<double, 1> scale{};
  std::array<std::int64_t, 1> good{};
  saved.read(*saved.find("loss_scale"), std::as_writable_bytes(std::span(scale)));
  saved.read(*saved.find("loss_scale_good"), std::as_writable_bytes(std::span(good)));
  EXPECT_EQ(scale[0], 4 * 65536) << "12 updates, of which it has grown after 5 and 10";
  EXPECT_EQ(good[0], 2);
  // From a run without a scale to one with it, and back.
  train({.steps = 3, .dir = path("a")});
  train({.steps = 6, .dir = path("a"), .resume = path("a/last"), .optimizer = scaled});
  train({.dir = path("a"), .resume = path("a/last")});
  train({.dir = path("b")});
  EXPECT_EQ(file_text(path("a/last/model.safetensors")), file_text(path("b/last/model.safetensors")));
}

TEST_F(TrainerTest, StoppedAtAnyEventAndResumedItWritesTheBytesOfARunThatWasNot) {
  // 6 steps an epoch, an event every third step: in the middle of an epoch, and at the end of the first.
  train({.ranks = 2, .dir = path("whole")});
  for (const std::int64_t stop_at : {3, 6, 9}) {
    const std::string dir = path("stopped at " + std::to_string(stop_at));
    RunResult result;
    EpochEvent last;
    train({.ranks = 2, .dir = dir, .stop_at = stop_at, .result = &result}, &last);
    EXPECT_EQ(result.end, RunEnd::stopped);
    EXPECT_EQ(last.epoch, stop_at / 6) << "an epoch that is over is evaluated before the run stops";
    EXPECT_EQ(read_checkpoint_state(dir + "/last").progress.position.step, stop_at);
    train({.ranks = 2, .dir = dir, .resume = dir + "/last", .result = &result});
    EXPECT_EQ(result.end, RunEnd::finished);
    for (const char* name : {"/last", "/best"}) {
      EXPECT_TRUE(checkpoint_bytes(dir + name) == checkpoint_bytes(path("whole") + name)) << stop_at << name;
    }
  }
}

TEST_F(TrainerTest, AStopAtTheLastStepOfTheRunLeavesNothingOut) {
  train({.dir = path("whole")});
  RunResult result;
  train({.dir = path("stopped"), .stop_at = 12, .result = &result});
  EXPECT_EQ(result.end, RunEnd::finished);
  EXPECT_GE(result.test_accuracy, 0);
  EXPECT_TRUE(checkpoint_bytes(path("stopped/last")) == checkpoint_bytes(path("whole/last")));
  // Nothing is left to do for who goes on from there, and the accuracy is known.
  result = {};
  train({.dir = path("stopped"), .resume = path("stopped/last"), .result = &result});
  EXPECT_EQ(result.end, RunEnd::finished);
  EXPECT_GE(result.test_accuracy, 0);
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

TEST_F(TrainerTest, AnEvaluationCountsTheTopK) {
  EpochEvent epoch;
  const Metrics top_2 = train({.ranks = 3, .dir = path("run"), .top_k = 2}, &epoch);
  EXPECT_EQ(epoch.top_k, 2);
  EXPECT_EQ(epoch.test_top_k_accuracy, top_2.top_k_accuracy());
  EXPECT_GE(top_2.top_k_correct, top_2.correct);
  const auto evaluated = [&](int ranks, int top_k) {
    return train({.ranks = ranks, .dir = path("run/last"), .evaluate_only = true, .top_k = top_k});
  };
  EXPECT_EQ(evaluated(1, 2).top_k_correct, top_2.top_k_correct);
  const Metrics top_1 = evaluated(2, 1);
  EXPECT_EQ(top_1.top_k_correct, top_1.correct);
  EXPECT_EQ(evaluated(2, 4).top_k_correct, 31) << "among all classes";
  EXPECT_EQ(evaluated(2, 0).top_k_correct, 0) << "not asked for";

  MetricsLog(path("metrics.jsonl"), false).on_epoch(epoch);
  const Json line = parse_json(file_text(path("metrics.jsonl")), "metrics.jsonl");
  EXPECT_EQ(line.get<double>("test_top_k_accuracy", "epoch"), epoch.test_top_k_accuracy);

  CpuContext context;
  const Model model = cifar_resnet(8, 4, 12, 12);
  const Model sequences = transformer({.vocabulary = 5, .length = 4, .width = 8, .heads = 2, .layers = 1});
  EXPECT_THROW(Plan(context, model, Mode::evaluate, 2, {.top_k = 5}), UsageError) << "4 classes";
  EXPECT_THROW(Plan(context, model, Mode::train, 2, {.top_k = -1}), UsageError);
  EXPECT_THROW(Plan(context, sequences, Mode::evaluate, 2, {.top_k = 2}), UsageError) << "several outputs a sample";
  EXPECT_THROW(Plan(context, model, Mode::evaluate, 2, {.loss = Loss::mse, .top_k = 2}), UsageError) << "no classes";
  EXPECT_EQ(Plan(context, model, Mode::train, 2, {.top_k = 2}).top_k(), 0);
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
      EXPECT_NE(std::string(error.what()).find("the file is of another model"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW((void)read_checkpoint_state(path("nowhere")), DataError);
}

/// Runs body(trainer, control) on `ranks` threads, with options changed by change(options, rank).
template <class Body>
std::vector<std::string> with_trainers(int ranks, const std::function<void(TrainerOptions&, int)>& change,
                                       Body&& body) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  return comm::run_ranks(ranks, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 11;
    change(options, grad.rank());
    Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
    body(trainer, *control);
  });
}

void expect_all_say(const std::vector<std::string>& failures, const std::string& text) {
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find(text), std::string::npos) << "'" << failure << "' lacks '" << text << "'";
  }
}

TEST_F(TrainerTest, TheStateOfAnotherOptimizerIsRefused) {
  train({.steps = 2, .dir = path("sgd")});
  train({.steps = 2, .dir = path("adam"), .optimizer = {.kind = OptimizerKind::adam}});
  const auto resume = [&](const std::string& dir, OptimizerKind kind,
                          const std::map<std::string, std::string>& options = {}) {
    return with_trainers(
        1, [&](TrainerOptions& o, int) { o.optimizer.kind = kind; },
        [&](Trainer& trainer, comm::Communicator& control) {
          trainer.start();
          RunProgress progress;
          RunIdentity identity;
          identity.options = options;
          (void)resume_checkpoint(dir, trainer, control, identity, progress);
          EXPECT_EQ(trainer.parameters().counter("step").span<std::int64_t>()[0], 2);
        });
  };
  expect_all_say(resume(path("sgd/last"), OptimizerKind::adam), "of another model or optimizer");
  expect_all_say(resume(path("adam/last"), OptimizerKind::sgd), "of another model or optimizer");
  EXPECT_EQ(resume(path("adam/last"), OptimizerKind::adam), comm::none_failed(1));
  // States of the same names, another rule.
  expect_all_say(resume(path("adam/last"), OptimizerKind::adamw, {{"optimizer", "adamw"}}),
                 "the state of optimizer adam, expected adamw");
  // A step count that cannot be.
  const std::string file = path("adam/last/optimizer.safetensors");
  std::string bytes = file_text(file);
  const SafetensorsFile opened(file);
  const SafetensorsEntry* step = opened.find("step");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->dtype, "I64");
  bytes[step->offset + 7] = '\xff';
  testing::put_file(file, bytes);
  expect_all_say(resume(path("adam/last"), OptimizerKind::adam), "expected a count of at least 0");
}

TEST_F(TrainerTest, RanksThatDisagreeAreNamed) {
  struct Case {
    std::string item;
    std::function<void(TrainerOptions&)> change;
  };
  const std::vector<Case> cases{
      {"seed", [](TrainerOptions& o) { o.seed = 9; }},
      {"global_batch", [](TrainerOptions& o) { o.global_batch = 12; }},
      {"accumulate", [](TrainerOptions& o) { o.accumulate = 2; }},
      {"momentum", [](TrainerOptions& o) { o.optimizer.momentum = 0.8; }},
      {"clip_norm", [](TrainerOptions& o) { o.optimizer.clip_norm = 0.8; }},
      {"skip_non_finite", [](TrainerOptions& o) { o.optimizer.skip_non_finite = true; }},
      {"top_k", [](TrainerOptions& o) { o.plan.top_k = 2; }},
      {"schedule", [](TrainerOptions& o) { o.schedule.kind = Schedule::Kind::step; }},
      {"learning_rate", [](TrainerOptions& o) { o.schedule.base = 0.3; }},
      {"milestones",
       [](TrainerOptions& o) {
         o.schedule.milestones = {3, 5};
       }},
      {"gamma", [](TrainerOptions& o) { o.schedule.gamma = 0.5; }},
      {"mean", [](TrainerOptions& o) { o.plan.augment.mean[2] = 0.5F; }},
      {"std", [](TrainerOptions& o) { o.plan.augment.std[1] = 0.25F; }},
      {"augmentation_seed", [](TrainerOptions& o) { o.plan.augment.seed = 4; }},
      {"buckets", [](TrainerOptions& o) { o.buckets.bucket_bytes = 1000; }},
      {"keep_last", [](TrainerOptions& o) { o.keep_last = true; }},
  };
  for (const Case& item : cases) {
    const auto change = [&](TrainerOptions& options, int rank) {
      if (rank == 2) {
        item.change(options);
      }
    };
    expect_all_say(with_trainers(3, change, [](Trainer& trainer, comm::Communicator&) { trainer.start(); }),
                   "the ranks do not agree: rank 0 has '" + item.item + " ");
  }
  // A library choice that one rank alone makes otherwise.
  const auto other_choice = [](TrainerOptions& options, int rank) {
    options.plan.choices["fc forward"] = "reference";
    options.plan.choices["conv1 forward"] = rank == 1 ? "onednn" : "reference";
  };
  if (LOCKSTEP_HAS_ONEDNN) {
    expect_all_say(with_trainers(2, other_choice, [](Trainer& trainer, comm::Communicator&) { trainer.start(); }),
                   "rank 0 has 'choice for conv1 forward reference', rank 1 has 'choice for conv1 forward onednn");
  }
}

TEST_F(TrainerTest, ChoicesOfLaterPassesAndOfEvaluationArePartOfTheRun) {
  const auto passes = [](std::int64_t accumulate) {
    Choices choices;
    EXPECT_EQ(with_trainers(
                  1, [&](TrainerOptions& options, int) { options.accumulate = accumulate; },
                  [&](Trainer& trainer, comm::Communicator&) {
                    choices = trainer.choices();
                    EXPECT_EQ(choices.size(),
                              static_cast<std::size_t>(accumulate) * trainer.train_plan().choices().size() +
                                  trainer.evaluation_plan().choices().size());
                  }),
              comm::none_failed(1));
    return choices;
  };
  const Choices one = passes(1);
  const Choices two = passes(2);
  int evaluated = 0;
  for (const auto& [call, choice] : one) {
    EXPECT_EQ(two.count(call), 1U) << call;
    const bool of_evaluation = call.ends_with(" evaluate");
    EXPECT_EQ(two.count(call + " accumulate"), of_evaluation ? 0U : 1U) << call;
    evaluated += of_evaluation ? 1 : 0;
  }
  EXPECT_GT(evaluated, 0);
  // Each pass takes what the options hold for it, and ranks that differ there do not agree.
  const auto other_choice = [](TrainerOptions& options, int rank) {
    options.accumulate = 2;
    options.plan.choices["conv1 forward"] = "reference";
    options.plan.choices["conv1 forward accumulate"] = rank == 1 ? "onednn" : "reference";
  };
  if (LOCKSTEP_HAS_ONEDNN) {
    expect_all_say(with_trainers(2, other_choice, [](Trainer& trainer, comm::Communicator&) { trainer.start(); }),
                   "rank 0 has 'choice for conv1 forward accumulate reference', rank 1 has 'choice for conv1 forward "
                   "accumulate onednn");
    const auto other_evaluation = [](TrainerOptions& options, int rank) {
      options.plan.choices["conv1 forward"] = "reference";
      options.plan.choices["conv1 forward evaluate"] = rank == 1 ? "onednn" : "reference";
    };
    expect_all_say(with_trainers(2, other_evaluation, [](Trainer& trainer, comm::Communicator&) { trainer.start(); }),
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

TEST_F(TrainerTest, PlannedBytesCountWhatTravels) {
  const auto planned = [](DType reduce_dtype, std::size_t* largest) {
    std::size_t bytes = 0;
    EXPECT_EQ(with_trainers(
                  1, [&](TrainerOptions& options, int) { options.reduce_dtype = reduce_dtype; },
                  [&](Trainer& trainer, comm::Communicator&) {
                    bytes = trainer.planned_bytes();
                    for (const comm::Bucket& bucket : trainer.reducer().buckets()) {
                      *largest = std::max(*largest, static_cast<std::size_t>(bucket.end - bucket.begin));
                    }
                  }),
              comm::none_failed(1));
    return bytes;
  };
  std::size_t unused = 0;
  std::size_t largest = 0;
  const std::size_t plain = planned(DType::f32, &unused);
  const std::size_t halved = planned(DType::bf16, &largest);
  EXPECT_EQ(halved, plain + 2 * largest);

  // A pass is sent from host memory of its own, for two steps, and its metrics come back to such.
  CpuContext context;
  const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
  const StepLayout layout = step_layout(cifar_resnet(8, 4, 12, 12), {});
  MicrobatchPipeline one(context, *alone, 5, layout, 2);
  const MicrobatchPipeline three(context, *alone, 5, layout, 6);
  const std::size_t a_pass = 2 * (align_up(one.state(0).packed().bytes(), kAlignment) + kAlignment);
  EXPECT_EQ(one.bytes(), one.state(0).bytes() + a_pass);
  EXPECT_EQ(three.bytes(), one.bytes() + 2 * a_pass);
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
    const auto failures = with_trainers(
        2, [](TrainerOptions&, int) {},
        [&](Trainer& trainer, comm::Communicator& control) {
          trainer.start();
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
  const auto failures = with_trainers(
      1, [](TrainerOptions&, int) {},
      [&](Trainer& trainer, comm::Communicator& control) {
        trainer.start();
        RunObserver nobody;
        for (const RunOptions& options : {RunOptions{.log_every = 0}, RunOptions{.epochs = -1}, RunOptions{.steps = -1},
                                          RunOptions{.checkpoint_every = -5}}) {
          EXPECT_THROW(run_training(trainer, control, {}, options, {}, nobody), UsageError);
        }
      });
  EXPECT_EQ(failures, comm::none_failed(1));
}

TEST_F(TrainerTest, WhatRanksHaveReadThemselvesIsCompared) {
  const auto failures = with_trainers(
      3, [](TrainerOptions&, int) {},
      [](Trainer& trainer, comm::Communicator& control) {
        trainer.start();
        trainer.require_same_state();
        ParameterSet& parameters = trainer.parameters();
        const std::vector<double> buffers(static_cast<std::size_t>(parameters.buffer_arena().numel()), 0.5);
        if (control.rank() == 1) {
          trainer.restore({.epoch = 0, .batch = 3, .step = 3}, buffers, 33);
        }
        EXPECT_THROW(trainer.require_same_state(), UsageError);
        trainer.restore({.epoch = 0, .batch = 3, .step = 3}, buffers, 33);
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
  EXPECT_EQ(failures, comm::none_failed(3));
}

TEST_F(TrainerTest, AStepBeforeTheStartIsRefused) {
  const auto failures = with_trainers(
      1, [](TrainerOptions&, int) {},
      [](Trainer& trainer, comm::Communicator&) { EXPECT_THROW(trainer.step(), StateError); });
  EXPECT_EQ(failures, comm::none_failed(1));
}

TEST_F(TrainerTest, WhatCannotBeIsRefusedBeforeAnythingIsAllocated) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  struct Case {
    TrainerOptions options;
    const char* text;
  };
  for (const Case& item : {Case{{.global_batch = 71}, "batch size 71 is larger than the data set, 70 samples"},
                           Case{{.global_batch = INT64_MAX}, "is larger than the data set"},
                           Case{{.global_batch = 11, .accumulate = 6}, "each of the 2 ranks in each of 6 passes"},
                           Case{{.global_batch = 11, .accumulate = 0}, "passes an update is 0, expected at least 1"},
                           Case{{.global_batch = 11, .plan = {.accumulate = true}}, "PlanOptions::accumulate is on"},
                           Case{{.global_batch = 11, .loader_workers = 300}, "300 workers, expected 0 to 256"},
                           Case{{.global_batch = 11, .prefetch = 0}, "prefetch 0, expected 1"}}) {
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

/// The checkpoint's state.json with one text in the place of another.
void edit_state(const std::string& dir, const std::string& from, const std::string& to) {
  std::string text = file_text(dir + "/state.json");
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << text;
  text.replace(at, from.size(), to);
  testing::put_file(dir + "/state.json", text);
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
    const auto failures = with_trainers(
        1, [](TrainerOptions&, int) {},
        [&](Trainer& trainer, comm::Communicator& control) {
          trainer.start();
          RunProgress progress;
          const std::string text = testing::error_of<DataError>(
              [&] { (void)resume_checkpoint(path("run/last"), trainer, control, {}, progress); });
          for (const std::string& word : item.words) {
            testing::expect_holds(text, word);
          }
        });
    EXPECT_EQ(failures, comm::none_failed(1));
  }
}

TEST_F(TrainerTest, ACheckpointThatCannotBeWrittenFailsOnEveryRankAlike) {
  testing::put_file(path("file"), "not a folder");
  const auto failures = with_trainers(
      3, [](TrainerOptions&, int) {},
      [&](Trainer& trainer, comm::Communicator& control) {
        trainer.start();
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

TEST_F(TrainerTest, AChoiceThatCannotBePlannedHereGivesWayWhenItMay) {
  CpuContext context({.threads = 1});
  const Model model = cifar_resnet(8, 4, 12, 12);
  const Choices first = Plan(context, model, Mode::train, 4).choices();
  PlanOptions options;
  options.choices = first;
  for (const char* key : {"conv1 forward", "layer1.0.conv1 backward_data", "fc backward_weights"}) {
    ASSERT_EQ(first.count(key), 1U) << key;
    options.choices[key] = "another library:fast";
  }
  EXPECT_THROW(Plan(context, model, Mode::train, 4, options), UsageError);
  options.choices_required = false;
  EXPECT_EQ(Plan(context, model, Mode::train, 4, options).choices(), first);
}

TEST_F(TrainerTest, TheEndWithoutAnEvaluationHasNoAccuracy) {
  RunResult result;
  train({.dir = path("run"), .stop_at = 3, .result = &result});
  EXPECT_EQ(result.end, RunEnd::stopped);
  MetricsLog(path("metrics.jsonl"), false).on_end(75, 3, result);
  const Json line = parse_json(file_text(path("metrics.jsonl")), "metrics.jsonl");
  EXPECT_TRUE(line.member("test_accuracy", "end").is_null());
  EXPECT_TRUE(line.member("best_accuracy", "end").is_null());
  result.test_accuracy = 0;
  MetricsLog(path("metrics.jsonl"), false).on_end(0, 3, result);
  EXPECT_EQ(parse_json(file_text(path("metrics.jsonl")), "metrics.jsonl").get<double>("test_accuracy", "end"), 0);
}

/// Counts reads, so that a test can wait until the loader is as far ahead as it goes.
class Counting final : public ImageDataset {
 public:
  explicit Counting(const ImageDataset& whole)
      : ImageDataset({whole.name(), whole.size(), whole.height(), whole.width(), whole.classes()}), whole_(whole) {}
  std::int32_t label(std::int64_t index) const override { return whole_.label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override {
    whole_.read(index, image);
    ++reads_;
  }
  std::uint64_t fingerprint() const override { return whole_.fingerprint(); }
  [[nodiscard]] std::int64_t reads() const { return reads_; }

 private:
  const ImageDataset& whole_;
  mutable std::atomic<std::int64_t> reads_{0};
};

/// Steps on a compute stream that is behind: nothing is computed before the loader has filled every batch that it may.
std::vector<float> train_on(Stream& stream, bool behind) {
  const DataSplit whole = small_data();
  DataSplit data;
  auto counting = std::make_unique<Counting>(*whole.train);
  const Counting& reads = *counting;
  data.train = std::move(counting);
  data.test = small_data().test;
  std::vector<float> values;
  const auto failures = comm::run_ranks(1, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, 0);
    CpuContext context({.threads = 1, .stream = &stream});
    TrainerOptions options;
    options.global_batch = 7;
    options.plan.augment.seed = 1;
    Trainer trainer(context, {grad, *control, stream}, cifar_resnet(8, 4, 12, 12), data, options);
    trainer.start();
    if (behind) {
      // The third step hands out batch 2, and then waits for the first step: batches up to 2 + prefetch are filled.
      const std::int64_t ahead = 7 * (3 + options.prefetch);
      stream.enqueue([&reads, ahead] {
        while (reads.reads() < ahead) {
          std::this_thread::yield();
        }
      });
    }
    for (int i = 0; i < 12; ++i) {
      trainer.step();
    }
    const Metrics train = trainer.take_metrics();
    const Metrics test = trainer.evaluate();
    const auto arena = trainer.parameters().values().span<float>();
    values.assign(arena.begin(), arena.end());
    for (const double value : {train.loss_sum, train.correct, test.loss_sum, test.correct}) {
      values.push_back(static_cast<float>(value));
    }
  });
  EXPECT_EQ(failures, comm::none_failed(1));
  return values;
}

TEST_F(TrainerTest, AnAsynchronousComputeStreamGivesTheSameBits) {
  Stream here = Stream::host_inline();
  const std::vector<float> expected = train_on(here, false);
  Stream worker = Stream::host_worker("compute");
  EXPECT_TRUE(train_on(worker, true) == expected);
  EXPECT_TRUE(train_on(worker, false) == expected);
}

/// Host memory that must not be given back while the stream still works.
class GivenBackIdle final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override {
    return host_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override {
    going = true;
    EXPECT_TRUE(pointer == nullptr || last_work.complete()) << bytes << " bytes go while work that uses them is queued";
    host_.deallocate(pointer, bytes, alignment, stream);
  }
  Device device() const override { return Device::cpu(); }
  Event last_work{Device::cpu()};
  std::atomic<bool> going{false};

 private:
  HostMemoryResource host_;
};

/// Fails or stands still in an all-reduce, as on a device whose peer is gone: then only check() says so.
class Broken final : public comm::WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;
  void all_reduce(Stream& stream, const TensorView& data) override {
    require<StateError>(--until_failure != 0, "the all-reduce that fails");
    if (peer_is_gone) {
      stream.enqueue([this] {
        while (!released) {
          std::this_thread::yield();
        }
      });
    }
    WrappedCommunicator::all_reduce(stream, data);
  }
  void check() override {
    ++checks;
    require<PeerError>(!peer_is_gone, "a peer is gone");
  }
  int until_failure = 0;  ///< all-reduces; 0: none fails
  bool peer_is_gone = false;
  std::atomic<bool> released{false};
  int checks = 0;
};

/// Values and sums after nine steps, of which the all-reduce `until_failure` fails once.
std::vector<double> train_with_failure(int until_failure, std::int64_t passes) {
  const DataSplit data = small_data();
  // No running statistics, which see a batch that is taken anew twice.
  const Model model = make_model({.name = "mlp", .classes = 4, .height = 12, .width = 12, .hidden = {20, 10}});
  std::vector<double> values;
  const auto failures = comm::run_ranks(1, [&](comm::Communicator& inner) {
    Broken grad(inner);
    const auto control = inner.split(0, 0);
    CpuContext context({.threads = 1});
    TrainerOptions options;
    options.global_batch = 11;  // six steps an epoch
    options.accumulate = passes;
    options.buckets.bucket_bytes = options.buckets.tail_bytes = 1000;
    Trainer trainer(context, {grad, *control, context.stream()}, model, data, options);
    ASSERT_GT(trainer.reducer().buckets().size(), 1U);
    trainer.start();
    grad.until_failure = until_failure;
    int failed = 0;
    while (trainer.position().step < 9) {
      const Position before = trainer.position();
      try {
        trainer.step();
      } catch (const StateError& e) {
        EXPECT_STREQ(e.what(), "the all-reduce that fails");
        EXPECT_EQ(trainer.position().step, before.step);
        ASSERT_EQ(++failed, 1);
      }
    }
    EXPECT_EQ(failed, until_failure > 0 ? 1 : 0);
    EXPECT_EQ(grad.checks, 0) << "nobody looks after operations that have passed when they return";
    const auto arena = trainer.parameters().values().span<float>();
    values.assign(arena.begin(), arena.end());
    const Metrics sums = trainer.take_metrics();
    values.insert(values.end(), {sums.loss_sum, sums.correct, sums.samples, static_cast<double>(failed)});
  });
  EXPECT_EQ(failures, comm::none_failed(1));
  return values;
}

TEST_F(TrainerTest, AStepThatFailedIsTakenAnew) {
  for (const std::int64_t passes : {1, 2}) {
    std::vector<double> expected = train_with_failure(0, passes);
    ASSERT_GT(expected.size(), 4U);
    expected.back() = 1;
    // The first step, one in the middle, the last of an epoch, with other buckets started before.
    for (const int until_failure : {1, 8, 12}) {
      EXPECT_TRUE(train_with_failure(until_failure, passes) == expected)
          << "all-reduce " << until_failure << ", " << passes << " pass(es)";
    }
  }
}

TEST_F(TrainerTest, APeerThatIsGoneEndsTheWait) {
  const DataSplit data = small_data();
  const std::vector<std::function<void(Trainer&)>> waits{
      [](Trainer& trainer) { (void)trainer.take_metrics(); },
      [](Trainer& trainer) { (void)trainer.skipped_updates(); },
      [](Trainer& trainer) { (void)trainer.evaluate(); },
      [](Trainer& trainer) { trainer.require_same_state(); },
      [](Trainer& trainer) {
        for (int i = 0; i < 3; ++i) {
          trainer.step();
        }
      },
  };
  for (const auto& wait : waits) {
    const auto failures = comm::run_ranks(1, [&](comm::Communicator& inner) {
      Broken grad(inner);
      const auto control = inner.split(0, 0);
      Stream compute = Stream::host_worker("compute");
      Stream communication = Stream::host_worker("comm");
      CpuContext context({.threads = 1, .stream = &compute});
      TrainerOptions options;
      options.global_batch = 11;
      options.optimizer.skip_non_finite = true;
      Trainer trainer(context, {grad, *control, communication}, cifar_resnet(8, 4, 12, 12), data, options);
      trainer.start();
      trainer.step();
      (void)trainer.take_metrics();
      grad.peer_is_gone = true;
      trainer.step();
      try {
        wait(trainer);
      } catch (...) {
        grad.released = true;  // as a communicator does that gives its operations up
        throw;
      }
      grad.released = true;
    });
    EXPECT_EQ(failures, std::vector<std::string>{"peer: a peer is gone"}) << "wait " << &wait - waits.data();
  }
}

TEST_F(TrainerTest, ItsMemoryGoesAfterTheWorkThatUsesIt) {
  const DataSplit data = small_data();
  const auto failures = comm::run_ranks(1, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, 0);
    GivenBackIdle memory;
    Stream worker = Stream::host_worker("compute");
    Stream communication = Stream::host_worker("comm");
    CpuContext context({.threads = 1, .stream = &worker, .memory = &memory});
    TrainerOptions options;
    options.global_batch = 70;
    Trainer trainer(context, {grad, *control, communication}, cifar_resnet(8, 4, 12, 12), data, options);
    trainer.start();
    trainer.step();
    trainer.step();
    memory.going = false;
    worker.enqueue([&memory] {  // long enough for memory to go too early
      for (int i = 0; i < 10'000 && !memory.going; ++i) {
        std::this_thread::yield();
      }
    });
    worker.record(memory.last_work);
  });
  EXPECT_EQ(failures, comm::none_failed(1));
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
void expect_no_allocation(const std::string& choice, std::int64_t passes = 1) {
  const DataSplit data = small_data();
  const Model model = cifar_resnet(8, 4, 12, 12);
  std::barrier together(2);
  const auto failures = comm::run_ranks(2, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    HostMemoryResource host;
    TrackingMemoryResource memory(host);
    CpuContext context({.threads = 1, .memory = &memory});
    Stream worker = Stream::host_worker("comm");
    TrainerOptions options;
    options.global_batch = 11;
    options.accumulate = passes;
    options.optimizer = {.kind = OptimizerKind::adam, .clip_norm = 1};
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
    // All threads of both ranks: compute, communication, loaders.
    together.arrive_and_wait();
    count_allocations::everywhere = true;
    together.arrive_and_wait();
    for (int i = 0; i < 8; ++i) {  // over the end of an epoch
      trainer.step();
    }
    context.synchronize();
    worker.synchronize();
    together.arrive_and_wait();
    count_allocations::everywhere = false;
    EXPECT_EQ(count_allocations::allocations, allocations);
    EXPECT_EQ(memory.counts().allocations, before.allocations);
  });
  EXPECT_EQ(failures, comm::none_failed(2));
}

TEST_F(TrainerTest, AStepAllocatesNothing) {
  expect_no_allocation("reference");
  expect_no_allocation("reference", 2);
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
  using count_allocations::allocations;
  // Calls of the operator: a new-expression without use may be left out by the compiler.
  const auto allocate = [] { ::operator delete(::operator new(40)); };
  const auto allocate_aligned = [] {
    ::operator delete (::operator new (40, std::align_val_t{64}), std::align_val_t{64});
  };
  const std::int64_t before = allocations;
  allocate();
  allocate_aligned();
  EXPECT_EQ(allocations, before) << "nothing is counted unless asked for";
  count_allocations::counting = true;
  allocate();
  allocate_aligned();
  count_allocations::counting = false;
  EXPECT_EQ(allocations, before + 2);

  Stream worker = Stream::host_worker("other");
  count_allocations::counting = true;
  worker.enqueue(allocate);
  worker.synchronize();
  count_allocations::counting = false;
  EXPECT_EQ(allocations, before + 2) << "another thread's are not this one's";
  count_allocations::everywhere = true;
  worker.enqueue(allocate);
  worker.enqueue(allocate_aligned);
  worker.synchronize();
  count_allocations::everywhere = false;
  EXPECT_EQ(allocations, before + 4);
}

TEST_F(TrainerTest, LearnsWhatItTrainsOn) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EpochEvent last;
    train({.ranks = 2, .epochs = 30, .total_steps = 180, .augment = false, .dtype = dtype}, &last);
    EXPECT_EQ(last.epoch, 30);
    EXPECT_GT(last.train_accuracy, 0.9) << dtype << ": four classes: chance is a quarter";
  }
}

TEST_F(TrainerTest, ACheckpointOfARunInBf16HoldsMastersAndGoesOnInEitherType) {
  for (const int ranks : {1, 3}) {
    train({.ranks = ranks, .dir = path("whole"), .dtype = DType::bf16});
    train({.ranks = ranks, .steps = 8, .dir = path("part"), .dtype = DType::bf16});
    train({.ranks = ranks, .dir = path("f32"), .resume = path("part/last")});
    train({.ranks = ranks, .dir = path("part"), .resume = path("part/last"), .dtype = DType::bf16});
    for (const char* file : {"/last/model.safetensors", "/last/optimizer.safetensors"}) {
      EXPECT_TRUE(file_text(path("whole") + file) == file_text(path("part") + file)) << file;
      EXPECT_FALSE(file_text(path("whole") + file) == file_text(path("f32") + file)) << file;
    }
  }
  const SafetensorsFile saved(path("whole/last/model.safetensors"));
  for (const SafetensorsEntry& entry : saved.entries()) {
    EXPECT_EQ(entry.dtype, "F32") << entry.name;
  }
  // Read elsewhere, the weights are rounded from it.
  CpuContext context;
  ParameterSet set(context, cifar_resnet(8, 4, 12, 12), DType::bf16);
  load_model(path("whole/last"), context, set);
  const Tensor rounded = Tensor::empty(context, set.values().shape, DType::bf16);
  copy_now(context, set.values(), rounded.view());
  testing::expect_same_bits(set.weights(), rounded.view());
  EXPECT_FALSE(testing::is_close(set.weights(), set.values(), 1e-5)) << "the masters have more digits";
  // Evaluated with the masters of a run in f32.
  const Metrics f32 = train({.dir = path("f32/last"), .evaluate_only = true});
  const Metrics bf16 = train({.dir = path("f32/last"), .evaluate_only = true, .dtype = DType::bf16});
  EXPECT_NEAR(bf16.loss(), f32.loss(), 0.02 * f32.loss());
  EXPECT_NE(bf16.loss(), f32.loss());
}

TEST_F(TrainerTest, RanksInBf16AddUpToOne) {
  // No batch norm: what a sample adds to the gradient does not depend on the others, and sums are f32.
  const auto view = [](const std::vector<double>& values) {
    return TensorView(std::span(const_cast<std::vector<double>&>(values)), {static_cast<std::int64_t>(values.size())});
  };
  const Outcome one = accumulated(1, 1, false, false, DType::bf16);
  for (const int ranks : {2, 3}) {
    const Outcome shared = accumulated(ranks, 1, false, true, DType::bf16);
    testing::expect_close(view(shared.gradients), view(one.gradients), 1e-2);
    testing::expect_close(view(shared.parameters), view(one.parameters), 1e-3);
  }
  testing::expect_close(view(accumulated(1, 3, false, false, DType::bf16).gradients), view(one.gradients), 1e-2);
  // The control: samples that are mirrored otherwise give other gradients, of the same shape and far off.
  const Outcome other = accumulated(1, 1, false, false, DType::bf16, 4);
  ASSERT_EQ(other.gradients.size(), one.gradients.size());
  EXPECT_FALSE(testing::is_close(view(one.gradients), view(other.gradients), 1e-1));
}

TEST_F(TrainerTest, OptionTextsNameWhatItComputesIn) {
  const DataSplit data = small_data();
  TrainerOptions options;
  const auto plain = option_texts(options, data);
  EXPECT_EQ(plain.at("dtype"), "f32");
  EXPECT_EQ(plain.count("tf32") + plain.count("loss_scale"), 0U);
  options.plan.tf32 = true;
  options.optimizer.loss_scale = parse_loss_scale("512");
  EXPECT_EQ(option_texts(options, data).at("tf32"), "1");
  EXPECT_EQ(option_texts(options, data).at("loss_scale"), "fixed 512");
  options.plan.dtype = DType::bf16;
  EXPECT_EQ(option_texts(options, data).at("dtype"), "bf16");
}

TEST(CudaGraphOption, SaysWhyStepsAreNotCaptured) {
  const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
  comm::LocalGroup pair(2);
  const std::unique_ptr<comm::Communicator> first = pair.communicator(0);
  const std::unique_ptr<comm::Communicator> second = pair.communicator(1);
  const Device gpu = Device::gpu(0);
  EXPECT_EQ(graph_obstacle(gpu, *alone, CudaGraph::automatic), "");
  EXPECT_EQ(graph_obstacle(gpu, *alone, CudaGraph::on), "");
  EXPECT_EQ(graph_obstacle(gpu, *alone, CudaGraph::off), "switched off");
  EXPECT_EQ(graph_obstacle(Device::cpu(), *alone, CudaGraph::automatic), "the device is cpu");
  EXPECT_EQ(graph_obstacle(gpu, *first, CudaGraph::automatic), "the local communicator cannot be captured");
  EXPECT_THROW((void)graph_obstacle(gpu, *second, CudaGraph::on), UsageError);
  EXPECT_THROW((void)graph_obstacle(Device::cpu(), *alone, CudaGraph::on), UsageError);
}

}  // namespace
}  // namespace lockstep::nn
