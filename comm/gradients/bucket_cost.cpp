#include <lockstep/comm/gradients/bucket_cost.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void check_times(std::span<const double> ready_s, std::size_t gradients) {
  require<ShapeError>(ready_s.size() == gradients, "plan_buckets_by_cost: ", ready_s.size(),
                      " ready times, expected one for each of ", gradients, " gradients");
  double before = 0;
  for (std::size_t i = 0; i < gradients; ++i) {
    require<ShapeError>(std::isfinite(ready_s[i]) && ready_s[i] >= before, "plan_buckets_by_cost: gradient ", i,
                        " is ready at ", ready_s[i], " s, expected ", before, " s or later: ready times ascend from 0");
    before = ready_s[i];
  }
}

/// Returns begin + seconds. If the backward pass ends in this interval, computes the same sum in another way: as
/// backward_s plus the seconds after backward_s. begin_of() computes end - seconds likewise. Do not simplify these
/// expressions: their rounding decides between plans that end equally early, so another rounding would give existing
/// runs other buckets.
double end_of(double begin, double seconds, double backward_s) {
  return begin < backward_s && begin + seconds > backward_s ? backward_s + seconds - (backward_s - begin)
                                                            : begin + seconds;
}
double begin_of(double end, double seconds, double backward_s) {
  return end > backward_s && end - seconds < backward_s ? backward_s - (seconds - (end - backward_s)) : end - seconds;
}

}  // namespace

std::vector<double> even_ready_times(std::span<const GradientRange> gradients, double backward_s) {
  std::vector<double> ready;
  for (const GradientRange& gradient : gradients) {
    const std::int64_t all = gradients.back().end - gradients.front().begin;
    const auto done = static_cast<double>(gradient.end - gradients.front().begin);
    ready.push_back(all > 0 ? backward_s * done / static_cast<double>(all) : backward_s);
  }
  return ready;
}

double finish_time(std::span<const Bucket> buckets, std::span<const double> ready_s, const CostModel& all_reduce,
                   std::int64_t element_bytes) {
  double now = 0;
  for (const Bucket& bucket : buckets) {
    now = end_of(std::max(now, ready_s[static_cast<std::size_t>(bucket.last) - 1]),
                 all_reduce.predict(static_cast<double>((bucket.end - bucket.begin) * element_bytes)), ready_s.back());
  }
  return now;
}

std::vector<Bucket> plan_buckets_by_cost(std::span<const GradientRange> gradients, std::span<const double> ready_s,
                                         const CostModel& all_reduce, std::int64_t element_bytes) {
  const std::size_t n = gradients.size();
  check_times(ready_s, n);
  check(all_reduce, "plan_buckets_by_cost");
  if (n == 0) {
    return {};
  }
  const double backward_s = ready_s.back();
  const auto seconds = [&](std::size_t first, std::size_t last) {
    return all_reduce.predict(static_cast<double>((gradients[last - 1].end - gradients[first].begin) * element_bytes));
  };

  std::vector<double> earliest(n + 1, kNever);
  earliest[0] = 0;
  for (std::size_t last = 1; last <= n; ++last) {
    for (std::size_t first = 0; first < last; ++first) {
      earliest[last] = std::min(earliest[last],
                                end_of(std::max(ready_s[last - 1], earliest[first]), seconds(first, last), backward_s));
    }
  }

  require<DataError>(std::isfinite(earliest[n]), "plan_buckets_by_cost: the cost model says ", all_reduce.text(),
                     ", which predicts an infinite time; expected finite times for all sizes");

  // latest[c][i] is the latest time at which the all-reduces of gradients i .. n - 1, in c buckets, may begin so that
  // the last one ends by latest[0][n]; -infinity if c buckets are too few. The first of these buckets holds gradients i
  // .. next[c][i] - 1.
  constexpr double kSlack = 1e-3;
  std::vector<std::vector<double>> latest(1, std::vector<double>(n + 1, -kNever));
  std::vector<std::vector<std::size_t>> next(1, std::vector<std::size_t>(n + 1, n));
  latest[0][n] = earliest[n] * (1 + 1e-12) + kSlack * (earliest[n] - ready_s[n - 1]);
  while (latest.back()[0] < 0) {
    const std::vector<double> after = latest.back();
    latest.emplace_back(n + 1, -kNever);
    next.emplace_back(n + 1, n);
    for (std::size_t first = 0; first < n; ++first) {
      for (std::size_t last = first + 1; last <= n; ++last) {
        const double begin = begin_of(after[last], seconds(first, last), backward_s);
        if (begin >= ready_s[last - 1] && begin > latest.back()[first]) {
          latest.back()[first] = begin;
          next.back()[first] = last;
        }
      }
    }
  }
  std::vector<Bucket> buckets;
  std::size_t first = 0;
  for (std::size_t count = latest.size() - 1; count > 0; --count) {
    const std::size_t last = next[count][first];
    buckets.push_back(
        {static_cast<int>(first), static_cast<int>(last), gradients[first].begin, gradients[last - 1].end});
    first = last;
  }
  return buckets;
}

}  // namespace lockstep::comm
