// Tests the example that implements data parallelism by hand. Its gradients and parameters must equal those of
// lockstep's ranks. Also tests the program's options and output.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "examples/data_parallel/devices.hpp"
#include "examples/data_parallel/replicas.hpp"
#include "tests/comm/local_ranks.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/guarded.hpp"
#include "tests/support/run_command.hpp"

namespace lockstep {
namespace {

using data_parallel::Replicas;
using data_parallel::Settings;
using data_parallel::Sum;

constexpr std::int64_t kBatch = 13;  // 13 samples cannot be divided evenly over 2, 3 or 4 devices
constexpr int kSteps = 3;
constexpr double kRate = 0.02;

const nn::DataSplit& small_data() {
  static const nn::DataSplit kData = [] {
    nn::DataOptions options;
    options.seed = 5;
    options.synthetic = {.train_size = 50, .test_size = 3, .height = 9, .width = 9, .classes = 4};
    return nn::open_data(options);
  }();
  return kData;
}

nn::Model plain_net() {
  nn::ModelBuilder b = nn::ModelBuilder::for_images("plain", {9, 9, 3});
  nn::NodeId x = b.relu("r1", b.conv2d("c1", b.input(), 8, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  x = b.relu("r2", b.linear("l1", x, 11, {.he_init = true}));
  b.linear("fc", x, 4);
  return b.build();
}

nn::PlanOptions plan_options(DType dtype) {
  nn::PlanOptions options;
  options.dtype = dtype;
  options.augment = {.pad = 2, .flip = true, .mean = small_data().statistics.mean, .seed = 3};
  return options;
}

/// The gradient of the first step, and the parameters after the last step.
struct Outcome {
  std::vector<double> gradient;
  std::vector<double> parameters;
};

/// Trains the same model with `ranks` ranks of lockstep, whose buckets are reduced while backward computes.
Outcome of_ranks(int ranks, DType dtype) {
  Outcome outcome;
  const auto failures = comm::run_ranks(ranks, [&](comm::Communicator& grad) {
    const auto control = grad.split(0, grad.rank());
    CpuContext context({.threads = 1});
    Stream worker = Stream::host_worker("comm");
    nn::TrainerOptions options;
    options.global_batch = kBatch;
    options.step.plan = plan_options(dtype);
    options.step.weight_decay = 0;
    options.schedule = {.kind = nn::Schedule::Kind::constant, .base = kRate};
    options.step.buckets.bucket_bytes = 3000;
    nn::Trainer trainer(context, {grad, *control, worker}, plain_net(), small_data(), options);
    trainer.start();
    for (int i = 0; i < kSteps; ++i) {
      trainer.step();
      context.synchronize();
      if (i == 0 && grad.rank() == 0) {
        outcome.gradient = testing::to_doubles(trainer.parameters().gradients());
      }
    }
    if (grad.rank() == 0) {
      outcome.parameters = testing::to_doubles(trainer.parameters().values());
    }
  });
  EXPECT_EQ(failures, comm::none_failed(ranks));
  return outcome;
}

/// Trains the model by hand on `devices` devices. If `sums` is false, leaves out the all-reduce. Otherwise expects the
/// same bits on all devices.
Outcome by_hand(int devices, DType dtype, Sum how, bool sums = true) {
  Settings settings{.batch = kBatch, .learning_rate = kRate, .plan = plan_options(dtype)};
  Replicas replicas(std::vector<Device>(static_cast<std::size_t>(devices), Device::cpu()), plain_net(), settings);
  const nn::Sampler sampler({.size = 50, .batch_size = kBatch, .seed = 1});
  HostMemoryResource memory;
  nn::Loader loader(*small_data().train, sampler, memory);
  Outcome outcome;
  for (int i = 0; i < kSteps; ++i) {  // no step waits on the host, so only events order the work
    replicas.split_batch(loader.next());
    replicas.forward_backward();
    if (sums) {
      replicas.all_reduce(how);
    }
    if (i == 0) {
      replicas.synchronize();
      outcome.gradient = testing::to_doubles(replicas.at(0).parameters.gradients());
    }
    replicas.update();
  }
  replicas.synchronize();
  outcome.parameters = testing::to_doubles(replicas.at(0).parameters.values());
  for (std::size_t d = 1; d < replicas.size() && sums; ++d) {
    testing::expect_same_bits(replicas.at(d).parameters.gradients(), replicas.at(0).parameters.gradients());
    testing::expect_same_bits(replicas.at(d).parameters.values(), replicas.at(0).parameters.values());
  }
  return outcome;
}

TensorView view(const std::vector<double>& values) {
  return {const_cast<double*>(values.data()), DType::f64, Device::cpu(), {static_cast<std::int64_t>(values.size())}};
}

TEST(DataParallelByHand, IsWhatRanksCompute) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-4;
    const Outcome one = of_ranks(1, dtype);  // reference: one rank with the whole batch
    const Outcome ranks = of_ranks(3, dtype);
    for (const int devices : {1, 2, 3, 4}) {
      for (const Sum how : {Sum::star, Sum::ring}) {
        const Outcome hand = by_hand(devices, dtype, how);
        const std::string what = std::to_string(devices) + (how == Sum::star ? " devices, star" : " devices, ring");
        testing::expect_close(view(hand.gradient), view(one.gradient), tolerance, what);
        testing::expect_close(view(hand.gradient), view(ranks.gradient), tolerance, what);
        testing::expect_close(view(hand.parameters), view(one.parameters), tolerance, what);
        testing::expect_close(view(hand.parameters), view(ranks.parameters), tolerance, what);
      }
    }
    EXPECT_FALSE(testing::is_close(view(by_hand(2, dtype, Sum::star, false).gradient), view(one.gradient), 0.1))
        << "a gradient that was not summed is another";
    EXPECT_FALSE(testing::is_close(view(one.parameters), view(by_hand(2, dtype, Sum::ring, false).parameters), 1e-3));
  }
}

TEST(DataParallelByHand, CountsItsCopiesAndRefusesWhatCannotBe) {
  const Settings settings{.batch = 3, .plan = plan_options(DType::f32)};
  Replicas replicas({Device::cpu(), Device::cpu(), Device::cpu()}, plain_net(), settings);
  const std::size_t gradient = replicas.at(0).parameters.gradients().bytes();
  for (const Sum how : {Sum::star, Sum::ring}) {
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      before += replicas.at(d).context->copied().host_to_host;
    }
    replicas.all_reduce(how);
    replicas.synchronize();
    for (std::size_t d = 0; d < 3; ++d) {
      after += replicas.at(d).context->copied().host_to_host;
    }
    EXPECT_EQ(after - before, 4 * gradient);
    EXPECT_EQ(replicas.copied_bytes(), 4 * gradient);
  }
  EXPECT_THROW(Replicas({}, plain_net(), settings), UsageError);
  EXPECT_THROW(Replicas(std::vector<Device>(4, Device::cpu()), plain_net(), settings), UsageError);
}

TEST(DataParallelByHand, AutoIsAllGpusAndTheHostWithoutOne) {
  std::vector<GpuInfo> three(3);
  for (int i = 0; i < 3; ++i) {
    three[static_cast<std::size_t>(i)] = {.index = i, .uuid = concat("GPU-", i)};
  }
  const auto of = [](const std::string& text, const std::vector<GpuInfo>& gpus) {
    return data_parallel::devices_of(DeviceRequest::parse(text), gpus);
  };
  const std::vector<Device> halves(2, Device::cpu());
  const std::vector<Device> all{Device::cuda(0), Device::cuda(1), Device::cuda(2)};
  EXPECT_EQ(of("auto", three), all);
  EXPECT_EQ(of("auto", {three[0]}), std::vector<Device>{Device::cuda(0)});
  EXPECT_EQ(of("auto", {}), halves);
  EXPECT_EQ(of("gpu", three), all);
  EXPECT_EQ(of("2,1", three), (std::vector<Device>{Device::cuda(2), Device::cuda(1)}));
  EXPECT_EQ(of("cpu", three), halves);
  EXPECT_EQ(of("cpu:5", three), std::vector<Device>(5, Device::cpu()));
  EXPECT_THROW((void)of("gpu", {}), UsageError);
  EXPECT_THROW((void)of("4", three), UsageError);
  EXPECT_THROW((void)of("usable:2", three), StateError);
  EXPECT_EQ(data_parallel::devices_here(DeviceRequest::parse("cpu")).all, halves);
}

TEST(DataParallelByHand, TheProgram) {
  const auto run = [](const std::string& options) {
    return testing::run_command("env CUDA_VISIBLE_DEVICES= " DATA_PARALLEL " " + options);
  };
  run("--devices cpu:3 --batch-size 7 --image-size 8 --steps 1 --threads 1")
      .finished({"7 over 3 devices: 1 of 3, 2 of 2", "summed as a ring", "3 devices, star", "copies 0.4"});
  run("--batch-size 5 --image-size 8 --steps 1 --threads 1").finished({"devices    cpu, cpu; "});
  run("--help").finished({"--devices"});
  testing::expect_refusals(run, {{"--nonsense", {"--nonsense"}},
                                 {"--devices 0", {"devices '0'"}},
                                 {"--devices cpu:9 --batch-size 8", {"each of the 9 devices"}},
                                 {"--devices usable:2", {"usable GPUs: this process can use no GPU"}},
                                 {"--steps 0", {"--steps is 0, expected 1"}}});
  testing::run_command("env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 " DATA_PARALLEL)
      .exits(2, {"started 2 times (OMPI_COMM_WORLD_RANK=0"});
}

}  // namespace
}  // namespace lockstep
