// Exposed communication of a training step of ResNet-50 under the plan of trial steps (nn::try_buckets()) and under the
// default plans of other tools (comm::peer_plans()), in turns. Backward is real; images are small, so that a step takes
// tens of milliseconds. A plan that several have is run once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <lockstep/comm/gradients/bucket_cost.hpp>
#include <lockstep/comm/gradients/peer_plans.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/workplace.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/step/bucket_trial.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "bench/support/interval.hpp"
#include "bench/support/options.hpp"

namespace {

using namespace lockstep;

constexpr double kMiB = 1 << 20;

struct Options {
  int rounds = 15;
  int steps = 30;  ///< of each plan in a round
  std::int64_t image = 64;
  std::int64_t batch = 4;  ///< of a rank
  int threads = 1;
};

double bytes_of(const std::vector<comm::GradientRange>& gradients, int first, int last) {
  return 4.0 * static_cast<double>(gradients[static_cast<std::size_t>(last) - 1].end -
                                   gradients[static_cast<std::size_t>(first)].begin);
}

struct Contender {
  std::string name;
  std::vector<int> ends;
  std::unique_ptr<nn::Trainer> trainer{};
  std::vector<double> exposed_s{};  ///< a step, the mean of the ranks: by round
  std::size_t run_as = 0;           ///< the first that has this plan
};

std::string sizes_text(const std::vector<comm::GradientRange>& gradients, const std::vector<int>& ends) {
  std::string text;
  int first = 0;
  for (const int last : ends) {
    text += concat(' ', digits(bytes_of(gradients, first, last) / kMiB, 1));
    first = last;
  }
  return text + " MiB";
}

void print(const std::vector<Contender>& all, const std::vector<comm::GradientRange>& gradients,
           const nn::BucketTrial& trial) {
  const Contender& ours = all.front();
  std::cout << "\n                          exposed a step  ours over it, 95 %    buckets\n";
  for (const Contender& each : all) {
    const std::vector<double>& exposed_s = all[each.run_as].exposed_s;
    std::cout << std::left << std::setw(26) << each.name << std::setw(16) << seconds_text(bench::mean_of(exposed_s));
    if (each.run_as == 0) {
      std::cout << std::setw(22) << (&each == &ours ? "" : "1, the same plan");
    } else {
      const auto [low, high] = bench::ratio_interval(ours.exposed_s, exposed_s, bench::mean_of);
      std::cout << std::setw(22)
                << concat(digits(bench::mean_of(ours.exposed_s) / bench::mean_of(exposed_s), 3), "  ", digits(low, 3),
                          " to ", digits(high, 3));
    }
    std::cout << sizes_text(gradients, each.ends) << '\n';
  }
  const double measured = bench::mean_of(ours.exposed_s);
  std::cout << "predicted " << seconds_text(trial.exposed_s) << " +- " << seconds_text(trial.exposed_error_s)
            << " for ours, " << digits(trial.exposed_s / measured, 3) << " of the " << seconds_text(measured) << " +- "
            << seconds_text(bench::standard_error_of(ours.exposed_s))
            << " that was measured (+-: standard error)\ncommunication is " << digits(trial.slowdown, 2)
            << " times as slow beside backward of " << seconds_text(trial.ready_s.back()) << ", which is "
            << digits(trial.drag, 2) << " times as slow beside it\nalone, by MiB:";
  for (double mib = 0.25; mib <= 64; mib *= 4) {
    std::cout << "  " << digits(mib, 2) << ": " << seconds_text(trial.cost.predict(mib * kMiB));
  }
  std::cout << "\nby the model alone, exposed:";
  for (const Contender& each : all) {
    comm::BucketOptions plan;
    plan.ends = each.ends;
    std::cout << "  "
              << seconds_text(comm::finish_time(comm::plan_buckets(gradients, plan), trial.ready_s, trial.cost, 4,
                                                trial.slowdown) -
                              trial.ready_s.back());
  }
  std::cout << "\n\n"
            << std::setw(28) << concat("tried in ", trial.steps, " trial steps")
            << "exposed a step  step      turns buckets\n";
  for (const nn::TriedPlan& each : trial.tried) {
    std::cout << std::setw(28) << each.name + (each.ends == trial.ends ? " *" : "") << std::setw(16)
              << (each.turns > 0 ? seconds_text(each.exposed_s) : "-") << std::setw(10)
              << (each.turns > 0 ? seconds_text(each.step_s) : "-") << std::setw(6) << each.turns
              << sizes_text(gradients, each.ends) << '\n';
  }
}

int run(comm::Session& session, const DeviceRequest& devices, const Options& options) {
  require<UsageError>(session.size() > 1, "bench_buckets: one rank, expected several (mpirun -np 2, --devices cpu:2)");
  require<UsageError>(options.rounds >= 2 && options.steps >= 1, "bench_buckets: ", options.rounds, " rounds of ",
                      options.steps, " steps, expected at least 2 and 1");
  comm::Workplace place(session, devices, {.threads = options.threads, .overlap = comm::WorkplaceOptions::Overlap::on});
  const nn::Model model = nn::resnet(50, 1000, options.image);
  nn::DataOptions data_options;
  const std::int64_t global = options.batch * session.size();
  data_options.synthetic = {
      .train_size = 4 * global, .test_size = global, .height = options.image, .width = options.image, .classes = 1000};
  const nn::DataSplit data = nn::open_data(data_options);
  const auto trainer_with = [&](std::vector<int> ends) {
    nn::TrainerOptions trainer_options;
    trainer_options.global_batch = global;
    trainer_options.buckets.ends = std::move(ends);
    trainer_options.loader_workers = 0;
    trainer_options.schedule.base = 1e-3;
    trainer_options.schedule.total_steps = 1000000;
    trainer_options.cuda_graph = nn::CudaGraph::off;
    auto trainer = std::make_unique<nn::Trainer>(
        place.context(), nn::Ranks{place.grad(), session.control(), place.communication_stream()}, model, data,
        trainer_options);
    trainer->start();
    return trainer;
  };
  nn::BucketTrial trial;
  std::vector<comm::GradientRange> gradients;
  {
    const auto trainer = trainer_with({});
    gradients = trainer->reducer().gradients();
    trial = nn::try_buckets(trainer->train_step(), session.control(), [&] { trainer->step(); });
  }
  std::vector<Contender> all;
  all.push_back({.name = "trial steps", .ends = trial.ends});
  for (comm::NamedPlan& plan :
       comm::peer_plans(gradients, trial.ready_s, {.all_reduce = trial.cost, .slowdown = trial.slowdown}, 4)) {
    all.push_back({.name = std::move(plan.name), .ends = std::move(plan.ends)});
  }
  std::vector<std::size_t> runs;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Contender& each) { return each.ends == all[i].ends; });
    all[i].run_as = static_cast<std::size_t>(same - all.begin());
    if (all[i].run_as == i) {
      runs.push_back(i);
    }
  }
  for (const std::size_t i : runs) {
    Contender& each = all[i];
    each.trainer = trainer_with(each.ends);
    each.trainer->step();
    each.trainer->train_step().synchronize();
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      Contender& each = all[runs[(i + static_cast<std::size_t>(round)) % runs.size()]];
      const double before = each.trainer->reducer().statistics().exposed_s;
      for (int step = 0; step < options.steps; ++step) {
        each.trainer->step();
      }
      each.trainer->train_step().synchronize();
      const double own = (each.trainer->reducer().statistics().exposed_s - before) / options.steps;
      each.exposed_s.push_back(bench::mean_of(comm::all_gather_value(session.control(), own)));
    }
  }
  if (session.rank() == 0) {
    print(all, gradients, trial);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto add_options = [&](CLI::App& app) {
    app.add_option("--rounds", options.rounds, "of all plans in turns")->capture_default_str();
    app.add_option("--steps", options.steps, "of each plan in a round")->capture_default_str();
    app.add_option("--image-size", options.image, "of the network's input")->capture_default_str();
    app.add_option("--batch-per-rank", options.batch, "samples of a rank")->capture_default_str();
    bench::add_threads_option(app, options.threads);
  };
  return bench::run_program(
      argc, argv,
      {.name = "bench_buckets",
       .description =
           "Exposed communication of ResNet-50's steps: the plan of trial steps beside those of other tools.",
       .add_options = add_options,
       .ranks = bench::host_ranks,
       .run = [&](comm::Session& session, const DeviceRequest& devices, const bench::RunOptions&) {
         return run(session, devices, options);
       }});
}
