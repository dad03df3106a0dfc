#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace lockstep::nn::detail {

/// What a plan came to in a turn, in seconds a step.
struct Turn {
  double exposed_s = 0;
  double step_s = 0;
};

struct ContestOptions {
  int steps = 0;  ///< at most so many are made, of all plans together
  int turn = 1;   ///< steps of a plan before it is the next one's turn
};

struct ContestResult {
  std::size_t best = 0;
  std::vector<std::vector<Turn>> turns;  ///< of each plan; turn i of two plans is of the same round
  int steps = 0;                         ///< made
};

/// Which of some plans to take, from steps that are made with them in turns. Sequential halving (Karnin, Koren, Somekh,
/// "Almost optimal exploration in multi-armed bandits", ICML 2013): in ceil(log2(plans)) stages of equally many steps
/// the plans of the stage take turns, and the half with the least exposed time goes on; a quarter of the steps is left
/// for the plan that is taken, whose time is then known best.
///
/// A plan whose step is clearly longer than the shortest is out, whatever it hides: the mean of the differences, round
/// by round, is more than four of its standard errors and than a hundredth of the step, over at least five rounds. So
/// the plan with the shortest step goes on, too. Times are means without the smallest and the largest fifth. Of plans
/// within a hundredth of the least exposed time it is one with the fewest buckets.
///
/// buckets: of each plan, at least one. measure(plan, steps): makes steps. Where all ranks measure the same numbers
/// they decide alike. With fewer steps than a round of all needs, the first plans alone take part.
[[nodiscard]] ContestResult hold_contest(std::span<const std::size_t> buckets, const ContestOptions& options,
                                         const std::function<Turn(std::size_t plan, int steps)>& measure);

/// The mean without the smallest and the largest fifth (as many as fit); of at least one value.
[[nodiscard]] double trimmed_mean(std::vector<double> values);

}  // namespace lockstep::nn::detail
