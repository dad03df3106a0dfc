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
  int steps = 0;          ///< at most so many are made, of all plans together, before one is chosen
  int turn = 1;           ///< steps of a plan before it is the next one's turn
  int confirm_steps = 0;  ///< at most so many are made with the chosen plan
};

struct ContestResult {
  std::size_t best = 0;
  std::vector<std::vector<Turn>> turns;  ///< of each plan, before the choice; turn i of two plans is of the same round
  std::vector<Turn> confirmed;           ///< of the chosen plan, after the choice
  int steps = 0;                         ///< made
};

/// A mean and its standard error.
struct Estimate {
  double mean = 0;
  double error = 0;
};

/// Which of some plans to take, from steps that are made with them in turns. Sequential halving (Karnin, Koren, Somekh,
/// "Almost optimal exploration in multi-armed bandits", ICML 2013): in ceil(log2(plans)) stages of equally many steps
/// the plans of the stage take turns, and the half with the least exposed time goes on.
///
/// A plan whose step is clearly longer than the shortest is out, whatever it hides: the mean of the differences, round
/// by round, is more than four of its standard errors and than a hundredth of the step, over at least five rounds. So
/// the plan with the shortest step goes on, too. Times are means without the smallest and the largest fifth. Of plans
/// within a hundredth of the least exposed time it is one with the fewest buckets.
///
/// The turns that chose a plan flatter it: it is the one that was lucky. So what it costs is measured anew, after the
/// choice, until the standard error of its exposed time is a twentieth of it or confirm_steps are made.
///
/// buckets: of each plan, at least one. make(plan, steps): makes a turn. collect(): the turns since the last call, in
/// order; it is called between stages, as ranks that told each other after every turn would begin the next one
/// together, which those of a run do not. Where all ranks collect the same numbers they decide alike. With fewer steps
/// than a round of all needs, the first plans alone take part.
[[nodiscard]] ContestResult hold_contest(std::span<const std::size_t> buckets, const ContestOptions& options,
                                         const std::function<void(std::size_t plan, int steps)>& make,
                                         const std::function<std::vector<Turn>()>& collect);

/// Of what is exposed; of no turns 0, of one turn without an error.
[[nodiscard]] Estimate exposed_of(std::span<const Turn> turns);

/// What decides: the trimmed_mean() of a value of at least one turn.
[[nodiscard]] double typical(const std::vector<Turn>& turns, double Turn::*value);

/// The mean without the smallest and the largest fifth (as many as fit); of at least one value.
[[nodiscard]] double trimmed_mean(std::vector<double> values);

}  // namespace lockstep::nn::detail
