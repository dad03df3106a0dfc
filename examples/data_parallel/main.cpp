// data_parallel [--devices cpu:2]: data parallelism by hand, in one process without MPI.
//
// A batch is split, each device computes the gradient of its share, copies between the devices sum the gradients, and
// each device updates its own parameters (replicas.hpp, replicas.cpp). The program compares the summed gradient with
// the gradient of one device for the whole batch, and prints the time of each part of a step.
//
// The program is an explanation. train_resnet scales better, because it has a process (a rank) for each device:
//   - The gradients of a layer are summed while backward computes other layers. Here the sum begins after backward.
//   - NCCL or MPI choose rings, trees and links, also between nodes. Here every copy is explicit.
//   - Each device has its own host thread, with caches and memory. Here one thread serves all devices in turn, so a
//     device starts later if there are more devices.
//   - Each device has its own process, with handles, allocator and NUMA node. An error names the process that failed.
// A single process suits two or three GPUs of one workstation, models that are split over devices, and people who
// learn.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/launch/launch.hpp>
#include <lockstep/comm/launch/run_alone.hpp>
#include <lockstep/nn/data/loader.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/processors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "app/cli/command_line.hpp"
#include "devices.hpp"
#include "replicas.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using data_parallel::Replicas;
using data_parallel::Settings;
using data_parallel::Sum;

struct Options {
  std::string devices = "auto";
  std::int64_t batch = 64;
  std::int64_t steps = 10;
  std::int64_t image_size = 32;
  int threads = 0;
};

/// Makes a model of convolutions and a linear layer. The model has no batch norm: statistics over a share of the batch
/// would make the summed gradient differ from the gradient of the whole batch.
nn::Model small_cnn(std::int64_t side, int classes) {
  nn::ModelBuilder b = nn::ModelBuilder::for_images("small_cnn", {side, side, 3});
  nn::NodeId x = b.relu("relu1", b.conv2d("conv1", b.input(), 16, {.kernel = 3, .pad = 1, .bias = true}));
  x = b.relu("relu2", b.conv2d("conv2", x, 32, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  x = b.relu("relu3", b.conv2d("conv3", x, 64, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  b.linear("fc", x, classes);
  return b.build();
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Times of the parts of a step, in milliseconds. A part ends when its work is complete on all devices.
struct StepTimes {
  double split = 0, compute = 0, sum = 0, update = 0;
  [[nodiscard]] double total() const { return split + compute + sum + update; }
};

StepTimes step(Replicas& replicas, const nn::Batch& batch, Sum how) {
  const auto timed = [&](auto&& work) {
    const double begin = now_ms();
    work();
    replicas.synchronize();
    return now_ms() - begin;
  };
  StepTimes times;
  times.split = timed([&] { replicas.split_batch(batch); });
  times.compute = timed([&] { replicas.forward_backward(); });
  times.sum = timed([&] { replicas.all_reduce(how); });
  times.update = timed([&] { replicas.update(); });
  return times;
}

/// Runs `steps` steps and returns the times of the step with the median total. Other work on the machine disturbs a
/// median less than a mean.
StepTimes median_step(Replicas& replicas, nn::Loader& loader, std::int64_t steps, Sum how) {
  step(replicas, loader.next(), how);  // one step to warm up, which is not measured
  std::vector<StepTimes> all;
  for (std::int64_t i = 0; i < steps; ++i) {
    all.push_back(step(replicas, loader.next(), how));
  }
  std::sort(all.begin(), all.end(), [](const StepTimes& a, const StepTimes& b) { return a.total() < b.total(); });
  return all[all.size() / 2];
}

std::vector<float> gradient_of(Replicas& replicas, const nn::Batch& batch, Sum how) {
  replicas.split_batch(batch);
  replicas.forward_backward();
  replicas.all_reduce(how);
  data_parallel::Replica& last = replicas.at(replicas.size() - 1);
  std::vector<float> host(static_cast<std::size_t>(last.parameters.numel()));
  copy(*last.context, last.parameters.gradients(), TensorView(std::span(host), last.parameters.gradients().shape));
  replicas.synchronize();
  return host;
}

/// Returns the Euclidean norm of a - b divided by the norm of b.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

void print_row(const std::string& name, const StepTimes& t) {
  std::printf("  %-18s %8.2f %8.2f %8.2f %8.2f %8.2f\n", name.c_str(), t.split, t.compute, t.sum, t.update, t.total());
}

int run(const Options& options) {
  const data_parallel::Devices selected = data_parallel::devices_here(parse_devices(options.devices));
  const std::vector<Device>& devices = selected.all;
  const auto count = static_cast<std::int64_t>(devices.size());
  const int processors = ProcessorSet::of_process().count();
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, processors / static_cast<int>(devices.size()));

  nn::DataOptions data_options;
  data_options.synthetic = {.train_size = std::max<std::int64_t>(4 * options.batch, 64),
                            .test_size = 1,
                            .height = options.image_size,
                            .width = options.image_size,
                            .classes = 10};
  const nn::DataSplit data = nn::open_data(data_options);
  const nn::Model model = small_cnn(options.image_size, data.train->classes());
  Settings settings{.batch = options.batch, .threads = threads};
  settings.plan.augment = {.pad = 0, .flip = false, .mean = data.statistics.mean, .std = data.statistics.std};
  Replicas alone({devices.front()}, model, settings);
  Replicas together(devices, model, settings);

  const nn::Sampler sampler({.size = data.train->size(), .batch_size = options.batch});
  HostMemoryResource memory;
  nn::Loader loader(*data.train, sampler, memory);

  std::string names;
  for (const Device device : devices) {
    names += (names.empty() ? "" : ", ") + to_string(device);
  }
  const double mb = static_cast<double>(together.at(0).parameters.gradients().bytes()) / 1e6;
  const std::string shares =
      nn::run_rules({.ranks = static_cast<int>(count), .global_batch = options.batch}).batch_text("device");
  std::printf(
      "%s\n  devices    %s; %d thread%s each on the host\n  model      %s, %lld parameters, %.2f MB of gradients\n"
      "  batch      %s\n",
      build_description().c_str(), names.c_str(), threads, threads == 1 ? "" : "s", model.name().c_str(),
      static_cast<long long>(model.parameter_count()), mb, shares.c_str());

  const nn::Batch& first = loader.next();
  const std::vector<float> expected = gradient_of(alone, first, Sum::star);
  for (const Sum how : {Sum::star, Sum::ring}) {
    const double difference = relative_difference(gradient_of(together, first, how), expected);
    std::printf("  gradient   summed as a %s, against one device with the whole batch: off by %.1e\n",
                how == Sum::star ? "star" : "ring", difference);
    require<StateError>(difference <= 1e-4, "the gradient of ", count, " devices is off by ", difference,
                        " from that of one, expected at most 1e-4");
  }

  std::printf("\n  ms a step             split  compute      sum   update    total   (median of %lld)\n",
              static_cast<long long>(options.steps));
  const StepTimes one = median_step(alone, loader, options.steps, Sum::star);
  print_row("1 device", one);
  if (count == 1) {
    return exit_code::kFinished;
  }
  const std::string several = std::to_string(count) + " devices";
  const StepTimes star = median_step(together, loader, options.steps, Sum::star);
  print_row(several + ", star", star);
  const StepTimes ring = median_step(together, loader, options.steps, Sum::ring);
  print_row(several + ", ring", ring);
  const double best = std::min(star.total(), ring.total());
  const double best_sum = star.total() < ring.total() ? star.sum : ring.sum;
  std::printf("  %.2f times as fast as one device; the sum copies %.2f MB from device to device, %.0f %% of a step\n",
              one.total() / best, static_cast<double>(together.copied_bytes()) / 1e6, 100 * best_sum / best);
  return exit_code::kFinished;
}

int parse_and_run(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Data parallelism by hand, with one process, several devices and no MPI. Shows the parts of a step\n"
      "and their times.",
      "data_parallel");
  lockstep::cli::prepare(app, "");
  app.add_option("--devices", options.devices,
                 "devices; auto: all GPUs, or without a GPU two parts of the host; cpu:N: N parts of the host; GPUs as "
                 "in docs/devices.md, untried");
  app.add_option("--batch-size", options.batch, "batch size: samples of all devices together");
  app.add_option("--steps", options.steps, "number of timed steps");
  app.add_option("--image-size", options.image_size, "side of the images in pixels");
  app.add_option("--threads", options.threads, "threads of each part of the host; 0: processors / parts");
  const std::string text =
      lockstep::cli::parse_command_line(app, argc, argv, lockstep::cli::read_config_file(argc, argv));
  if (!text.empty()) {
    std::printf("%s", text.c_str());
    return exit_code::kFinished;
  }
  const auto in_range = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    require<UsageError>(value >= least && value <= most, name, " is ", value, ", expected ", least, " to ", most);
  };
  in_range("--batch-size", options.batch, 1, 1 << 20);
  in_range("--steps", options.steps, 1, 1 << 20);
  in_range("--image-size", options.image_size, 4, 1024);
  in_range("--threads", options.threads, 0, 1024);
  const comm::Launch launch = comm::detect_launch(comm::process_environment());
  require<UsageError>(launch.size == 1, "data_parallel was started ", launch.size, " times (", launch.origin,
                      "), expected once: one process drives all devices; train_resnet runs one rank a device");
  return run(options);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_alone([&] { return parse_and_run(argc, argv); });
}
