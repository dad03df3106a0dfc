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
  /// Relative error that counts as noise: an error of this size has the loss 1. The fit adds a regime (a range of
  /// sizes with its own line) only if this reduces the loss by 3 ln(n) or more, where n is the number of points.
  double noise = 0.05;
};

/// Fits a CostModel to the median times of `points`.
///
/// A regime is a range of at least 2 neighbouring sizes that one line fits: alpha + beta * b seconds for b bytes. The
/// line minimises the squared relative errors. Absolute errors would depend almost only on the largest sizes, because
/// measured times may span seven decades. Huber weights limit the influence of outliers (Huber 1964).
///
/// Dynamic programming chooses the cuts between regimes (Bellman, "On the approximation of curves by line segments
/// using dynamic programming", CACM 1961). Each regime costs a penalty of 3 ln(n) for n points: ln(n) for each of its
/// parameters alpha, beta and cut (Schwarz's criterion for known noise, Schwarz 1978). The loss of a single size is
/// capped, so that one outlier never justifies two more regimes. The largest size alone may form a regime, with a line
/// through the origin, because no larger size shows whether a regime begins there.
///
/// The model is continuous: a straight piece joins the last size of each regime to the first size of the next regime.
/// The predicted time may fall with the size only in a joining piece, where a library begins to use a faster algorithm.
/// Lines of regimes have beta >= 0; the first line also has alpha >= 0. If a line's value at the regime's first size is
/// below half of the regime's smallest measured time, the line is fitted again, with alpha >= 0.
///
/// Throws UsageError unless the points ascend in bytes (>= 0) and have times above 0. The model is constant
/// for one point, and for times that are equal or fall with the size. Without points, the model has no pieces.
[[nodiscard]] CostModel fit_cost(const std::vector<TimedSize>& points, const CostFitOptions& options = {});

[[nodiscard]] CostErrors cost_errors(const CostModel& model, const std::vector<TimedSize>& points);

/// Measures how well a model predicts sizes to which it was not fitted: fits a model to points 0, 2, 4, ... and returns
/// its errors at points 1, 3, 5, ... With fewer than 4 points, the result's `count` is 0.
[[nodiscard]] CostErrors held_out_errors(const std::vector<TimedSize>& points, const CostFitOptions& options = {});

}  // namespace lockstep::comm
