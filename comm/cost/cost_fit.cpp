#include <lockstep/comm/cost/cost_fit.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace {

constexpr std::size_t kLeastPoints = 2;  // least number of points in a regime (a range of sizes that one line fits)
constexpr double kHuberBend = 1.5;       // multiple of the noise at which Huber's loss becomes linear

struct Line {
  double alpha = 0;
  double beta = 0;
  [[nodiscard]] double at(double bytes) const { return alpha + beta * bytes; }
};

/// Returns the line that minimises the sum of weights[i] * ((alpha + beta * bytes - seconds) / seconds)^2 over the
/// points, with beta >= 0, and with alpha >= 0 if `origin` is true.
Line weighted_line(std::span<const TimedSize> points, const std::vector<double>& weights, bool origin) {
  double w = 0;
  double wb = 0;
  double wbb = 0;
  double wt = 0;
  double wbt = 0;
  // Sizes are counted in this unit, so that the sums have similar magnitudes.
  const double unit = points.back().bytes > 0 ? points.back().bytes : 1;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double b = points[i].bytes / unit;
    const double t = points[i].seconds;
    const double weight = weights[i] / (t * t);
    w += weight;
    wb += weight * b;
    wbb += weight * b * b;
    wt += weight * t;
    wbt += weight * b * t;
  }
  const double determinant = w * wbb - wb * wb;
  Line line{wt / w, 0};
  if (determinant > 1e-12 * w * wbb) {
    const double beta = (w * wbt - wb * wt) / determinant;
    if (beta > 0) {
      line = {(wt - beta * wb) / w, beta / unit};
      if (origin && line.alpha < 0) {
        line = {0, wbt / wbb / unit};
      }
    }
  }
  return line;
}

/// Returns Huber's loss of `r`, a residual divided by the noise: r^2 up to kHuberBend, linear above. This is twice the
/// usual form of the loss.
double huber(double r) {
  r = std::abs(r);
  return r <= kHuberBend ? r * r : kHuberBend * (2 * r - kHuberBend);
}

/// A fitted line and its loss.
struct Candidate {
  Line line;
  double loss = 0;
};

Candidate fit_regime(std::span<const TimedSize> points, bool first, double noise, double most_loss) {
  constexpr int kRounds = 20;
  std::vector<double> weights(points.size());
  const auto settle = [&](bool origin) {
    Candidate result;
    std::fill(weights.begin(), weights.end(), 1.0);
    for (int round = 0; round < kRounds; ++round) {
      result.line = weighted_line(points, weights, origin);
      for (std::size_t i = 0; i < points.size(); ++i) {
        const double r = std::abs(result.line.at(points[i].bytes) / points[i].seconds - 1) / noise;
        weights[i] = r <= kHuberBend ? 1.0 : kHuberBend / r;
      }
    }
    for (const TimedSize& point : points) {
      result.loss += std::min(huber((result.line.at(point.bytes) / point.seconds - 1) / noise), most_loss);
    }
    return result;
  };
  if (!first && points.size() == 1) {
    return {{0, points[0].seconds / points[0].bytes}, 0};
  }
  Candidate result = settle(first);
  double least = points.front().seconds;
  for (const TimedSize& point : points) {
    least = std::min(least, point.seconds);
  }
  if (result.line.at(points.front().bytes) < least / 2) {
    result = settle(true);
  }
  return result;
}

CostErrors summary(std::vector<double> relative) {
  CostErrors result;
  result.count = static_cast<std::int64_t>(relative.size());
  if (relative.empty()) {
    return result;
  }
  std::sort(relative.begin(), relative.end());
  const std::size_t n = relative.size();
  result.median = n % 2 == 1 ? relative[n / 2] : (relative[n / 2 - 1] + relative[n / 2]) / 2;
  result.p90 = relative[(9 * n + 9) / 10 - 1];
  result.worst = relative.back();
  return result;
}

}  // namespace

CostModel fit_cost(const std::vector<TimedSize>& points, const CostFitOptions& options) {
  require<UsageError>(options.most_regimes > 0 && options.noise > 0, "fit_cost: most_regimes is ", options.most_regimes,
                      " and noise ", options.noise, ", expected more than 0");
  for (std::size_t i = 0; i < points.size(); ++i) {
    require<UsageError>(
        std::isfinite(points[i].bytes) && points[i].bytes >= 0 && (i == 0 || points[i].bytes > points[i - 1].bytes),
        "fit_cost: the size of point ", i, " is ", points[i].bytes, ", expected ascending sizes");
    require<UsageError>(std::isfinite(points[i].seconds) && points[i].seconds > 0, "fit_cost: the time of ",
                        points[i].bytes, " bytes is ", points[i].seconds, ", expected more than 0 seconds");
  }
  CostModel model;
  if (points.empty()) {
    return model;
  }
  const std::size_t n = points.size();
  const double penalty = 3 * std::log(static_cast<double>(std::max<std::size_t>(n, 2)));
  const auto most = static_cast<std::size_t>(options.most_regimes);

  // best[k][j] is the least loss of points 0 .. j - 1 in k + 1 regimes (ranges of sizes, each with its own line). The
  // last of these regimes begins at point from[k][j].
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(most, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<std::size_t>> from(most, std::vector<std::size_t>(n + 1, 0));
  std::vector<std::vector<Line>> lines(n, std::vector<Line>(n + 1));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = std::min(i + kLeastPoints, n); j <= n; ++j) {  // only the last point may form a regime alone
      const Candidate regime = fit_regime(std::span(points).subspan(i, j - i), i == 0, options.noise, 1.9 * penalty);
      lines[i][j] = regime.line;
      for (std::size_t k = 0; k < most; ++k) {
        const bool reachable = (i == 0) == (k == 0);  // the first regime, and no other, begins at the first point
        const double loss = (!reachable ? kNever : k == 0 ? 0 : best[k - 1][i]) + regime.loss + penalty;
        if (loss < best[k][j]) {
          best[k][j] = loss;
          from[k][j] = i;
        }
      }
    }
  }
  std::size_t k = 0;
  for (std::size_t other = 1; other < most; ++other) {
    if (best[other][n] < best[k][n]) {
      k = other;
    }
  }
  std::vector<std::size_t> begins(k + 2, n);
  for (std::size_t regime = k + 1; regime-- > 0;) {
    begins[regime] = from[regime][begins[regime + 1]];
  }
  for (std::size_t regime = 0; regime <= k; ++regime) {
    const std::size_t begin = begins[regime];
    const Line line = lines[begin][begins[regime + 1]];
    if (regime > 0) {
      const Line before = lines[begins[regime - 1]][begin];
      const TimedSize& left = points[begin - 1];
      const TimedSize& right = points[begin];
      const double beta = (line.at(right.bytes) - before.at(left.bytes)) / (right.bytes - left.bytes);
      model.pieces.push_back({left.bytes, before.at(left.bytes) - beta * left.bytes, beta});
    }
    model.pieces.push_back({begin == 0 ? 0 : points[begin].bytes, line.alpha, line.beta});
  }
  return model;
}

CostErrors cost_errors(const CostModel& model, const std::vector<TimedSize>& points) {
  std::vector<double> relative;
  relative.reserve(points.size());
  for (const TimedSize& point : points) {
    relative.push_back(std::abs(model.predict(point.bytes) / point.seconds - 1));
  }
  return summary(std::move(relative));
}

CostErrors held_out_errors(const std::vector<TimedSize>& points, const CostFitOptions& options) {
  if (points.size() < 4) {
    return {};
  }
  std::vector<TimedSize> seen;
  std::vector<TimedSize> held_out;
  for (std::size_t i = 0; i < points.size(); ++i) {
    (i % 2 == 0 ? seen : held_out).push_back(points[i]);
  }
  return cost_errors(fit_cost(seen, options), held_out);
}

}  // namespace lockstep::comm
