#include <lockstep/comm/gradients/overlap_model.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

OverlapTimes overlap_times(std::span<const Bucket> buckets, std::span<const double> ready_s, const OverlapModel& model,
                           std::int64_t element_bytes) {
  for (const double factor : {model.slowdown, model.drag}) {
    require<UsageError>(std::isfinite(factor) && factor > 0, "overlap_times: slowdown is ", model.slowdown,
                        " and drag ", model.drag, ", expected more than 0");
  }
  OverlapTimes times;
  const double last = ready_s.empty() ? 0 : ready_s.back();
  double now = 0;
  double done = 0;  // of backward: what would be the time if nothing were summed
  // Backward goes on to `until`, each second of it taking `pace` seconds.
  const auto compute = [&](double until, double pace) {
    until = std::min(until, last);
    while (times.ready_s.size() < ready_s.size() && ready_s[times.ready_s.size()] <= until) {
      times.ready_s.push_back(now + (ready_s[times.ready_s.size()] - done) * pace);
    }
    now += std::max(until - done, 0.0) * pace;
    done = std::max(done, until);
  };
  for (const Bucket& bucket : buckets) {
    compute(ready_s[static_cast<std::size_t>(bucket.last) - 1], 1);
    const double work = model.all_reduce.predict(static_cast<double>((bucket.end - bucket.begin) * element_bytes));
    const double left = (last - done) * model.drag;  // what backward takes with a sum beside it to its end
    if (model.slowdown * work <= left) {
      compute(done + model.slowdown * work / model.drag, model.drag);
    } else {
      compute(last, model.drag);
      now += work - left / model.slowdown;
    }
  }
  compute(std::numeric_limits<double>::infinity(), 1);
  times.finish_s = now;
  return times;
}

std::vector<Bucket> plan_buckets_by_overlap(std::span<const GradientRange> gradients, std::span<const double> ready_s,
                                            const OverlapModel& model, std::int64_t element_bytes) {
  constexpr int kMostRounds = 8;
  std::vector<Bucket> best;
  if (gradients.empty()) {
    return best;
  }
  best.push_back({0, static_cast<int>(gradients.size()), gradients.front().begin, gradients.back().end});
  OverlapTimes times = overlap_times(best, ready_s, model, element_bytes);
  for (int round = 0; round < kMostRounds; ++round) {
    std::vector<Bucket> plan =
        plan_buckets_by_cost(gradients, times.ready_s, model.all_reduce, element_bytes, model.slowdown);
    OverlapTimes of_plan = overlap_times(plan, ready_s, model, element_bytes);
    if (of_plan.finish_s >= times.finish_s) {
      break;
    }
    best = std::move(plan);
    times = std::move(of_plan);
  }
  return best;
}

}  // namespace lockstep::comm
