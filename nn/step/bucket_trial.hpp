#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/comm/cost/cost_model.hpp>
#include <lockstep/nn/step/train_step.hpp>

namespace lockstep::nn {

/// warm_steps + 3 / 2 * steps + contest_steps + confirm_steps is the most that a trial makes: 175. Where the exposed
/// time varies little from step to step it makes less than 100.
struct BucketTrialOptions {
  int warm_steps = 3;       ///< before the measured ones: first steps allocate and fill caches
  int steps = 8;            ///< with the plan at hand; half as many again with one bucket for everything
  int contest_steps = 64;   ///< with all plans that are tried; 0: none is, the costs decide
  int confirm_steps = 96;   ///< at most, with the plan that was chosen (detail::hold_contest())
  comm::CostModel cost{};   ///< of the sum of a bucket; empty: measured
  double cost_seconds = 1;  ///< for about which time that is measured
};

/// A plan that was tried, in turns with the others.
struct TriedPlan {
  std::string name;
  std::vector<int> ends;
  /// What decided: a step, the mean over the ranks; over its turns the mean without the smallest and the largest fifth.
  double exposed_s = 0;
  double step_s = 0;  ///< from begin to end: the same means
  int turns = 0;      ///< how often it was its turn; 0: there were too few steps
};

/// What trial steps showed, and the plan that follows. The same on every rank.
struct BucketTrial {
  std::vector<int> ends;  ///< the plan, for comm::BucketOptions::ends
  std::string name;       ///< of it: TriedPlan::name
  /// How long the compute stream waits for communication in a step, the mean over the ranks: measured with this plan
  /// after it was chosen, as the steps that chose it are those in which it was lucky.
  /// Where no plan was tried: what the costs say, and what the trial steps waited beyond what their own plan explains
  /// (for slower ranks and, with zero1, for parameters), which is taken to stay; where they waited less, the same share
  /// of what is left.
  double exposed_s = 0;
  double exposed_error_s = 0;  ///< the standard error of exposed_s over the steps it is from; 0: not known
  std::vector<TriedPlan> tried;
  int steps = 0;  ///< that were made
  /// When each gradient was ready, in seconds from the first of a step: the median over the steps, the maximum over the
  /// ranks, and not before the gradients ahead of it. All 0 where nothing overlaps.
  std::vector<double> ready_s;
  comm::CostModel cost;
  double slowdown = 1;  ///< of communication by computation: of what was mostly beside backward
  double drag = 1;      ///< of backward by communication, where it was measured (comm::OverlapModel)
};

/// Plans the gradient buckets of a training run from what its steps measure. Trial steps show when gradients are ready,
/// how long buckets take beside backward and how much longer backward takes beside them; sums of other sizes are timed
/// without computation. Two plans are searched with that (comm::plan_buckets_by_cost(), plan_buckets_by_overlap()).
/// They, the plan at hand, one bucket, and the default plans of other tools (comm::peer_plans()) are then tried: real
/// steps in turns, of which detail::hold_contest() keeps the better half again and again. The least exposed plan wins
/// unless its whole step is clearly longer than another's.
///
/// The plan decides the order of sums, so it belongs to the beginning of a run: make the steps with a TrainStep of the
/// same options, cuda_graph off, and throw it away; train with another one that has BucketOptions::ends, and keep these
/// for the run's next beginning. Where sums need memory of their own (gradients that travel as 16 bits, sums in an
/// order) no plan has larger buckets than the one at hand and than BucketOptions::head_bytes. Where the step has a
/// replan_obstacle() (zero1) nothing is tried: the first search decides.
///
/// Collective. step: makes one step of `trial`, all its micro-batches. Plans change between steps
/// (TrainStep::replan_buckets()). control: for host tensors, of the same ranks. With one rank it makes no step and
/// returns the plan that is there. UsageError on every rank when their plans differ; StateError where steps are
/// captured. Not for a step with a hook, whose costs are its own.
[[nodiscard]] BucketTrial try_buckets(TrainStep& trial, comm::Communicator& control, const std::function<void()>& step,
                                      const BucketTrialOptions& options = {});

}  // namespace lockstep::nn
