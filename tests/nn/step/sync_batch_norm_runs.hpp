#pragma once

#include <cmath>
#include <utility>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "tests/support/guarded.hpp"

/// Runs with batch norm statistics over all ranks, and runs of one rank. Both kinds of runs must give the same results.
namespace lockstep::nn {

struct SyncRun {
  int depth = 8;  ///< depth of the ResNet
  DType dtype = DType::f64;
  int steps = 6;
  bool sync = true;
  bool overlap = true;     ///< gradients are summed on a worker
  bool beside = true;      ///< statistics use a communicator of their own, StepRanks::statistics
  bool on_worker = false;  ///< the compute stream has a thread of its own
  std::int64_t accumulate = 1;
  std::int64_t batch = 11;  ///< samples of all ranks: 6 and 5, or 3, 3, 3 and 2
  std::int64_t last = 2;
  int extent = 12;  ///< height and width of an image
  double rate = 2e-3;
};

/// Results of a run on a rank.
struct SyncOutcome {
  std::vector<double> values;      ///< values of the parameters
  std::vector<double> statistics;  ///< running statistics of this rank
  Metrics trained;                 ///< sums over all ranks
};

/// Returns data of four batches an epoch and a last batch of `last` samples, of which some ranks may get none.
inline DataSplit sync_data(const SyncRun& run) {
  return open_data({.seed = 5,
                    .synthetic = {.train_size = 4 * run.batch + run.last,
                                  .test_size = 7,
                                  .height = run.extent,
                                  .width = run.extent,
                                  .classes = 4}});
}

inline TrainerOptions sync_options(const SyncRun& run, const DataSplit& data) {
  TrainerOptions options{.global_batch = run.batch, .accumulate = run.accumulate, .keep_last = true};
  options.step.sync_batch_norm = run.sync;
  options.step.plan.dtype = run.dtype;
  options.step.plan.augment = {
      .pad = 2, .flip = true, .mean = data.statistics.mean, .std = data.statistics.std, .seed = 1};
  options.schedule.base = run.rate;
  options.step.buckets.bucket_bytes = 20000;
  return options;
}

/// Runs this rank's part of a run. `statistics` is a communicator of the same ranks as grad and control.
inline SyncOutcome train_rank(const SyncRun& run, comm::Communicator& grad, comm::Communicator& control,
                              comm::Communicator& statistics) {
  const DataSplit data = sync_data(run);
  const Model model = cifar_resnet(run.depth, 4, run.extent, run.extent);
  Stream compute = Stream::host_worker("compute");
  CpuContext context({.threads = 1, .stream = run.on_worker ? &compute : nullptr});
  Stream worker = Stream::host_worker("comm");
  Trainer trainer(context,
                  {grad, control, run.overlap ? worker : context.stream(), nullptr, run.beside ? &statistics : nullptr},
                  model, data, sync_options(run, data));
  trainer.start();
  for (int i = 0; i < run.steps; ++i) {
    trainer.step();
  }
  SyncOutcome outcome;
  outcome.trained = trainer.take_metrics();
  const std::vector<double> arena = testing::to_doubles(trainer.parameters().values());
  // Goes through single parameters to leave out padding, which differs between the types.
  for (const ParameterInfo& info : trainer.parameters().parameters()) {
    const auto begin = arena.begin() + info.offset;
    outcome.values.insert(outcome.values.end(), begin, begin + info.numel);
  }
  outcome.statistics = testing::to_doubles(trainer.parameters().buffer_arena());
  trainer.require_same_state();
  return outcome;
}

/// Runs `run` on one rank, with batch norm over all ranks only if `with_option`.
inline SyncOutcome train_alone(SyncRun run, bool with_option = false) {
  run.sync = with_option;
  comm::LocalGroup groups[] = {comm::LocalGroup(1), comm::LocalGroup(1), comm::LocalGroup(1)};
  const auto grad = groups[0].communicator(0);
  const auto control = groups[1].communicator(0);
  const auto statistics = groups[2].communicator(0);
  return train_rank(run, *grad, *control, *statistics);
}

/// Returns |a - b| / |b|; infinity unless both are finite and of one size.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = i < a.size() ? a[i] - b[i] : HUGE_VAL;
    difference += d * d;
    size += b[i] * b[i];
  }
  const double result = std::sqrt(difference / size);
  return a.size() == b.size() && std::isfinite(result) ? result : HUGE_VAL;
}

/// Returns the largest distance() of a and b over parameters, running statistics and the mean loss.
inline double distance(const SyncOutcome& a, const SyncOutcome& b) {
  double worst = std::abs(a.trained.loss() - b.trained.loss()) / b.trained.loss();
  for (const double each : {distance(a.values, b.values), distance(a.statistics, b.statistics)}) {
    worst = each <= worst ? worst : each;
  }
  return std::isfinite(worst) && a.trained.samples == b.trained.samples ? worst : HUGE_VAL;
}

}  // namespace lockstep::nn
