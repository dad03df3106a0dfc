// Tests the computations of a run: micro-batches, ranks, types, metrics, planned bytes, the compute stream.

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/run/observers/metrics_log.hpp>
#include <lockstep/nn/step/microbatch_pipeline.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/files/json.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>

#include "tests/nn/run/trainer_runs.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

TensorView view(const std::vector<double>& values) {
  return TensorView(std::span(const_cast<std::vector<double>&>(values)), {static_cast<std::int64_t>(values.size())});
}

TEST_F(TrainerTest, ClippingIsTheSameOnAnyNumberOfRanks) {
  // The model has no batch norm and computes in f64, so that the ranks' gradients add up to the gradient of the whole
  // batch.
  const auto parameters = [&](int ranks, double clip_norm) {
    std::vector<double> values;
    TrainerSetup setup{.ranks = ranks, .model = mlp({12, 12, 3}, {9}, 4)};
    setup.options.step.plan.dtype = DType::f64;
    setup.options.step.optimizer.clip_norm = clip_norm;
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      steps(trainer, 5);
      trainer.context().synchronize();
      if (control.rank() == 0) {
        values = testing::to_doubles(trainer.parameters().values());
      }
    });
    return values;
  };
  const std::vector<double> one = parameters(1, 0.1);
  testing::expect_close(view(parameters(2, 0.1)), view(one), 1e-12);
  testing::expect_close(view(parameters(3, 0.1)), view(one), 1e-12);
  EXPECT_FALSE(testing::is_close(view(parameters(2, 0)), view(one), 1e-6));
}

TEST_F(TrainerTest, GradientsMayTravelIn16Bits) {
  const auto parameters = [](DType reduce_dtype) {
    std::vector<std::vector<double>> values(2);
    TrainerSetup setup{.ranks = 2, .model = mlp({12, 12, 3}, {9}, 4)};
    setup.options.step.sums.dtype = reduce_dtype;
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      steps(trainer, 3);
      trainer.context().synchronize();
      values[static_cast<std::size_t>(control.rank())] = testing::to_doubles(trainer.parameters().values());
    });
    EXPECT_EQ(values[0], values[1]) << "both ranks have the same bits";
    return values[0];
  };
  const std::vector<double> exact = parameters(DType::f32);
  const std::vector<double> rounded = parameters(DType::bf16);
  EXPECT_NE(rounded, exact);
  testing::expect_close(view(rounded), view(exact), 1e-2);
}

/// The gradients of the last step, the parameters, and the metrics of all steps.
struct Outcome {
  std::vector<double> gradients;
  std::vector<double> parameters;
  std::vector<double> metrics;
  std::size_t bytes = 0;
};

struct Accumulated {
  int ranks = 1;
  std::int64_t microbatches = 1;
  bool batch_norm = false;
  bool overlap = false;
  DType dtype = DType::f64;
  std::uint64_t augmentation_seed = 3;
};

/// Runs an epoch of 7 steps: 6 of 11 samples and a last one of 4, in which some micro-batches have no sample.
Outcome accumulated(const Accumulated& run) {
  ModelBuilder b = ModelBuilder::for_images("plain", {12, 12, 3});
  NodeId x = b.relu("r1", b.conv2d("c1", b.input(), 6, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  if (run.batch_norm) {
    x = b.batch_norm("bn", x, {});
  }
  x = b.relu("r2", b.linear("l1", x, 9, {.he_init = true}));
  b.linear("fc", x, 4);
  TrainerSetup setup{.ranks = run.ranks, .model = b.build(), .overlap = run.overlap};
  setup.options.accumulate = run.microbatches;
  setup.options.keep_last = true;
  setup.options.step.plan.dtype = run.dtype;
  setup.options.step.plan.augment = {.pad = 2, .flip = true, .seed = run.augmentation_seed};
  setup.options.step.buckets.bucket_bytes = 3000;
  setup.options.loader_workers = run.microbatches > 1 ? 2 : 0;
  Outcome outcome;
  on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
    steps(trainer, 7);
    EXPECT_EQ(trainer.position().epoch, 1);
    EXPECT_EQ(trainer.position().step, 7);
    const Metrics trained = trainer.take_metrics();
    const Metrics tested = trainer.evaluate();
    trainer.context().synchronize();
    if (control.rank() == 0) {
      outcome = {testing::to_doubles(trainer.parameters().gradients()),
                 testing::to_doubles(trainer.parameters().values()),
                 {trained.loss_sum, trained.correct, trained.samples, tested.loss_sum, tested.correct, tested.samples},
                 trainer.planned_bytes()};
      EXPECT_EQ(trained.samples, 70);
      EXPECT_EQ(tested.samples, 31);
    }
  });
  return outcome;
}

TEST_F(TrainerTest, MicrobatchesAddUpToTheGradientOfTheWholeBatch) {
  const Outcome whole = accumulated({});
  const auto expect_same = [&](const Outcome& other) {
    testing::expect_close(view(other.gradients), view(whole.gradients), 1e-12);
    testing::expect_close(view(other.parameters), view(whole.parameters), 1e-12);
    testing::expect_close(view(other.metrics), view(whole.metrics), 1e-12);
  };
  for (const std::int64_t microbatches : {2, 5, 11}) {
    const Outcome other = accumulated({.microbatches = microbatches});
    expect_same(other);
    // Smaller micro-batches need less memory for activations. In this small model, 11 micro-batches of one sample save
    // less memory than their host buffers take.
    if (microbatches < 11) {
      EXPECT_LT(other.bytes, whole.bytes) << "memory is planned for a micro-batch";
    }
  }
  expect_same(accumulated({.ranks = 2, .microbatches = 3, .overlap = true}));
  expect_same(accumulated({.ranks = 3, .microbatches = 2}));
  // The result of batch norm depends on the samples in a micro-batch, so the gradients must differ.
  const Outcome normalised = accumulated({.batch_norm = true});
  const Outcome in_parts = accumulated({.microbatches = 2, .batch_norm = true});
  EXPECT_FALSE(testing::is_close(view(in_parts.gradients), view(normalised.gradients), 1e-6));
}

TEST_F(TrainerTest, RanksInBf16AddUpToOne) {
  // Without batch norm, the gradient of a sample does not depend on other samples. Sums over samples and ranks are in
  // f32, so only rounding differs.
  const Outcome one = accumulated({.dtype = DType::bf16});
  for (const int ranks : {2, 3}) {
    const Outcome shared = accumulated({.ranks = ranks, .overlap = true, .dtype = DType::bf16});
    testing::expect_close(view(shared.gradients), view(one.gradients), 1e-2);
    testing::expect_close(view(shared.parameters), view(one.parameters), 1e-3);
  }
  const Outcome in_parts = accumulated({.microbatches = 3, .dtype = DType::bf16});
  testing::expect_close(view(in_parts.gradients), view(one.gradients), 1e-2);
  // The control: another seed of mirroring gives gradients of the same shape that differ much.
  const Outcome other = accumulated({.dtype = DType::bf16, .augmentation_seed = 4});
  ASSERT_EQ(other.gradients.size(), one.gradients.size());
  EXPECT_FALSE(testing::is_close(view(one.gradients), view(other.gradients), 1e-1));
}

TEST_F(TrainerTest, ManyRanksEvaluateLikeOneThatLoadsTheCheckpoint) {
  const Metrics three = train({.ranks = 3, .dir = path("run")}).metrics;
  EXPECT_EQ(three.samples, 31) << "every sample once";
  for (const int ranks : {1, 2, 4}) {
    const Metrics again = train({.ranks = ranks, .dir = path("run/last"), .evaluate_only = true}).metrics;
    EXPECT_EQ(again.correct, three.correct) << ranks;
    EXPECT_EQ(again.samples, three.samples) << ranks;
    EXPECT_NEAR(again.loss(), three.loss(), 1e-6) << ranks;
  }
}

TEST_F(TrainerTest, AnEvaluationCountsTheTopK) {
  const auto [top_2, result, epoch] = train({.ranks = 3, .dir = path("run"), .top_k = 2});
  EXPECT_EQ(epoch.test.top_k, 2);
  EXPECT_EQ(epoch.test.top_k_accuracy, top_2.top_k_accuracy());
  EXPECT_GE(top_2.top_k_correct, top_2.correct);
  const auto evaluated = [&](int ranks, int top_k) {
    return train({.ranks = ranks, .dir = path("run/last"), .evaluate_only = true, .top_k = top_k}).metrics;
  };
  EXPECT_EQ(evaluated(1, 2).top_k_correct, top_2.top_k_correct);
  const Metrics top_1 = evaluated(2, 1);
  EXPECT_EQ(top_1.top_k_correct, top_1.correct);
  EXPECT_EQ(evaluated(2, 4).top_k_correct, 31) << "among all classes";
  EXPECT_EQ(evaluated(2, 0).top_k_correct, 0) << "not asked for";

  MetricsLog(path("metrics.jsonl"), false).on_epoch_end(epoch);
  const Json line = parse_json(file_text(path("metrics.jsonl")), "metrics.jsonl");
  EXPECT_EQ(line.get<double>("test_top_k_accuracy", "epoch"), epoch.test.top_k_accuracy);

  CpuContext context;
  const Model model = cifar_resnet(8, 4, 12, 12);
  const Model sequences = transformer({.vocabulary = 5, .length = 4, .width = 8, .heads = 2, .layers = 1});
  EXPECT_THROW(Plan(context, model, Mode::evaluate, 2, {.top_k = 5}), UsageError) << "4 classes";
  EXPECT_THROW(Plan(context, model, Mode::train, 2, {.top_k = -1}), UsageError);
  EXPECT_THROW(Plan(context, sequences, Mode::evaluate, 2, {.top_k = 2}), UsageError) << "several outputs a sample";
  EXPECT_THROW(Plan(context, model, Mode::evaluate, 2, {.loss = Loss::mse, .top_k = 2}), UsageError) << "no classes";
  EXPECT_EQ(Plan(context, model, Mode::train, 2, {.top_k = 2}).top_k(), 0);
}

TEST_F(TrainerTest, PlannedBytesCountWhatTravels) {
  const auto planned = [](DType reduce_dtype, std::size_t* largest) {
    std::size_t bytes = 0;
    TrainerSetup setup{.started = false};
    setup.options.step.sums.dtype = reduce_dtype;
    on_trainers(setup, [&](Trainer& trainer) {
      bytes = trainer.planned_bytes();
      for (const comm::Bucket& bucket : trainer.reducer().buckets()) {
        *largest = std::max(*largest, static_cast<std::size_t>(bucket.end - bucket.begin));
      }
    });
    return bytes;
  };
  std::size_t unused = 0;
  std::size_t largest = 0;
  const std::size_t plain = planned(DType::f32, &unused);
  const std::size_t halved = planned(DType::bf16, &largest);
  EXPECT_EQ(halved, plain + 2 * largest);

  // Each micro-batch of each of two steps has its own host memory: a copy of its packed fields, and kAlignment bytes
  // for its metrics.
  CpuContext context;
  const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
  const StepLayout layout = step_layout(cifar_resnet(8, 4, 12, 12), {});
  MicrobatchPipeline one(context, *alone, 5, layout, 2);
  const MicrobatchPipeline three(context, *alone, 5, layout, 6);
  const std::size_t a_pass = 2 * (align_up(one.state(0).packed().bytes(), kAlignment) + kAlignment);
  EXPECT_EQ(one.bytes(), one.state(0).bytes() + a_pass);
  EXPECT_EQ(three.bytes(), one.bytes() + 2 * a_pass);
}

/// A data set that counts reads, so that a test can wait until the loader has read all batches that it may prefetch.
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

/// Returns the parameters and metrics after training on `stream`. If `behind` is true, the stream begins its work only
/// when the loader has filled as many batches as it may.
std::vector<float> train_on(Stream& stream, bool behind) {
  const DataSplit whole = small_data();
  DataSplit data;
  auto counting = std::make_unique<Counting>(*whole.train);
  const Counting& reads = *counting;
  data.train = std::move(counting);
  data.test = small_data().test;
  std::vector<float> values;
  TrainerSetup setup{.data = data, .compute = &stream};
  setup.options.global_batch = 7;
  setup.options.step.plan.augment.seed = 1;
  on_trainers(setup, [&](Trainer& trainer) {
    if (behind) {
      // The third step takes batch 2, and then waits for the first step: batches up to 2 + prefetch are then filled.
      const std::int64_t ahead = 7 * (3 + setup.options.prefetch);
      stream.enqueue([&reads, ahead] {
        while (reads.reads() < ahead) {
          std::this_thread::yield();
        }
      });
    }
    steps(trainer, 12);
    const Metrics train = trainer.take_metrics();
    const Metrics test = trainer.evaluate();
    const auto arena = trainer.parameters().values().span<float>();
    values.assign(arena.begin(), arena.end());
    for (const double value : {train.loss_sum, train.correct, test.loss_sum, test.correct}) {
      values.push_back(static_cast<float>(value));
    }
  });
  return values;
}

TEST_F(TrainerTest, AnAsynchronousComputeStreamGivesTheSameBits) {
  Stream here = Stream::host_inline();
  const std::vector<float> expected = train_on(here, false);
  Stream worker = Stream::host_worker("compute");
  EXPECT_TRUE(train_on(worker, true) == expected);
  EXPECT_TRUE(train_on(worker, false) == expected);
}

TEST_F(TrainerTest, AChoiceThatCannotBePlannedHereGivesWayWhenItMay) {
  CpuContext context({.threads = 1});
  const Model model = cifar_resnet(8, 4, 12, 12);
  const Choices first = Plan(context, model, Mode::train, 4).choices();
  PlanOptions options{.choices = first};
  for (const char* key : {"conv1 forward", "layer1.0.conv1 backward_data", "fc backward_weights"}) {
    ASSERT_EQ(first.count(key), 1U) << key;
    options.choices[key] = "another library:fast";
  }
  EXPECT_THROW(Plan(context, model, Mode::train, 4, options), UsageError);
  options.choices_required = false;
  EXPECT_EQ(Plan(context, model, Mode::train, 4, options).choices(), first);
}

TEST_F(TrainerTest, LearnsWhatItTrainsOn) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const RunSetup setup{.ranks = 2, .epochs = 30, .total_steps = 180, .augment = false, .dtype = dtype};
    const EpochEvent last = train(setup).last;
    EXPECT_EQ(last.epoch, 30);
    EXPECT_GT(last.train_accuracy, 0.9) << dtype << ": four classes: chance is a quarter";
  }
}

TEST_F(TrainerTest, OptionTextsNameWhatItComputesIn) {
  const DataSplit data = small_data();
  TrainerOptions options;
  const auto plain = option_texts(options, data);
  auto on_host = plain;  // a host's texts also have the variant of its kernels, in a build with several
  if (!chosen_variant().empty()) {
    on_host["cpu_variant"] = chosen_variant();
  }
  EXPECT_EQ(option_texts(Device::cpu(), options, data), on_host);
  EXPECT_EQ(option_texts(Device{DeviceKind::cuda, 0}, options, data), plain);
  EXPECT_EQ(plain.at("dtype"), "f32");
  EXPECT_EQ(plain.count("tf32") + plain.count("loss_scale"), 0U);
  options.step.plan.tf32 = true;
  options.step.optimizer.loss_scale = parse_loss_scale("512");
  EXPECT_EQ(option_texts(options, data).at("tf32"), "1");
  EXPECT_EQ(option_texts(options, data).at("loss_scale"), "fixed 512");
  options.step.plan.dtype = DType::bf16;
  EXPECT_EQ(option_texts(options, data).at("dtype"), "bf16");
}

// `pad` and `flip` must be numbers in the option texts. Reflected padding and alternating mirroring must have keys of
// their own, pad_mode and flip_mode.
TEST_F(TrainerTest, OptionTextsNameHowImagesArePaddedAndMirrored) {
  const DataSplit data = small_data();
  TrainerOptions options;
  ops::AugmentDesc& augment = options.step.plan.augment;
  augment = {.alternate = true, .reflect = true};  // without padding and mirroring the keys are absent
  EXPECT_EQ(option_texts(options, data).count("pad_mode") + option_texts(options, data).count("flip_mode"), 0U);
  augment = {.pad = 2, .flip = true};
  auto plain = option_texts(options, data);
  EXPECT_EQ(plain.at("pad"), "2");
  EXPECT_EQ(plain.at("flip"), "1");
  augment.alternate = augment.reflect = true;
  const auto texts = option_texts(options, data);
  plain.insert({{"pad_mode", "reflect"}, {"flip_mode", "alternate"}});
  EXPECT_EQ(texts, plain);
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
