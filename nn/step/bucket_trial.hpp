#pragma once

#include <functional>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/gradients/cost_model.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::nn {

struct BucketTrialOptions {
  int warm_steps = 3;  ///< before the measured ones: first steps allocate and fill caches
  int steps = 8;
  comm::CostModel cost{};   ///< of the sum of a bucket; empty: measured
  double cost_seconds = 1;  ///< for about which time that is measured
};

/// What trial steps showed, and the plan that follows. The same on every rank.
struct BucketTrial {
  std::vector<int> ends;  ///< the plan, for comm::BucketOptions::ends
  /// How long the compute stream will wait for communication in a step, the mean over the ranks: what the plan leaves
  /// exposed, and what the trial steps waited beyond what their own plan explains. That is waiting for slower ranks
  /// and, with zero1, for parameters, and is taken to stay; where they waited less, the same share of what is left.
  double exposed_s = 0;
  /// When each gradient was ready, in seconds from the first of a step: the median over the steps, the maximum over the
  /// ranks, and not before the gradients ahead of it. All 0 where nothing overlaps.
  std::vector<double> ready_s;
  comm::CostModel cost;
  double slowdown = 1;  ///< of communication by computation (comm::finish_time()): the median of all hidden buckets
};

/// Plans the gradient buckets of a training run from what its steps measure: makes trial steps, notes when gradients
/// are ready and how long buckets take beside backward, times sums of other sizes without computation, and searches
/// the plan that ends first (comm::plan_buckets_by_cost()). A time of a bucket is that of the rank that came last,
/// which waited for nobody.
///
/// The plan decides the order of sums, so it belongs to the beginning of a run: make the steps with a TrainStep of the
/// same options, cuda_graph off, and throw it away; train with another one that has BucketOptions::ends, and keep these
/// for the run's next beginning.
///
/// Collective. step: makes one step of `trial`, all its micro-batches. control: for host tensors, of the same ranks.
/// With one rank it makes no step and returns the plan that is there. UsageError on every rank when their plans differ;
/// StateError where steps are captured. Not for a step with a hook, whose costs are its own.
[[nodiscard]] BucketTrial try_buckets(TrainStep& trial, comm::Communicator& control, const std::function<void()>& step,
                                      const BucketTrialOptions& options = {});

}  // namespace lockstep::nn
