// Whole training on a CudaContext without a GPU: the library's host code on the stand-in for the CUDA runtime, its
// kernels on the emulation (environment.cpp: what either of them objects to fails the test).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/model.hpp>
#include <lockstep/nn/trainer.hpp>
#include <lockstep/runtime/context.hpp>
#include <lockstep/runtime/copy.hpp>
#include <lockstep/runtime/cuda_memory.hpp>
#include <lockstep/runtime/error.hpp>

#include <lockstep/emulation/launch.hpp>

#include "control.hpp"
#include "tests/comm/local_ranks.hpp"

namespace lockstep::nn {
namespace {

using Texts = std::vector<std::string>;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kClasses = 4;

Model mlp() {
  ModelBuilder builder("mlp", {8, 8, 3});
  NodeId x = builder.linear("fc1", builder.input(), 12);
  x = builder.relu("relu", x);
  builder.linear("fc2", x, kClasses);
  return builder.build();
}

/// What a residual network has: convolution, batch norm, an addition, a pool, a product.
Model cnn() {
  ModelBuilder builder("cnn", {8, 8, 3});
  NodeId x = builder.conv2d("conv1", builder.input(), 8, {.kernel = 3, .stride = 2, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  const NodeId shortcut = x;
  x = builder.conv2d("conv2", x, 8, {.kernel = 3, .stride = 1, .pad = 1});
  x = builder.batch_norm("bn2", x, {.relu = true, .residual = shortcut});
  x = builder.global_average_pool("pool", x);
  builder.linear("fc", x, kClasses);
  return builder.build();
}

/// 3 batches an epoch, the last image left over; 7 test images.
DataSplit small_data() {
  DataOptions options;
  options.seed = 5;
  options.synthetic = {
      .train_size = 13, .test_size = 7, .height = 8, .width = 8, .classes = static_cast<int>(kClasses)};
  return open_data(options);
}

struct RunSetup {
  Model (*model)() = cnn;
  int steps = 4;
  std::uint64_t seed = 1;
  CudaGraph graph = CudaGraph::automatic;
  OptimizerOptions optimizer{};
  DType dtype = DType::f32;
  std::int64_t accumulate = 1;
};

TrainerOptions options_of(const RunSetup& setup, const DataSplit& data, Device device) {
  TrainerOptions options;
  options.global_batch = 4;
  options.accumulate = setup.accumulate;
  options.seed = setup.seed;
  options.plan.dtype = setup.dtype;
  options.plan.augment = {
      .pad = 1, .flip = true, .mean = data.statistics.mean, .std = data.statistics.std, .seed = setup.seed};
  options.optimizer = setup.optimizer;
  options.schedule.base = setup.optimizer.kind == OptimizerKind::sgd ? 0.1 : 1e-2;
  options.schedule.total_steps = 8;
  options.buckets.bucket_bytes = 1000;  // several buckets
  if (device.kind == DeviceKind::cuda) {
    options.cuda_graph = setup.graph;
    // The libraries of a GPU are no part of this: our own kernels.
    CpuContext host;
    PlanOptions plain = options.plan;
    plain.dtype = DType::f32;
    options.plan.choices = Plan(host, setup.model(), Mode::train, options.global_batch, plain).choices();
    for (auto& [call, choice] : options.plan.choices) {
      choice = "cuda";
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

/// All that a run leaves behind.
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
  for (const std::string& name : set.counter_names()) {
    outcome.bits[name] = bytes_of(context, set.counter(name));
  }
  if (set.buffer_arena().numel() > 0) {
    outcome.bits["statistics"] = bytes_of(context, set.buffer_arena());
    outcome.bits["averaged statistics"] = bytes_of(context, set.evaluation_buffer_arena());
  }
  const Bytes& values = outcome.bits["values"];
  outcome.parameters.resize(values.size() / sizeof(float));
  std::memcpy(outcome.parameters.data(), values.data(), values.size());
  return outcome;
}

/// A trainer of one rank, started, and then what `body` does with it.
void with_trainer(Context& context, Stream communication, const RunSetup& setup,
                  const std::function<void(Trainer&, comm::Communicator& control)>& body) {
  const DataSplit data = small_data();
  const Model model = setup.model();
  const Texts failures = comm::run_ranks(1, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    Trainer trainer(context, {grad, *control, communication}, model, data, options_of(setup, data, context.device()));
    trainer.start();
    body(trainer, *control);
  });
  EXPECT_EQ(failures, comm::none_failed(1));
}

Outcome train(Context& context, Stream communication, const RunSetup& setup) {
  Outcome outcome;
  with_trainer(context, std::move(communication), setup, [&](Trainer& trainer, comm::Communicator&) {
    for (int i = 0; i < setup.steps; ++i) {
      trainer.step();
    }
    outcome = outcome_of(trainer);
  });
  return outcome;
}

Outcome train_on_host(const RunSetup& setup) {
  CpuContext context({.threads = 1});
  return train(context, Stream::host_inline(), setup);
}

Outcome train_on_gpu(const RunSetup& setup) {
  CudaContext context(Device::cuda(0));
  return train(context, Stream::cuda(Device::cuda(0), -1), setup);
}

/// |a - b| / |b|; infinity unless both are finite and of one size.
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

/// Names of what differs.
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

OptimizerOptions adam() {
  OptimizerOptions options;
  options.kind = OptimizerKind::adam;
  return options;
}

struct Case {
  std::string name;
  RunSetup setup;
  double parameters;  ///< tolerances
  double loss;
};

std::vector<Case> cases() {
  return {{"mlp, sgd", {.model = mlp}, 1e-5, 1e-5},
          {"mlp, adam", {.model = mlp, .optimizer = adam()}, 1e-4, 1e-5},
          {"cnn, sgd", {}, 1e-4, 1e-4},
          {"cnn, adam", {.optimizer = adam()}, 1e-4, 1e-4},
          {"cnn, sgd, two passes", {.accumulate = 2}, 1e-4, 1e-4},
          {"cnn, sgd, bf16", {.dtype = DType::bf16}, 3e-2, 3e-2}};
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

    RunSetup other = c.setup;  // the control
    other.seed = 2;
    const Outcome different = train_on_host(other);
    EXPECT_GT(distance(gpu.parameters, different.parameters), 3 * c.parameters);
  }
}

TEST(CudaTraining, ACapturedStepGivesTheSameBits) {
  for (Case c : cases()) {
    SCOPED_TRACE(c.name);
    c.setup.steps = 5;
    c.setup.graph = CudaGraph::off;
    const std::int64_t none = standin::calls("cudaGraphLaunch");
    const Outcome plain = train_on_gpu(c.setup);
    EXPECT_EQ(standin::calls("cudaGraphLaunch"), none);
    c.setup.graph = CudaGraph::on;
    const Outcome captured = train_on_gpu(c.setup);
    EXPECT_EQ(standin::calls("cudaGraphLaunch") - none, 4 * c.setup.accumulate);  // the first step runs as it is
    EXPECT_EQ(differences(plain, captured), Texts{});

    c.setup.steps = 4;  // the control: a step that was left out would be seen
    const Texts seen = differences(train_on_gpu(c.setup), captured);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), "values"), 1);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), "training metrics"), 1);
  }
}

}  // namespace
}  // namespace lockstep::nn
