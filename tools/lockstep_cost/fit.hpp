#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/comm/gradients/cost_file.hpp>
#include <lockstep/comm/gradients/cost_model.hpp>

namespace lockstep::tools {

/// One measured size of a path: a typical time, that is the median of the samples.
struct Point {
  double bytes = 0;
  double seconds = 0;
};

struct FitOptions {
  int most_regimes = 6;
  /// Relative error that counts as noise. A deviation of this size costs 1; one regime more has to win 3 ln(n).
  double noise = 0.05;
};

/// Fits the alpha-beta model in pieces to medians.
///
/// A regime is a run of at least 2 neighbouring sizes with a line alpha + beta * b through it: least squares of the
/// relative error (seconds span seven decades: absolute errors would see the largest size only), reweighted by Huber's
/// rule so that one wild size does not bend the line (Huber 1964). Which sizes form regimes is chosen by dynamic
/// programming over all cuts (Bellman, "On the approximation of curves by line segments using dynamic programming",
/// CACM 1961), and how many by a penalty of three parameters each (alpha, beta, cut) times ln(n), Schwarz's criterion
/// for known noise (Schwarz 1978); one size alone never pays for two regimes. Regimes of one Hockney line each are
/// between PLogP, which has parameters for every size (Kielmann, Bal, Verstoep 2000), and LogGP, which has two
/// (Alexandrov et al. 1995). The largest size may be a regime of its own, with a line through the origin: nothing
/// beyond it says whether it is one.
///
/// The model is continuous: between the last size of one regime and the first of the next, where nothing was measured,
/// it goes straight from one to the other, which is a piece too. Libraries do jump there, but nobody knows at which
/// size, and half way is wrong by less than a jump in the wrong place. Only these pieces may fall (a faster algorithm);
/// lines of regimes have beta >= 0, the first one alpha >= 0 too, and a line that would go below half of its smallest
/// time is fitted through the origin instead.
///
/// Points ascend in bytes (>= 0) and have times above 0; UsageError otherwise. One point: a constant. Times that are
/// equal or fall with the size: a constant, their typical value. No points: a model without pieces.
[[nodiscard]] comm::CostModel fit(const std::vector<Point>& points, const FitOptions& options = {});

[[nodiscard]] comm::CostErrors errors(const comm::CostModel& model, const std::vector<Point>& points);

/// What the model is worth where it was not fitted: fitted on every second point (the first, the third, ...), held
/// against the others. Needs 4 points; fewer give count 0.
[[nodiscard]] comm::CostErrors held_out_errors(const std::vector<Point>& points, const FitOptions& options = {});

}  // namespace lockstep::tools
