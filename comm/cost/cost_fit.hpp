#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::comm {

/// One measured size of an operation, with the median of its times.
struct TimedSize {
  double bytes = 0;
  double seconds = 0;
};

struct CostFitOptions {
  int most_regimes = 6;
  /// Relative error that counts as noise. A deviation of this size costs 1; an additional regime must save 3 ln(n).
  double noise = 0.05;
};

/// Fits the alpha-beta model in pieces to medians.
///
/// A regime is a run of at least 2 neighbouring sizes with one line alpha + beta * b. The line minimises the squared
/// relative error (seconds span seven decades: absolute errors would see only the largest size), reweighted by Huber's
/// rule so that one outlier does not bend the line (Huber 1964). Dynamic programming over all cuts chooses which sizes
/// form regimes (Bellman, "On the approximation of curves by line segments using dynamic programming", CACM 1961). A
/// penalty chooses their number: three parameters each (alpha, beta, cut) times ln(n), Schwarz's criterion for known
/// noise (Schwarz 1978); a single size never pays for two regimes. Such a model lies between PLogP, which has
/// parameters for every size (Kielmann, Bal, Verstoep 2000), and LogGP, which has two (Alexandrov et al. 1995). The
/// largest size may be a regime of its own, with a line through the origin, because no larger size shows whether it is
/// one.
///
/// The model is continuous. Between the last size of one regime and the first of the next, where nothing was measured,
/// a straight piece joins the regimes. Libraries jump there, but at an unknown size, and a line through the middle is
/// less wrong than a jump at the wrong place. Only these pieces may fall (a faster algorithm); lines of regimes have
/// beta >= 0, the first one also alpha >= 0. A line that would fall below half of its smallest time is fitted through
/// the origin instead.
///
/// Points ascend in bytes (>= 0) and have times above 0; UsageError otherwise. One point gives a constant. Times that
/// are equal or fall with the size give a constant, their typical value. No points give a model without pieces.
[[nodiscard]] CostModel fit_cost(const std::vector<TimedSize>& points, const CostFitOptions& options = {});

[[nodiscard]] CostErrors cost_errors(const CostModel& model, const std::vector<TimedSize>& points);

/// Measures how well the model predicts sizes that it was not fitted to: fits every second point (the first, the third,
/// ...) and compares with the others. Needs 4 points; fewer give count 0.
[[nodiscard]] CostErrors held_out_errors(const std::vector<TimedSize>& points, const CostFitOptions& options = {});

}  // namespace lockstep::comm
