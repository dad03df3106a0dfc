// What a timeline costs (--trace): steps of ResNet-20 that are recorded and steps that are not, in turns, in one run.
// Steps vary by far more than recording takes, and slowly: so pairs of neighbouring steps are compared, in changing
// order.

#include <cstdint>
#include <iostream>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/workplace.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

#include "bench/support/interval.hpp"
#include "bench/support/options.hpp"

namespace {

using namespace lockstep;

struct Options {
  int pairs = 300;
  std::int64_t batch = 64;  ///< of a rank
  int threads = 1;
};

int run(comm::Session& session, const DeviceRequest& devices, const Options& options) {
  require<UsageError>(options.pairs >= 1 && options.batch >= 1, "bench_trace: ", options.pairs, " pairs of steps of ",
                      options.batch, " samples, expected at least 1 of each");
  comm::Workplace place(session, devices, {.threads = options.threads});
  const nn::Model model = nn::cifar_resnet(20);
  const std::int64_t global = options.batch * session.size();
  nn::DataOptions data_options;
  data_options.synthetic = {.train_size = 8 * global, .test_size = global, .height = 32, .width = 32, .classes = 10};
  const nn::DataSplit data = nn::open_data(data_options);
  nn::TrainerOptions trainer_options;
  trainer_options.global_batch = global;
  trainer_options.schedule.base = 1e-3;
  trainer_options.schedule.total_steps = 1000000;
  trainer_options.cuda_graph = nn::CudaGraph::off;
  nn::Trainer trainer(place.context(), {place.grad(), session.control(), place.communication_stream()}, model, data,
                      trainer_options);
  // Step 1 is recorded, step 0 is not.
  SpanRecorder recorder(place.context().device(), 1, 1,
                        static_cast<std::size_t>(options.pairs) * (trainer.train_step().spans_of_a_step() + 2));
  trainer.record_into(&recorder);
  trainer.start();
  const auto step = [&](bool recorded) {
    recorder.begin_step(recorded ? 1 : 0);
    const std::int64_t begin = SpanRecorder::now_ns();
    trainer.step();
    trainer.train_step().synchronize();
    return 1e-9 * static_cast<double>(SpanRecorder::now_ns() - begin);
  };
  for (int warm = 0; warm < 4; ++warm) {
    step(false);
  }
  std::vector<double> with;
  std::vector<double> without;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const bool first = pair % 2 == 0;
    const double a = step(first);
    const double b = step(!first);
    with.push_back(first ? a : b);
    without.push_back(first ? b : a);
  }
  for (std::vector<double>* times : {&with, &without}) {  // a step is as long as the ranks' mean
    for (double& time : *times) {
      time = bench::mean_of(comm::all_gather_value(session.control(), time));
    }
  }
  const std::size_t spans = recorder.take(place.context().stream()).size();
  trainer.record_into(nullptr);
  require<StateError>(recorder.dropped() == 0, "bench_trace: ", recorder.dropped(), " spans had no room");
  if (session.rank() == 0) {
    const auto [low, high] = bench::ratio_interval(with, without, bench::median_of);
    const double median = bench::median_of(without);
    std::cout << options.pairs << " pairs of steps, " << spans / static_cast<std::size_t>(options.pairs)
              << " spans a recorded step\nmedian step " << seconds_text(median) << ", recorded "
              << seconds_text(bench::median_of(with)) << ": ratio " << digits(bench::median_of(with) / median, 4)
              << ", 95 % " << digits(low, 4) << " to " << digits(high, 4) << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto add_options = [&](CLI::App& app) {
    app.add_option("--pairs", options.pairs, "of a recorded step and one that is not")->capture_default_str();
    app.add_option("--batch-per-rank", options.batch, "samples of a rank")->capture_default_str();
    bench::add_threads_option(app, options.threads);
  };
  return bench::run_program(
      argc, argv,
      {.name = "bench_trace",
       .description = "What recording a timeline costs: ResNet-20's steps with and without, in turns.",
       .add_options = add_options,
       .ranks = bench::host_ranks,
       .run = [&](comm::Session& session, const DeviceRequest& devices, const bench::RunOptions&) {
         return run(session, devices, options);
       }});
}
