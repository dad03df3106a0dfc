// Tests whole training on a CudaContext without a GPU. lockstep's host code runs on a stand-in for the CUDA runtime,
// and lockstep's kernels run in an emulator. environment.cpp makes a test fail if the stand-in or the emulator reports
// an error.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <lockstep/comm/detail/progress.hpp>
#include <lockstep/comm/watchdog.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/data/augmented_images.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/optim/orthogonalizer.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/ingest.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include <lockstep/emulation/launch.hpp>

#include "control.hpp"
#include "tests/comm/local_ranks.hpp"
#include "tests/support/nvtx/tool.hpp"
#include "tests/support/temporary_folder.hpp"

#if LOCKSTEP_HAS_NCCL
#include <lockstep/comm/gpu_communicator.hpp>

#include "nccl_control.hpp"
#endif

namespace lockstep::nn {
namespace {

using Texts = std::vector<std::string>;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kClasses = 4;

Model mlp() {
  ModelBuilder builder = ModelBuilder::for_images("mlp", {8, 8, 3});
  const NodeId x = builder.linear("fc1", builder.input(), 12, {.activation = ops::Activation::relu});
  builder.linear("fc2", x, kClasses);
  return builder.build();
}

/// Returns a model with the layers of a residual network: convolution, also in groups and dilated, batch norm, an
/// addition, a pool, a product.
Model cnn() {
  ModelBuilder builder = ModelBuilder::for_images("cnn", {8, 8, 3});
  NodeId x = builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .stride = 2, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  const NodeId shortcut = x;
  x = builder.conv2d("conv2", x, 8, {.kernel = 3, .pad = 2, .groups = 2, .dilation = 2});
  x = builder.batch_norm("bn2", x, {.relu = true, .residual = shortcut});
  x = builder.global_average_pool("pool", x);
  builder.linear("fc", x, kClasses);
  return builder.build();
}

/// Returns a model with the layers of airbench94 that cnn() lacks: frozen filters at the beginning, a norm without a
/// scale, gelu, convolutions that begin as the identity, logits times a constant.
Model speed_run() {
  ModelBuilder builder = ModelBuilder::for_images("speed run", {8, 8, 3});
  NodeId x = builder.conv2d("whiten", builder.input(), 6, {.kernel = 2, .bias = true});
  builder.freeze("whiten.weight");
  x = builder.activation("gelu", x, ops::Activation::gelu);
  x = builder.conv2d("conv1", x, 8, {.kernel = 3, .pad = 1, .init = ConvInit::identity});
  x = builder.batch_norm("norm1", builder.max_pool("pool", x, 2, 2, 0), {.epsilon = 1e-12, .momentum = 0.4});
  builder.freeze("norm1.weight");
  x = builder.activation("gelu1", x, ops::Activation::gelu);
  x = builder.linear("head", builder.max_pool("last", x, 3, 3, 0), kClasses, {.bias = false});
  builder.scale("scale", x, 1.0 / 9);
  return builder.build();
}

/// Returns 13 training images, which are 3 batches of 4 and one image that is dropped, and 7 test images.
DataSplit small_data() {
  return open_data(
      {.seed = 5, .synthetic = {.train_size = 13, .test_size = 7, .height = 8, .width = 8, .classes = kClasses}});
}

/// Returns a model with the parts of ResNets: both kinds of shortcuts, a maximum pool, and the last layers (a global
/// pool and a product).
Model residual_network() {
  ModelBuilder builder = ModelBuilder::for_images("residual", {8, 8, 3});
  NodeId x = builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  x = builder.max_pool("maxpool", x, 3, 2, 1);
  NodeId y = builder.conv2d("conv2", x, 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn2", y, {.relu = true, .residual = x});
  NodeId shortcut = builder.conv2d("conv3", x, 16, {.kernel = 1, .stride = 2});
  shortcut = builder.batch_norm("bn3", shortcut);
  y = builder.conv2d("conv4", x, 16, {.kernel = 3, .stride = 2, .pad = 1});
  x = builder.batch_norm("bn4", y, {.relu = true, .residual = shortcut});
  shortcut = builder.subsample_pad("pad", x, 24, 2);
  y = builder.conv2d("conv5", x, 24, {.kernel = 3, .stride = 2, .pad = 1});
  x = builder.batch_norm("bn5", y, {.relu = true, .residual = shortcut});
  x = builder.global_average_pool("pool", x);
  builder.linear("fc", x, kClasses);
  return builder.build();
}

/// Returns a model with the layers of ResNet-50 whose convolutions may compute the sums of batch norms. The
/// convolutions follow a batch norm with a ReLU, a pair of batch norms, or a batch norm with a residual.
Model bottleneck() {
  ModelBuilder builder = ModelBuilder::for_images("bottleneck", {8, 8, 3});
  NodeId x = builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  NodeId y = builder.conv2d("conv2", x, 8, {.kernel = 3, .pad = 1});
  y = builder.batch_norm("bn2", y, {.relu = true});
  y = builder.conv2d("conv3", y, 16, {.kernel = 1});
  x = builder.batch_norm("bn3", builder.conv2d("shortcut", x, 16, {.kernel = 1}));
  x = builder.batch_norm("bn4", y, {.relu = true, .residual = x});
  y = builder.conv2d("conv4", x, 16, {.kernel = 3, .pad = 1});
  y = builder.batch_norm("bn5", y, {.relu = true});
  y = builder.conv2d("conv5", y, 16, {.kernel = 1});
  x = builder.batch_norm("bn6", y, {.relu = true, .residual = x});
  builder.linear("fc", builder.global_average_pool("pool", x), kClasses);
  return builder.build();
}

struct RunSetup {
  Model (*model)() = cnn;
  int steps = 4;
  std::uint64_t seed = 1;
  CudaGraph graph = CudaGraph::automatic;
  OptimizerOptions optimizer{};
  DType dtype = DType::f32;
  std::int64_t accumulate = 1;
  Strategy strategy = Strategy::ddp;
  comm::SumOptions sums{};
  std::int64_t bucket_bytes = 1000;  ///< small, so that there are several buckets
  bool sync_batch_norm = false;
  std::int64_t virtual_ranks = 0;
  MovingAverageOptions average{};
  bool mixtures = false;                   ///< training samples have two labels
  PicturesOn pictures = PicturesOn::host;  ///< with mixtures: where images are resized, recoloured, erased and mixed
  bool views = false;  ///< mirroring alternates and padding reflects; test images are seen in six views
  bool check_gradients = false;
  bool weights_beside = false;
  bool norms_served = false;  ///< convolutions compute the sums of batch norms where they may
  bool watched = false;       ///< a watchdog watches the trainer; it must find that the devices have completed all work
};

/// On a GPU, returns the choice of lockstep's own kernels for every call, because CUDA's libraries are not tested here.
/// On the host, returns nothing.
Choices own_kernels(Device device, const Model& model, Mode mode, std::int64_t batch, const PlanOptions& options = {}) {
  if (device.kind != DeviceKind::cuda) {
    return {};
  }
  CpuContext host;
  Choices choices = Plan(host, model, mode, batch, options).choices();
  for (auto& [call, choice] : choices) {
    choice = "cuda";
  }
  return choices;
}

TrainerOptions options_of(const RunSetup& setup, const DataSplit& data, Device device) {
  TrainerOptions options{.global_batch = 4, .accumulate = setup.accumulate};
  options.step.sync_batch_norm = setup.sync_batch_norm;
  options.step.virtual_ranks = setup.virtual_ranks;
  options.step.seed = setup.seed;
  options.step.plan.dtype = setup.dtype;
  options.step.plan.augment = {
      .pad = 1, .flip = true, .mean = data.statistics.mean, .std = data.statistics.std, .seed = setup.seed};
  options.step.plan.augment.alternate = options.step.plan.augment.reflect = setup.views;
  options.test_time_augmentation = setup.views ? TestTimeAugmentation::mirror_translate : TestTimeAugmentation::none;
  options.step.optimizer = setup.optimizer;
  options.schedule.base = setup.optimizer.kind == OptimizerKind::sgd ? 0.1 : 1e-2;
  options.schedule.total_steps = 8;
  options.step.buckets.bucket_bytes = setup.bucket_bytes;
  options.step.strategy = setup.strategy;
  options.step.sums = setup.sums;
  options.step.average = setup.average;
  options.step.plan.two_labels = setup.mixtures;
  options.pictures = setup.pictures;
  options.step.check_gradients = setup.check_gradients;
  options.step.weights_beside = setup.weights_beside;
  options.step.plan.cooperative = !setup.norms_served;  // a cooperative pass of batch norm computes its own sums
  if (device.kind == DeviceKind::cuda) {
    options.step.cuda_graph = setup.graph;
    PlanOptions plain = options.step.plan;
    plain.dtype = DType::f32;
    plain.fusions = setup.norms_served ? Fusions::on : plain.fusions;
    options.step.plan.choices = own_kernels(device, setup.model(), Mode::train, options.global_batch, plain);
    for (auto& [call, choice] : options.step.plan.choices) {
      choice = setup.norms_served && call.ends_with("beside a norm") ? "cuda:norm" : choice;
    }
  }
  return options;
}

Bytes bytes_of(Context& context, const TensorView& view) {
  Bytes bytes(view.bytes());
  copy(context, view, TensorView(bytes.data(), view.dtype, Device::cpu(), view.shape));
  context.synchronize();
  return bytes;
}

std::vector<float> floats_of(const Bytes& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

/// Returns n numbers from -1 to 1.
std::vector<float> any_floats(std::int64_t n) {
  std::vector<float> floats(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = static_cast<float>(i * 37 % 61) / 32 - 1;
  }
  return floats;
}

/// All results of a run.
struct Outcome {
  std::map<std::string, Bytes> bits;  ///< parameters, gradients, optimizer state, statistics, metrics
  std::vector<float> parameters;
  Metrics trained;
  Metrics evaluated;
};

void keep(Outcome& outcome, const std::string& name, const Metrics& metrics) {
  const double values[] = {metrics.loss_sum, metrics.correct, metrics.samples};
  Bytes& bytes = outcome.bits[name];
  bytes.resize(sizeof values);
  std::memcpy(bytes.data(), values, sizeof values);
}

Outcome outcome_of(Trainer& trainer) {
  Outcome outcome;
  ParameterSet& set = trainer.parameters();
  Context& context = trainer.context();
  outcome.trained = trainer.take_metrics();
  keep(outcome, "training metrics", outcome.trained);
  outcome.evaluated = trainer.evaluate();
  keep(outcome, "evaluation metrics", outcome.evaluated);
  outcome.bits["values"] = bytes_of(context, set.values());
  outcome.bits["weights"] = bytes_of(context, set.weights());
  outcome.bits["gradients"] = bytes_of(context, set.gradients());
  for (const std::string& name : set.state_names()) {
    outcome.bits[name] = bytes_of(context, set.state(name));
  }
  for (const State& state : set.states().all()) {
    if (state.numbers == Numbers::counts) {
      outcome.bits[state.name] = bytes_of(context, state.view);
    }
  }
  if (const State* factors = set.states().find("compression factors")) {
    outcome.bits["factors"] = bytes_of(context, factors->view);
  }
  if (set.buffer_arena().numel() > 0) {
    outcome.bits["statistics"] = bytes_of(context, set.buffer_arena());
    outcome.bits["averaged statistics"] = bytes_of(context, set.evaluation_buffer_arena());
  }
  if (average_of(set).weights.given()) {
    outcome.bits["statistics of the average"] = bytes_of(context, average_of(set).statistics);
    keep(outcome, "metrics of the average", trainer.evaluate_average());
    EXPECT_EQ(bytes_of(context, set.values()), outcome.bits["values"]);
  }
  outcome.parameters = floats_of(outcome.bits["values"]);
  return outcome;
}

/// Makes a watchdog if `setup.watched`.
class Watching {
 public:
  explicit Watching(const RunSetup& setup) {
    if (setup.watched) {
      watchdog_.emplace(
          600, [](const std::string&) {}, [](const comm::Watchdog::Look&) {}, &progress);
    }
  }
  comm::Watchdog* watchdog() { return watchdog_ ? &*watchdog_ : nullptr; }
  comm::detail::Progress progress{};

 private:
  std::optional<comm::Watchdog> watchdog_;
};

/// Starts a trainer of one rank and calls `body` with it. Returns the text of the exception, or "".
using Body = std::function<void(Trainer&, comm::Communicator& control)>;
std::string try_trainer(Context& context, const RunSetup& setup, const Body& body) {
  DataSplit data = small_data();
  std::unique_ptr<Dataset> mixtures;
  if (setup.mixtures) {
    const AugmentationOptions all{.crop = CropOptions{},
                                  .jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                                  .erase = 0.5,
                                  .mixup = 1,
                                  .cutmix = 1};
    mixtures = std::make_unique<AugmentedImages>(std::move(data.train), all);
  }
  const Dataset& training_set = mixtures != nullptr ? *mixtures : *data.train;
  const Model model = setup.model();
  Watching watching(setup);
  const Device device = context.device();
  Stream communication = device.kind == DeviceKind::cuda ? Stream::cuda(device, -1) : Stream::host_inline();
  const auto run = [&](comm::Communicator& grad, comm::Communicator& control) {
    Trainer trainer(context, {grad, control, communication, watching.watchdog()}, model, {training_set, *data.test},
                    options_of(setup, data, device));
    trainer.start();
    body(trainer, control);
  };
  return comm::run_ranks(1, run).front();
}

void with_trainer(Context& context, const RunSetup& setup, const Body& body) {
  EXPECT_EQ(try_trainer(context, setup, body), "");
}

void steps(Trainer& trainer, int count) {
  for (int i = 0; i < count; ++i) {
    trainer.step();
  }
}

Outcome train(Context& context, const RunSetup& setup) {
  Outcome outcome;
  with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator&) {
    steps(trainer, setup.steps);
    outcome = outcome_of(trainer);
  });
  return outcome;
}

/// Trains on the host. f16 is replaced with f32, because the host does not compute in f16.
Outcome train_on_host(RunSetup setup) {
  if (setup.dtype == DType::f16) {
    setup.dtype = DType::f32;
    setup.optimizer.loss_scale = {};
  }
  CpuContext context({.threads = 1});
  return train(context, setup);
}

Outcome train_on_gpu(const RunSetup& setup) {
  CudaContext context(Device::cuda(0));
  return train(context, setup);
}

/// Returns |a - b| / |b|; infinity unless both are finite and of one size.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = i < a.size() ? double{a[i]} - double{b[i]} : HUGE_VAL;
    difference += d * d;
    size += double{b[i]} * double{b[i]};
  }
  const double result = std::sqrt(difference / size);
  return a.size() == b.size() && std::isfinite(result) ? result : HUGE_VAL;
}

/// Returns the names of the results that differ.
Texts differences(const Outcome& a, const Outcome& b) {
  Texts names;
  EXPECT_EQ(a.bits.size(), b.bits.size());
  for (const auto& [name, bytes] : a.bits) {
    const auto other = b.bits.find(name);
    if (other == b.bits.end() || other->second != bytes) {
      names.push_back(name);
    }
  }
  return names;
}

const OptimizerOptions kAdam{.kind = OptimizerKind::adam};

OptimizerOptions scaled(double initial) {
  return {.loss_scale = {.kind = LossScale::Kind::dynamic, .initial = initial, .rule = {.backoff = 1.0 / 256}}};
}

struct Case {
  std::string name;
  RunSetup setup;
  double parameters;  ///< tolerance of the parameters
  double loss;
};

const RunSetup kServed{.model = bottleneck, .dtype = DType::bf16, .norms_served = true};

std::vector<Case> cases() {
  return {{"mlp, sgd", {.model = mlp}, 1e-5, 1e-5},
          {"mlp, adam", {.model = mlp, .optimizer = kAdam}, 1e-4, 1e-5},
          {"cnn, sgd", {}, 1e-4, 1e-4},
          {"cnn, adam", {.optimizer = kAdam}, 1e-4, 1e-4},
          {"cnn, sgd, two micro-batches", {.accumulate = 2}, 1e-4, 1e-4},
          {"cnn, sgd, mixtures", {.mixtures = true}, 1e-4, 1e-4},
          {"cnn, sgd, powersgd", {.sums = {.compress = "powersgd:1"}}, 1e-3, 1e-3},
          {"cnn, sgd, moving average", {.average = {.decay = 0.5, .every = 2}}, 1e-4, 1e-4},
          {"speed run, views", {.model = speed_run, .views = true}, 1e-4, 1e-4},
          {"speed run, views, bf16", {.model = speed_run, .dtype = DType::bf16, .views = true}, 3e-2, 3e-2},
          {"cnn, sgd, bf16", {.dtype = DType::bf16}, 3e-2, 3e-2},
          {"bottleneck, norms served, bf16", kServed, 3e-2, 3e-2},
          {"cnn, sgd, fp16", {.optimizer = scaled(1024), .dtype = DType::f16}, 5e-3, 5e-3}};
}

TEST(CudaTraining, ComesToWhatTheHostComesTo) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Outcome host = train_on_host(c.setup);
    const Outcome gpu = train_on_gpu(c.setup);
    EXPECT_LT(distance(gpu.parameters, host.parameters), c.parameters);
    EXPECT_NEAR(gpu.trained.loss(), host.trained.loss(), c.loss * host.trained.loss());
    EXPECT_EQ(gpu.trained.samples, host.trained.samples);
    EXPECT_EQ(gpu.evaluated.samples, host.evaluated.samples);
    EXPECT_NEAR(gpu.evaluated.loss(), host.evaluated.loss(), c.loss * host.evaluated.loss());

    RunSetup other = c.setup;  // the control: another seed
    other.seed = 2;
    const Outcome different = train_on_host(other);
    EXPECT_GT(distance(gpu.parameters, different.parameters), 3 * c.parameters);
  }
}

/// Returns a model that reads samples with three spatial axes.
Model field() {
  ModelBuilder b("field", {4, 5, 3, 2});
  NodeId x = b.conv3d("c1", b.input(), 4, {.pad = 1, .bias = true});
  x = b.batch_norm("bn", b.max_pool3d("max", x, 3, 2, 1), {.relu = true});
  x = b.conv_transpose3d("up", x, 4, {.kernel = 3, .pad = 1, .output_pad = 1, .bias = true, .groups = 2});
  b.linear("fc", b.average_pool3d("mean", x, 3, 2, 1, ops::AverageOver::inside), kClasses);
  return b.build();
}

/// Returns a model that reads samples with one spatial axis.
Model series() {
  ModelBuilder b("series", {11, 3});
  NodeId x = b.conv1d("c1", b.input(), 4, {.pad = 1, .bias = true, .dilation = 2});
  x = b.conv_transpose1d("up", b.max_pool1d("max", x, 3, 2, 1), 6, {.bias = true});
  x = b.global_average_pool("all", b.average_pool1d("mean", x, 2, 2, 0));
  b.linear("fc", x, kClasses);
  return b.build();
}

/// Returns a model whose sizes differ from axis to axis.
Model uneven() {
  ModelBuilder b("uneven", {4, 6, 5, 2});
  NodeId x =
      b.conv3d("c1", b.input(), 4,
               {.kernel = {1, 3, 2}, .stride = {1, 2, 1}, .pad = {0, 1, 1}, .bias = true, .dilation = {1, 1, 2}});
  x = b.batch_norm("bn", b.max_pool3d("max", x, {1, 2, 3}, {1, 1, 2}, {0, 1, 1}), {.relu = true});
  x = b.conv_transpose3d("up", x, 4,
                         {.kernel = {3, 1, 2}, .stride = {2, 1, 2}, .pad = {1, 0, 0}, .output_pad = {1, 0, 1}});
  b.linear("fc", b.average_pool3d("mean", x, {3, 1, 2}, {2, 1, 1}, {1, 0, 0}, ops::AverageOver::inside), kClasses);
  return b.build();
}

/// Returns a model on images whose three channels are stored as four, with a transposed convolution.
Model three_channels() {
  ModelBuilder b("three", {4, 5, 3});
  // Because of this norm the transposed convolution computes its data gradient.
  NodeId x = b.batch_norm("bn", b.input());
  x = b.conv_transpose2d("up", x, 4, {.kernel = {3, 2}, .stride = {1, 2}, .pad = {1, 0}, .bias = true});
  b.linear("fc", b.max_pool("max", x, {1, 2}, {1, 2}, 0), kClasses);
  return b.build();
}

/// Returns the gradients of one run of a plan, on numbers that are the same on every device.
std::vector<float> gradients_of(Context& context, const Model& model, DType dtype, std::uint64_t seed) {
  constexpr std::int64_t kBatch = 3;
  const PlanOptions options{
      .dtype = dtype, .choices = own_kernels(context.device(), model, Mode::train, kBatch, {.dtype = DType::f32})};
  ParameterSet parameters(context, model, dtype);
  StepState state(context, kBatch, step_layout(model, options));
  Plan plan(context, model, Mode::train, kBatch, options);
  const Buffer workspace(plan.workspace_bytes(), context);
  parameters.initialise(context, seed);
  state.set(context, {.learning_rate = 0.1, .sample_weight = 1.0 / kBatch, .valid = kBatch, .epoch = 0});
  Shape shape{kBatch};
  for (const std::int64_t extent : model.input_shape()) {
    shape.push_back(extent);
  }
  std::vector<float> x = any_floats(shape.numel());
  std::vector<std::int32_t> labels{0, 2, 3};
  const Tensor on_device_x = Tensor::empty(context, shape, DType::f32);
  const Tensor on_device_labels = Tensor::empty(context, {kBatch}, DType::i32);
  copy(context, TensorView(std::span(x), shape), on_device_x);
  copy(context, TensorView(std::span(labels), {kBatch}), on_device_labels);
  ingest(context, state, {StateField::values, on_device_x});
  ingest(context, state, {StateField::labels, on_device_labels});
  plan.bind(parameters, state, workspace);
  plan.run(context);
  return floats_of(bytes_of(context, parameters.gradients()));
}

TEST(CudaTraining, SamplesWithOneAndThreeAxesComeToWhatTheHostComesTo) {
  for (const Model& model : {field(), series(), uneven(), three_channels()}) {
    SCOPED_TRACE(model.name());
    CpuContext host({.threads = 1});
    CudaContext gpu(Device::cuda(0));
    // the host does not compute in f16; rounding may change which element is a maximum
    for (const auto& [dtype, on_host, tolerance] :
         {std::tuple{DType::f32, DType::f32, 1e-5}, std::tuple{DType::bf16, DType::bf16, 5e-2},
          std::tuple{DType::f16, DType::f32, 5e-2}}) {
      const std::vector<float> expected = gradients_of(host, model, on_host, 1);
      EXPECT_LT(distance(gradients_of(gpu, model, dtype, 1), expected), tolerance) << dtype;
      EXPECT_GT(distance(gradients_of(gpu, model, dtype, 2), expected), 3 * tolerance) << "the control";
    }
  }
}

TEST(CudaTraining, MatricesAreOrthogonalisedAsOnTheHost) {
  CpuContext host({.threads = 1});
  CudaContext gpu(Device::cuda(0));
  const std::vector<Orthogonalizer::Matrix> matrices{{0, 5, 9}, {45, 12, 4}, {93, 6, 6}, {129, 5, 9}};
  std::vector<float> arena(174);
  for (std::size_t i = 0; i < arena.size(); ++i) {
    arena[i] = static_cast<float>(std::sin(1.0 + static_cast<double>(i * i)));
  }
  const auto orthogonal = [&](Context& context, DType compute) {
    Orthogonalizer orthogonalizer(context, matrices, DType::f32, compute);
    Buffer memory(arena.size() * sizeof(float), context);
    const TensorView view(memory.data(), DType::f32, context.device(), {static_cast<std::int64_t>(arena.size())});
    std::vector<float> values = arena;
    copy_now(context, TensorView(std::span(values), view.shape), view);
    orthogonalizer.run(context, view);
    return floats_of(bytes_of(context, view));
  };
  const std::vector<float> expected = orthogonal(host, DType::f32);
  EXPECT_GT(distance(arena, expected), 0.1) << "the control";
  for (const auto& [compute, tolerance] :
       {std::pair{DType::f32, 1e-5}, std::pair{DType::bf16, 5e-2}, std::pair{DType::f16, 1e-2}}) {
    EXPECT_LT(distance(orthogonal(gpu, compute), expected), tolerance) << compute;
  }
}

TEST(CudaTraining, LaunchesAsManyKernelsAsThePlanSays) {
  for (const auto& [model, dtype] : {std::pair(residual_network(), DType::f32),
                                     std::pair(residual_network(), DType::bf16), std::pair(speed_run(), DType::f32)}) {
    CudaContext context(Device::cuda(0));
    const PlanOptions options{.dtype = dtype,
                              .choices = own_kernels(context.device(), model, Mode::train, 4, {.dtype = DType::f32})};
    ParameterSet parameters(context, model, dtype);
    StepState state(context, 4, step_layout(model, options));
    Plan plan(context, model, Mode::train, 4, options);
    const Buffer workspace(plan.workspace_bytes(), context);
    parameters.initialise(context, 1);
    state.set(context, {.learning_rate = 0.1, .sample_weight = 0.25, .valid = 4, .epoch = 0});
    plan.bind(parameters, state, workspace);
    plan.run_call(context, 0);
    for (std::size_t i = 0; i < plan.calls().size(); ++i) {
      const Call& call = plan.calls()[i];
      const std::int64_t before = emulation::launches();
      plan.run_call(context, static_cast<int>(i));
      const std::int64_t launched = emulation::launches() - before;
      const bool library = call.op.starts_with("conv2d") || call.op.starts_with("matmul");
      EXPECT_EQ(call.launches, library ? 1 : launched) << call.layer << ' ' << call.op;
      EXPECT_GE(launched, 1) << call.layer << ' ' << call.op;
    }
    context.synchronize();
  }
}

TEST(CudaTraining, TheTunerTimesWhatTheGpuDoesBehindOtherWork) {
  CudaContext context(Device::cuda(0));
  const Tensor memory = Tensor::zeros(context, Shape{64}, DType::f32);
  const CallTimer timer = call_timer(context);
  const std::size_t before = standin::call_log().size();
  EXPECT_GE(timer(context, "any", [&] { ops::fill(context, 1, memory.view()); }), 0);
  std::vector<std::string> enqueued;
  const std::vector<std::string> log = standin::call_log();
  for (std::size_t i = before; i < log.size(); ++i) {
    if (log[i].starts_with("cudaMemcpy") || log[i].starts_with("cudaLaunchKernel") || log[i] == "cudaEventRecord") {
      enqueued.push_back(log[i].substr(0, 10));
    }
  }
  EXPECT_EQ(enqueued, (std::vector<std::string>{"cudaMemcpy", "cudaEventR", "cudaLaunch", "cudaEventR"}));
}

TEST(CudaTraining, ACapturedStepGivesTheSameBits) {
  for (Case c : cases()) {
    SCOPED_TRACE(c.name);
    c.setup.graph = CudaGraph::off;
    const std::int64_t none = standin::calls("cudaGraphLaunch");
    const Outcome plain = train_on_gpu(c.setup);
    EXPECT_EQ(standin::calls("cudaGraphLaunch"), none);
    c.setup.graph = CudaGraph::on;
    const Outcome captured = train_on_gpu(c.setup);
    EXPECT_EQ(standin::calls("cudaGraphLaunch") - none, 3 * c.setup.accumulate);  // the first step is not captured
    EXPECT_EQ(differences(plain, captured), Texts{});

    if (c.name == "mlp, sgd") {  // the control: a run with one step less must differ
      c.setup.steps = 3;
      const Texts seen = differences(train_on_gpu(c.setup), captured);
      EXPECT_EQ(std::count(seen.begin(), seen.end(), "values"), 1);
      EXPECT_EQ(std::count(seen.begin(), seen.end(), "training metrics"), 1);
    }
  }
}

void new_machine(std::uint64_t seed, int devices = 1) {
  standin::reset({.devices = devices, .bytes_per_device = std::size_t{1} << 30, .seed = seed});
  emulation::set_schedule(emulation::Schedule::random(seed));
}

/// Expects that the run gives the same bits as `first` in every order of asynchronous work: the stand-in is reset to
/// another order for each seed.
void expect_in_every_order(const RunSetup& setup, const Outcome& first) {
  EXPECT_EQ(standin::violations(), Texts{}) << "before";
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    new_machine(seed);
    EXPECT_EQ(differences(train_on_gpu(setup), first), Texts{}) << "seed " << seed;
    EXPECT_EQ(standin::violations(), Texts{}) << "seed " << seed;
  }
}

/// Steps 1 and 2 report ranges of layers and buckets. Step 2 captures two graphs, one for each of two input states, so
/// it reports these ranges twice. In each later step, the launch of a graph is one range. Runs with and without a tool
/// (tests/support/nvtx/tool.hpp).
TEST(CudaTraining, RangesOfACapturedStep) {
  using testing::tool_record;
  CudaContext context(Device::cuda(0));
  with_trainer(context, {}, [&](Trainer& trainer, comm::Communicator&) {
    const testing::ToolRecord* tool = tool_record();
    ASSERT_EQ(tool != nullptr, testing::wants_tool());
    EXPECT_EQ(trainer.train_step().recorder() != nullptr, testing::wants_tool());
    ASSERT_EQ(trainer.graph_obstacle(), "");
    std::vector<Texts> told;  // one list of ranges for each step
    for (int i = 0; i < 4; ++i) {
      const int from = tool != nullptr ? tool->events.load() : 0;
      trainer.step();
      if (tool != nullptr) {
        told.push_back(testing::ranges_of_thread(*tool, from, pthread_self()));
      }
    }
    trainer.train_step().synchronize();
    if (tool == nullptr) {
      return;
    }
    EXPECT_EQ(tool->faults, 0);
    const Texts begin{"step", "  waiting for the loader", "  input"};
    const Texts launch{"  step as a CUDA graph"};
    Texts enqueued(told[0].begin() + 3, told[0].end());
    EXPECT_EQ(Texts(told[0].begin(), told[0].begin() + 3), begin);
    EXPECT_EQ(enqueued.back(), "  update");
    for (const Call& call : trainer.train_plan().calls()) {
      EXPECT_EQ(std::count(enqueued.begin(), enqueued.end(), "  " + call.layer + " " + call.op), 1) << call.layer;
    }
    for (std::size_t k = 0; k < trainer.reducer().buckets().size(); ++k) {
      EXPECT_EQ(std::count(enqueued.begin(), enqueued.end(), concat("  bucket ", k)), 1) << k;
    }
    const auto joined = [](std::initializer_list<Texts> parts) {
      Texts all;
      for (const Texts& part : parts) {
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    };
    EXPECT_EQ(told[1], joined({begin, enqueued, enqueued, launch}));
    EXPECT_EQ(told[2], joined({begin, launch}));
    EXPECT_EQ(told[3], joined({begin, launch}));
  });
}

TEST(CudaTraining, EveryOrderOfTheWorkGivesTheSameBits) {
  for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
    const RunSetup setup{.steps = 3, .graph = graph, .accumulate = 2};
    expect_in_every_order(setup, train_on_gpu(setup));
  }
}

TEST(CudaTraining, ConvolutionsThatServeNormsGiveWhatThePartsGive) {
  std::map<std::string, int> calls;
  {
    CudaContext context(Device::cuda(0));
    const PlanOptions options = options_of(kServed, small_data(), context.device()).step.plan;
    const Plan plan(context, bottleneck(), Mode::train, 4, options);
    for (const Call& call : plan.calls()) {
      ++calls[call.op];
    }
  }
  EXPECT_EQ(calls["conv2d forward_with_sums cuda:norm"], 5) << "all but the first, whose input has three channels";
  EXPECT_EQ(calls["conv2d backward_data_for_norm cuda:norm"], 4) << "the shortcut's adds to that of conv2";

  RunSetup setup = kServed;
  setup.norms_served = false;
  const Outcome parts = train_on_gpu(setup);
  const Outcome served = train_on_gpu(kServed);
  EXPECT_LT(distance(served.parameters, parts.parameters), 1e-2);
  EXPECT_NE(differences(served, parts), Texts{}) << "the control: another order of sums";
  expect_in_every_order(kServed, served);
}

/// Makes training steps as a user's program does, and then runs inference. The steps have micro-batches of unequal
/// sizes, inputs on the device in another order of axes, and loss weights of one kind. Some batches have no valid
/// sample or only weights of 0, so their steps change nothing. Returns parameters and predictions.
std::vector<float> own_steps(Context& context, CudaGraph graph, LossWeights weights) {
  ModelBuilder b("own", {3});
  b.linear("2", b.linear("1", b.input(), 6, {.activation = ops::Activation::tanh}), 2);
  const Model model = b.build();
  TrainStepOptions options{.max_batch = 4, .cuda_graph = graph};
  options.plan.loss = Loss::mse;
  options.plan.weights = weights;
  options.optimizer = kAdam;
  options.optimizer.loss_scale = {.kind = LossScale::Kind::dynamic, .initial = 1024, .rule = {.interval = 4}};
  options.weight_decay = 0.01;
  InferenceOptions inferring{.max_batch = 5};
  inferring.plan.choices = own_kernels(context.device(), model, Mode::infer, 4, options.plan);
  inferring.plan.choices.merge(own_kernels(context.device(), model, Mode::train, 4, options.plan));
  options.plan.choices = inferring.plan.choices;
  TrainStep step(context, model, options);
  std::vector<float> x(3 * 7);  // shape (3 features, 7 samples)
  std::vector<double> y(7 * 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(static_cast<float>(i));
  }
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = std::cos(static_cast<double>(i));
  }
  const Tensor on_device = Tensor::empty(context, {3, 7}, DType::f32);
  copy(context, TensorView(std::span<float>{x}, {3, 7}), on_device);
  const Tensor weights_on_device = Tensor::empty(context, {2, 7}, DType::f32);  // one weight for each element
  std::vector<float> w(14), nothing(14, 0);
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = static_cast<float>(i % 4) * 1e-3F;
  }
  copy(context, TensorView(std::span<float>{w}, {2, 7}), weights_on_device);
  const auto batch = [&](std::int64_t begin, std::int64_t end, bool counts = true) {
    Batch made;
    made.fields = {{StateField::values, on_device.view().slice(1, begin, end), "cn"},
                   {StateField::targets, TensorView(std::span<double>{y}, {7, 2}).slice(0, begin, end)}};
    if (weights == LossWeights::none) {
      made.valid = counts ? Batch::kAllRows : 0;
    } else if (weights == LossWeights::element && counts) {
      made.fields.push_back({StateField::weights, weights_on_device.view().slice(1, begin, end), "cn"});
    } else {
      TensorView own = TensorView(std::span<float>{counts ? w : nothing}, {7, 2});
      if (weights == LossWeights::sample) {  // reads every second number of w
        own.shape = Shape{7};
        own.strides = Strides{2};
      }
      made.fields.push_back({StateField::weights, own.slice(0, begin, end)});
    }
    return made;
  };
  const auto lasting = [&] {
    std::vector<Bytes> all;
    for (const State& each : step.parameters().states().all()) {
      all.push_back(bytes_of(context, each.view));
    }
    return all;
  };
  std::vector<float> result;
  for (int i = 0; i < 3; ++i) {
    step.update(batch(0, 4), 0.1);
    step.add(batch(0, 3));
    step.update(batch(3, 7), 0.1);
    step.add(batch(0, 1));
    step.add(batch(1, 5));
    step.update(0.1);
    result.push_back(static_cast<float>(step.wait_loss().value));
    const std::vector<Bytes> before = lasting();
    step.add(batch(0, 3, false));
    step.update(batch(3, 7, false), 0.1);
    EXPECT_THROW((void)step.wait_loss(), DataError);
    EXPECT_EQ(lasting(), before);
  }
  EXPECT_EQ(step.steps(), 12);
  EXPECT_EQ(step.loss().step, 12);
  EXPECT_EQ(step.take_trained().samples, 3 * (4 + 7 + 5));
  const std::vector<float> values = floats_of(bytes_of(context, step.parameters().values()));
  result.insert(result.end(), values.begin(), values.end());
  Inference predict(context, model, step.parameters(), inferring);
  std::vector<float> out(5 * 2);
  predict.run(on_device.view().slice(1, 2, 7), TensorView(std::span<float>{out}, {5, 2}), "cn");
  context.synchronize();
  result.insert(result.end(), out.begin(), out.end());
  return result;
}

TEST(CudaTraining, StepsOfOnesOwn) {
  for (const LossWeights weights : {LossWeights::none, LossWeights::sample, LossWeights::element}) {
    SCOPED_TRACE(name_of(weights));
    CpuContext host({.threads = 1});
    const std::vector<float> expected = own_steps(host, CudaGraph::automatic, weights);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      new_machine(seed);
      std::vector<std::vector<float>> both;
      for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
        CudaContext gpu(Device::cuda(0));
        both.push_back(own_steps(gpu, graph, weights));
        EXPECT_LT(distance(both.back(), expected), 1e-5) << "seed " << seed;
        EXPECT_EQ(both.back(), both.front()) << "captured, seed " << seed;
      }
      EXPECT_EQ(standin::violations(), Texts{}) << "seed " << seed;
    }
  }
}

/// Trains in the order of asynchronous work that `seed` decides. The last step but one leaves out its wait number
/// `forgotten` (cudaStreamWaitEvent). Returns true if the outcome differs from `whole`, the run fails, or the stand-in
/// reports a violation.
bool is_seen_without_wait(const RunSetup& setup, std::int64_t forgotten, std::uint64_t seed, const Outcome& whole) {
  new_machine(seed);
  Outcome outcome;
  std::string failure;
  {
    CudaContext context(Device::cuda(0));
    failure = try_trainer(context, setup, [&](Trainer& trainer, comm::Communicator&) {
      steps(trainer, setup.steps - 2);
      standin::forget_wait(forgotten, "cudaStreamWaitEvent");
      trainer.step();
      EXPECT_TRUE(standin::wait_forgotten());
      trainer.step();
      outcome = outcome_of(trainer);
    });
  }
  return !failure.empty() || !standin::violations().empty() || !differences(outcome, whole).empty();
}

/// Expects that each of these waits is needed: without it, at least one of `orders` orders of asynchronous work gives a
/// wrong outcome or a violation.
void expect_needed(const RunSetup& setup, std::initializer_list<std::int64_t> waits, std::uint64_t orders) {
  const Outcome whole = train_on_gpu(setup);
  EXPECT_EQ(standin::violations(), Texts{});
  for (const std::int64_t forgotten : waits) {
    bool seen = false;
    for (std::uint64_t seed = 0; seed < orders && !seen; ++seed) {
      seen = is_seen_without_wait(setup, forgotten, seed, whole);
    }
    EXPECT_TRUE(seen) << "wait " << forgotten;
  }
  new_machine(0);
}

/// The control of EveryOrderOfTheWorkGivesTheSameBits. A micro-batch has two waits: the copies wait for the micro-batch
/// that used their memory before, and the micro-batch waits for the copies. The test has one rank, so the reducer's
/// waits protect nothing here; tests/comm/nccl_standin_test.cpp tests these waits.
TEST(CudaTraining, EveryWaitForABatchIsNeeded) {
  expect_needed({.model = mlp, .steps = 4, .graph = CudaGraph::off, .accumulate = 2}, {1, 2, 3, 4}, 24);
}

/// The GPU's kernels must make the same images as the loader's threads, in every order of asynchronous work.
TEST(CudaTraining, PicturesThatTheGpuFinishesChangeNoBit) {
  for (const std::int64_t accumulate : {1, 2}) {
    for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
      RunSetup setup{.model = mlp, .steps = 5, .graph = graph, .accumulate = accumulate, .mixtures = true};
      const Outcome first = train_on_gpu(setup);
      setup.pictures = PicturesOn::device;
      expect_in_every_order(setup, first);
    }
  }
}

/// The control of PicturesThatTheGpuFinishesChangeNoBit. A step has five waits between streams:
/// (1) The stream that finishes images waits for the earlier step that reads the same image memory.
/// (2) The step waits for finished images.
/// (3) The copies of fields wait for the step that used their memory.
/// (4) The copies of fields wait for fields that are on the device already.
/// (5) The step waits for the copies of fields.
/// Wait 3 is not tested, because the next step's waits include it.
TEST(CudaTraining, EveryWaitForAPictureIsNeeded) {
  expect_needed({.model = mlp, .steps = 4, .graph = CudaGraph::off, .mixtures = true, .pictures = PicturesOn::device},
                {1, 2, 4, 5}, 160);
}

/// Weight gradients on the side stream must have the same bits in every order of asynchronous work.
TEST(CudaTraining, WeightGradientsBesideChangeNoBit) {
  for (const std::int64_t accumulate : {1, 2}) {
    for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
      for (const bool check : {false, true}) {
        RunSetup setup{.steps = 3, .graph = graph, .accumulate = accumulate, .check_gradients = check};
        const Outcome first = train_on_gpu(setup);
        setup.weights_beside = true;
        expect_in_every_order(setup, first);
      }
    }
  }
  const RunSetup bf16{.model = speed_run, .steps = 3, .graph = CudaGraph::on, .dtype = DType::bf16};
  RunSetup beside = bf16;
  beside.weights_beside = true;
  EXPECT_EQ(differences(train_on_gpu(beside), train_on_gpu(bf16)), Texts{});
}

/// A layer that does nothing, but throws in backward if `*throws` is true.
class Throwing final : public Layer {
 public:
  explicit Throwing(const bool* throws) : Layer("throwing"), throws_(throws) {}
  [[nodiscard]] std::string kind() const override { return "throwing"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return Shape(inputs[0]); }
  void plan(PlanBuilder& builder) const override {
    builder.set_output(builder.input());
    builder.on_backward([this](PlanBuilder& b) {
      const SlotId dy = b.output_gradients()[0];
      b.call("throw", {dy}, {dy}, 0, [throws = throws_](Context&, const Frame&) {
        require<UsageError>(!*throws, "in the middle of backward");
      });
      b.pass_gradient(0, dy);
    });
  }

 private:
  const bool* throws_;
};

/// A step throws while a weight gradient runs on the side stream. Before the step returns, that work must have ended.
/// Otherwise it could overwrite the parameters, which a later evaluation of the average stores in the memory of the
/// gradients.
TEST(CudaTraining, AStepMayFollowOneThatFailedBesideAWeightGradient) {
  bool throws = false;
  ModelBuilder builder("throws", {6});
  NodeId x = builder.linear("fc1", builder.input(), 40, {.activation = ops::Activation::relu});
  x = builder.linear("fc2", x, 40);
  builder.linear("fc3", builder.add(std::make_shared<Throwing>(&throws), {x}), kClasses);
  const Model model = builder.build();
  std::vector<float> values = any_floats(12);
  std::vector<std::int32_t> labels{0, 3};
  const auto trained = [&](bool beside, bool fails) {
    CudaContext context(Device::cuda(0));
    TrainStepOptions options{.max_batch = 2,
                             .microbatches = 1,
                             .average = {.decay = 0.5},
                             .cuda_graph = CudaGraph::off,
                             .weights_beside = beside};
    options.plan.choices = own_kernels(context.device(), model, Mode::train, 2);
    TrainStep step(context, model, options);
    const auto update = [&] {
      step.update({{StateField::values, TensorView(std::span(values), {2, 6})},
                   {StateField::labels, TensorView(std::span(labels), {2})}},
                  0.1);
    };
    update();
    if (fails) {
      throws = true;
      EXPECT_THROW(update(), UsageError);
      throws = false;
    }
    step.begin_average();
    step.end_average();
    update();
    step.synchronize();
    return bytes_of(context, step.parameters().values());
  };
  const Bytes expected = trained(false, false);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    new_machine(seed);
    EXPECT_EQ(trained(true, true), expected) << "seed " << seed;
    EXPECT_EQ(standin::violations(), Texts{}) << "seed " << seed;
  }
}

/// With dependent launches, every kernel of a step, on both streams, may begin before the previous kernel ends (except
/// cooperative kernels, which this model lacks). The bits must stay the same. The emulation begins no kernel early;
/// scripts/check-kernels.sh checks that every kernel waits.
TEST(CudaTraining, LaunchesMayDependOnTheStream) {
  new_machine(1);
  RunSetup setup{.model = mlp, .steps = 3, .graph = CudaGraph::off};
  const Outcome plain = train_on_gpu(setup);
  setup.weights_beside = true;
  const std::int64_t none = emulation::dependent_launches();
  CudaContext context(Device::cuda(0), {.dependent_launches = true});
  EXPECT_TRUE(context.stream().launches_dependently());
  Outcome outcome;
  with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator&) {
    steps(trainer, 2);
    const std::int64_t dependent = emulation::dependent_launches();
    const std::int64_t all = emulation::launches();
    steps(trainer, 1);
    EXPECT_GT(emulation::launches(), all + 10);
    EXPECT_EQ(emulation::dependent_launches() - dependent, emulation::launches() - all);
    outcome = outcome_of(trainer);
  });
  EXPECT_GT(emulation::dependent_launches(), none);
  EXPECT_EQ(differences(outcome, plain), Texts{});
}

/// The control: leaving out a wait of the side stream, or the main stream's last wait for the side stream, must give
/// another outcome. The weight gradients of fc, conv2 and conv1 run on the side stream. One wait delays the gradient of
/// conv1 until the gradient of fc has ended. This wait only limits memory, so leaving out this wait changes nothing.
/// The reducer's waits are tested elsewhere (tests/comm/nccl_standin_test.cpp).
TEST(CudaTraining, EveryWaitForAWeightGradientIsNeeded) {
  RunSetup setup{.graph = CudaGraph::off};
  const Outcome whole = train_on_gpu(setup);
  const auto waits_of_a_step = [&] {
    std::int64_t waits = 0;
    CudaContext context(Device::cuda(0));
    with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator&) {
      steps(trainer, 2);
      const std::int64_t before = standin::calls("cudaStreamWaitEvent");
      trainer.step();
      waits = standin::calls("cudaStreamWaitEvent") - before;
    });
    return waits;
  };
  const std::int64_t without = waits_of_a_step();
  setup.weights_beside = true;
  ASSERT_EQ(waits_of_a_step(), without + 5);
  std::set<std::int64_t> needed;
  for (std::int64_t forgotten = 1; forgotten <= without + 5; ++forgotten) {
    for (std::uint64_t seed = 0; seed < 8 && !needed.contains(forgotten); ++seed) {
      if (is_seen_without_wait(setup, forgotten, seed, whole)) {
        needed.insert(forgotten);
      }
    }
  }
  EXPECT_EQ(needed.size(), 5U) << "the batch, three gradients that begin, the end";
  new_machine(0);
}

TEST(CudaTraining, GoesOnFromACheckpointBitForBit) {
  for (const auto& [graph, compress] :
       {std::pair{CudaGraph::off, ""}, std::pair{CudaGraph::on, ""}, std::pair{CudaGraph::on, "powersgd:1"}}) {
    const testing::TemporaryFolder folder;
    const RunSetup setup{
        .graph = graph, .optimizer = kAdam, .sums = {.compress = compress}, .average = {.decay = 0.9, .every = 2}};
    const RunIdentity identity{.model = "cnn"};
    CudaContext context(Device::cuda(0));
    Outcome through;
    with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator& control) {
      steps(trainer, 2);
      (void)trainer.take_metrics();
      save_checkpoint(folder / "last", trainer, control, identity,
                      {.position = trainer.position(), .samples_seen = trainer.samples_seen()});
      steps(trainer, 3);
      through = outcome_of(trainer);
    });
    for (const int more : {3, 2}) {
      Outcome resumed;
      with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator& control) {
        RunProgress progress;
        EXPECT_EQ(resume_checkpoint(folder / "last", trainer, control, identity, progress), "");
        steps(trainer, more);
        resumed = outcome_of(trainer);
      });
      EXPECT_EQ(differences(resumed, through).empty(), more == 3);
    }
  }
}

class CudaSteps : public ::testing::TestWithParam<std::tuple<CudaGraph, PicturesOn>> {};
INSTANTIATE_TEST_SUITE_P(All, CudaSteps,
                         ::testing::Combine(::testing::Values(CudaGraph::off, CudaGraph::on),
                                            ::testing::Values(PicturesOn::host, PicturesOn::device)));

TEST_P(CudaSteps, NeitherAllocateNorWaitForTheDevice) {
  const CudaGraph graph = std::get<0>(GetParam());
  const PicturesOn pictures = std::get<1>(GetParam());
  CudaContext context(Device::cuda(0));
  Texts waits;
  const RunSetup setup{.graph = graph,
                       .average = {.decay = 0.9},
                       .mixtures = pictures != PicturesOn::host,
                       .pictures = pictures,
                       .check_gradients = true};
  with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator&) {
    steps(trainer, 2);  // steps that capture the graph
    context.on_synchronisation(
        [&](const Synchronisation& wait) { waits.push_back(concat(wait.call, ": ", name_of(wait.reason))); });
    const std::int64_t events = standin::calls("cudaEventSynchronize");
    const std::size_t before = standin::call_log().size();
    steps(trainer, 5);
    const Texts log = standin::call_log();
    for (std::size_t i = before; i < log.size(); ++i) {
      const std::string& call = log[i];
      for (const char* part : {"Malloc", "Free", "StreamSynchronize", "DeviceSynchronize", "Create", "Instantiate"}) {
        EXPECT_EQ(call.find(part), std::string::npos) << call;
      }
    }
    // Without a graph, the reducer also calls cudaEventSynchronize on complete events to read their times.
    if (graph == CudaGraph::on) {
      // Each step must wait once: step n waits for the end of step n - 2.
      EXPECT_EQ(standin::calls("cudaEventSynchronize") - events, 5);
    }
    EXPECT_EQ(waits, Texts{});
    context.synchronize();  // the control: this call waits
    EXPECT_EQ(waits, Texts{"synchronize: requested"});
    context.on_synchronisation({});
  });
}

TEST(CudaTraining, AnOverflowInF16SkipsTheStep) {
  Outcome outcomes[2];
  for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
    const RunSetup setup{.graph = graph, .optimizer = scaled(16777216), .dtype = DType::f16, .check_gradients = true};
    CudaContext context(Device::cuda(0));
    with_trainer(context, setup, [&](Trainer& trainer, comm::Communicator&) {
      const auto values = [&] { return bytes_of(context, trainer.parameters().values()); };
      const Bytes initial = values();
      steps(trainer, 1);
      EXPECT_EQ(trainer.skipped_updates(), 1);
      EXPECT_EQ(values(), initial);
      EXPECT_EQ(trainer.non_finite_gradients(1).substr(0, 8), "rank 0: ");
      steps(trainer, 3);
      EXPECT_EQ(trainer.skipped_updates(), 1);
      EXPECT_EQ(trainer.non_finite_gradients(4), "");
      EXPECT_EQ(trainer.non_finite_gradients(1).substr(0, 8), "rank 0: ");
      EXPECT_NE(values(), initial);
      EXPECT_EQ(floats_of(bytes_of(context, trainer.parameters().loss_scale())), std::vector<float>{65536});
      outcomes[graph == CudaGraph::on ? 1 : 0] = outcome_of(trainer);
    });
  }
  EXPECT_TRUE(std::isfinite(outcomes[0].trained.loss()));
  EXPECT_EQ(differences(outcomes[0], outcomes[1]), Texts{});
}

/// For one rank a watchdog must make no call of CUDA, whether the step is captured or not.
TEST(CudaTraining, AWatchdogCostsOneRankNothing) {
  for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
    std::map<std::string, std::int64_t> calls[2];
    for (const bool watched : {false, true}) {
      new_machine(0, 1);
      static_cast<void>(train_on_gpu({.model = mlp, .graph = graph, .watched = watched}));
      for (const char* name : {"cudaMemcpyAsync", "cudaMallocHost", "cudaGraphLaunch"}) {
        calls[watched ? 1 : 0][name] = standin::calls(name);
      }
    }
    EXPECT_GT(calls[0]["cudaMemcpyAsync"], 0);
    EXPECT_EQ(calls[0], calls[1]);
  }
}

#if LOCKSTEP_HAS_NCCL
/// Returns the outcomes of two ranks on two devices.
std::array<Outcome, 2> train_on_two_gpus(const RunSetup& setup, std::uint64_t schedule = 0) {
  std::array<Outcome, 2> outcomes;
  new_machine(schedule, 2);
  nccl_standin::reset();
  const DataSplit data = small_data();
  const Model model = setup.model();
  comm::on_ranks(2, [&](comm::Communicator& world) {
    const Device device = Device::cuda(world.rank());
    cudaSetDevice(device.index);
    const auto control = world.split(0, world.rank());
    const auto grad = comm::make_nccl_communicator(world, device);
    CudaContext context(device);
    Stream communication = Stream::cuda(device, -1);
    const TrainerOptions options = options_of(setup, data, device);
    Watching watching(setup);
    Trainer trainer(context, {*grad, *control, communication, watching.watchdog()}, model, data, options);
    EXPECT_EQ(trainer.graph_obstacle(), setup.graph == CudaGraph::off ? "switched off" : "");
    trainer.start();
    steps(trainer, setup.steps);
    trainer.require_same_state();
    outcomes.at(static_cast<std::size_t>(world.rank())) = outcome_of(trainer);
    const std::string last = concat("; on the device step ", setup.steps, ": all ");
    const auto done = [&] { return watching.progress.text().find(last) != std::string::npos; };
    for (int looks = 0; setup.watched && looks < 300 && !done(); ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(done(), setup.watched) << watching.progress.text();
  });
  EXPECT_EQ(standin::violations(), Texts{});
  EXPECT_EQ(nccl_standin::leaks(), Texts{});
  return outcomes;
}

/// Without batch norm, whose statistics cover only a rank's share of the batch, two ranks must give the result of one
/// rank.
TEST(CudaTraining, TwoRanksExchangeGradientsInACapturedStep) {
  const RunSetup setup{.model = mlp, .graph = CudaGraph::on};
  const Outcome one = train_on_gpu(setup);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto outcomes = train_on_two_gpus(setup, seed);
    EXPECT_GT(nccl_standin::in_registered_memory(), 0) << "the gradients'";
    const std::vector<int> priorities = standin::launched_priorities();
    EXPECT_GT(std::count(priorities.begin(), priorities.end(), -1), 0) << "of all-reduces";
    EXPECT_GT(std::count(priorities.begin(), priorities.end(), 0), 0);
    EXPECT_EQ(differences(outcomes[0], outcomes[1]), Texts{});
    EXPECT_LT(distance(outcomes[0].parameters, one.parameters), 1e-5);
    EXPECT_EQ(outcomes[0].trained.samples, one.trained.samples);
    EXPECT_NEAR(outcomes[0].trained.loss(), one.trained.loss(), 1e-5 * one.trained.loss());
  }
}

/// A watchdog must see which work the devices have completed, also in captured steps. It must change no result.
TEST(CudaTraining, AWatchdogSeesWhatTheDevicesHaveDone) {
  for (const CudaGraph graph : {CudaGraph::off, CudaGraph::on}) {
    for (const std::int64_t accumulate : {1, 2}) {
      RunSetup setup{.model = mlp, .graph = graph, .accumulate = accumulate};
      const auto plain = train_on_two_gpus(setup, 1);
      setup.watched = true;
      const auto watched = train_on_two_gpus(setup, 1);
      EXPECT_EQ(differences(plain[0], watched[0]), Texts{});
    }
  }
}

/// Two ranks with batch norm over both ranks must give the result of one rank. The exchanges of statistics run between
/// the buckets, on another stream.
TEST(CudaTraining, TwoRanksExchangeStatisticsInACapturedStep) {
  const Outcome one = train_on_gpu({.graph = CudaGraph::on});
  for (const std::int64_t accumulate : {1, 2}) {
    RunSetup setup{.graph = CudaGraph::off, .accumulate = accumulate, .sync_batch_norm = true};
    const auto first = train_on_two_gpus(setup);
    EXPECT_EQ(differences(first[0], first[1]), Texts{});
    setup.graph = CudaGraph::on;
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      const auto captured = train_on_two_gpus(setup, seed);
      EXPECT_EQ(differences(captured[0], first[0]), Texts{}) << "seed " << seed;
    }
    if (accumulate == 1) {
      EXPECT_LT(distance(first[0].parameters, one.parameters), 1e-5);
      EXPECT_NEAR(first[0].evaluated.loss(), one.evaluated.loss(), 1e-5 * one.evaluated.loss());
      setup.sync_batch_norm = false;  // the control: statistics of each rank alone
      EXPECT_GT(distance(train_on_two_gpus(setup)[0].parameters, one.parameters), 1e-3);
    }
  }
}

/// With compression, both ranks must have the same gradients, bit by bit, in every order of asynchronous work, captured
/// or not.
TEST(CudaTraining, TwoRanksCompressGradientsInACapturedStep) {
  RunSetup setup{.graph = CudaGraph::off, .sums = {.compress = "powersgd:2"}};
  const auto first = train_on_two_gpus(setup);
  for (const char* name : {"values", "gradients", "factors"}) {
    EXPECT_TRUE(first[0].bits.at(name) == first[1].bits.at(name)) << name;
  }
  setup.graph = CudaGraph::on;
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    const auto captured = train_on_two_gpus(setup, seed);
    EXPECT_EQ(differences(captured[0], first[0]), Texts{}) << "seed " << seed;
  }
  setup.sums = {};
  const auto whole = train_on_two_gpus(setup);
  EXPECT_GT(distance(first[0].parameters, whole[0].parameters), 1e-4) << "the control";
}

/// The gradients of the virtual ranks are summed in the same tree on one GPU and on two GPUs, so all bits must be
/// equal.
TEST(CudaTraining, VirtualRanksGiveTheSameBitsOnOneGpuAndOnTwo) {
  for (const bool clips : {false, true}) {
    RunSetup setup{.graph = CudaGraph::off,
                   .optimizer = {.kind = OptimizerKind::adam, .clip_norm = clips ? 1e-2 : 0},
                   .virtual_ranks = 4};
    const Outcome one = train_on_gpu(setup);
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const auto outcomes = train_on_two_gpus(setup, seed);
      for (const char* name :
           {"values", "exp_avg", "averaged statistics", "gradients", "training metrics", "evaluation metrics"}) {
        EXPECT_TRUE(outcomes[0].bits.at(name) == one.bits.at(name)) << name;
        EXPECT_TRUE(outcomes[1].bits.at(name) == one.bits.at(name)) << name;
      }
    }
    setup.virtual_ranks = 0;
    EXPECT_FALSE(train_on_two_gpus(setup)[0].bits.at("values") == one.bits.at("values")) << "the control";
  }
  CudaContext context(Device::cuda(0));
  const auto tried = [&](CudaGraph graph) {
    return try_trainer(context, {.graph = graph, .virtual_ranks = 2}, [](Trainer& trainer, comm::Communicator&) {
      EXPECT_EQ(trainer.graph_obstacle(), "a rank computes several virtual ones");
    });
  };
  EXPECT_EQ(tried(CudaGraph::on), "cuda graph is on with virtual ranks, expected off");
  EXPECT_EQ(tried(CudaGraph::automatic), "");
}

/// With Strategy::zero1, which divides the optimizer's states over two ranks, a step must give the same bits as with
/// Strategy::ddp. A sum over two ranks has two terms, so its order does not matter. With LARS and with clip_norm, zero1
/// sums norms in another order, so the results may differ by rounding.
TEST(CudaTraining, DividedStatesGiveTheSameBitsInACapturedStep) {
  RunSetup setup{
      .model = mlp, .graph = CudaGraph::on, .optimizer = {.kind = OptimizerKind::adam}, .average = {.decay = 0.9}};
  setup.bucket_bytes = 1 << 20;  // large, so that a bucket has parts for both ranks
  const auto whole = train_on_two_gpus(setup);
  setup.strategy = Strategy::zero1;
  for (const comm::SumOrder order : {comm::SumOrder::library, comm::SumOrder::ranks}) {
    setup.sums.order = order;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const auto outcomes = train_on_two_gpus(setup, seed);
      for (const Outcome& outcome : outcomes) {
        EXPECT_TRUE(outcome.bits.at("values") == whole[0].bits.at("values")) << seed;
        EXPECT_LT(outcome.bits.at("exp_avg").size(), whole[0].bits.at("exp_avg").size());
        EXPECT_TRUE(outcome.bits.at("metrics of the average") == whole[0].bits.at("metrics of the average"));
      }
    }
  }
  // The ranks add the norms of tensors in another order than ddp, so results may differ by rounding.
  RunSetup lars = setup;
  lars.optimizer = {.kind = OptimizerKind::lars, .trust_coefficient = 0.1};
  lars.strategy = Strategy::ddp;
  const auto whole_lars = train_on_two_gpus(lars);
  lars.strategy = Strategy::zero1;
  const auto divided_lars = train_on_two_gpus(lars, 1);
  EXPECT_TRUE(divided_lars[0].bits.at("values") == divided_lars[1].bits.at("values"));
  EXPECT_LT(distance(divided_lars[0].parameters, whole_lars[0].parameters), 1e-6);
  EXPECT_GT(distance(whole_lars[0].parameters, whole[0].parameters), 1e-3) << "the control";
  RunSetup muon = setup;
  muon.optimizer = {.kind = OptimizerKind::muon, .momentum = 0.95, .nesterov = true};
  muon.strategy = Strategy::ddp;
  const auto orthogonal = train_on_two_gpus(muon);
  EXPECT_TRUE(orthogonal[0].bits.at("values") == orthogonal[1].bits.at("values"));
  const auto orthogonal_again = train_on_two_gpus(muon, 1);
  EXPECT_TRUE(orthogonal[0].bits.at("values") == orthogonal_again[0].bits.at("values"));
  EXPECT_GT(distance(orthogonal[0].parameters, whole[0].parameters), 1e-3) << "adamw";
  setup.optimizer.clip_norm = 1e-3;
  const auto clipped = train_on_two_gpus(setup);
  EXPECT_TRUE(clipped[0].bits.at("values") == clipped[1].bits.at("values"));
  EXPECT_GT(distance(clipped[0].parameters, whole[0].parameters), 1e-6);
  setup.strategy = Strategy::ddp;
  const auto clipped_whole = train_on_two_gpus(setup);
  EXPECT_LT(distance(clipped[0].parameters, clipped_whole[0].parameters), 1e-5);
}
#endif

}  // namespace
}  // namespace lockstep::nn
