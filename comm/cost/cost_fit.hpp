#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::comm {

/// One measured size of an operation, with the median time.
struct TimedSize {
  double bytes = 0;
  double seconds = 0;
};

struct CostFitOptions {
  int most_regimes = 6;
  /// Relative error that counts as noise. A deviation of this size has the loss 1; one more regime must save 3 ln(n).
  double noise = 0.05;
};

/// Fits the alpha-beta model in pieces to medians of times.
///
/// A regime is a run of at least 2 neighbouring sizes with one line alpha + beta * b. The line minimises the squared
/// relative error, because seconds span seven decades and absolute errors would show only the largest size. Huber's
/// rule reweights the errors, so that one outlier does not bend the line (Huber 1964). Dynamic programming over all
/// cuts chooses which sizes form regimes (Bellman, "On the approximation of curves by line segments using dynamic
/// programming", CACM 1961). A penalty chooses their number: three parameters for each regime (alpha, beta, cut) times
/// ln(n), Schwarz's criterion for known noise (Schwarz 1978). A single size never pays for two regimes. Such a model
/// lies between PLogP, which has parameters for every size (Kielmann, Bal, Verstoep 2000), and LogGP, which has two
/// (Alexandrov et al. 1995). The largest size alone may be a regime, with a line through the origin, because no larger
/// size shows whether it is one.
///
/// The model is continuous. Nothing was measured between the last size of one regime and the first of the next; there,
/// a straight piece joins the regimes. Libraries jump there, but at an unknown size, and a line through the middle is
/// less wrong than a jump at the wrong place. Only these pieces may fall (a faster algorithm). Lines of regimes have
/// beta >= 0, the first one also alpha >= 0. A line that would fall below half of its smallest time is fitted through
/// the origin instead.
///
/// Points must ascend in bytes (>= 0) and have times above 0; otherwise UsageError. One point gives a constant. Times
/// that are equal, or fall with the size, give a constant: their typical value. No points give a model without pieces.
[[nodiscard]] CostModel fit_cost(const std::vector<TimedSize>& points, const CostFitOptions& options = {});

[[nodiscard]] CostErrors cost_errors(const CostModel& model, const std::vector<TimedSize>& points);

/// Measures how well the model predicts sizes to which it was not fitted. Fits every second point (the first, the
/// third, ...) and compares with the others. Needs 4 points; with fewer, the count is 0.
[[nodiscard]] CostErrors held_out_errors(const std::vector<TimedSize>& points, const CostFitOptions& options = {});

}  // namespace lockstep::comm
