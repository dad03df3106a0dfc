#include "tools/lockstep_scale/step_profile.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

#include "measure/samples.hpp"

namespace lockstep::tools {
namespace {

struct Interval {
  double begin = 0;  ///< begin in microseconds, as in the timeline's file
  double end = 0;
};

/// The events of one step of one rank.
struct Step {
  std::optional<double> begin{};  ///< time at which the step's first work begins
  std::vector<Interval> forward{};
  std::vector<Interval> backward{};
  std::vector<Interval> waits{};                                    ///< waits for sums and for the loader
  std::map<std::int64_t, std::pair<double, std::int64_t>> ready{};  ///< bucket -> (time, bytes)
};

/// Returns how much of the intervals' time lies within [begin, end).
double within(const std::vector<Interval>& intervals, double begin, double end) {
  double sum = 0;
  for (const Interval& each : intervals) {
    sum += std::max(0.0, std::min(each.end, end) - std::max(each.begin, begin));
  }
  return sum;
}

using Steps = std::map<std::pair<std::int64_t, std::int64_t>, Step>;  ///< (rank, step) -> Step

Steps steps_of(const Json& timeline, const std::string& source) {
  require<DataError>(timeline.has("traceEvents"), source,
                     ": has no 'traceEvents', expected a timeline of train_resnet --trace");
  Steps steps;
  for (const Json& event : timeline.get<Json::Array>("traceEvents", source)) {
    const std::string phase = event.get<std::string>("ph", source);
    if (phase != "X" && phase != "i") {
      continue;
    }
    const std::string kind = event.get<std::string>("cat", source);
    require<DataError>(kind != "graph", source,
                       ": captured steps show no times within a step, expected a timeline with --cuda-graph off");
    const Json& about = event.member("args", source);
    Step& step = steps[{event.get<std::int64_t>("pid", source), about.get<std::int64_t>("step", source)}];
    const double begin = event.get<double>("ts", source);
    const double end = begin + (phase == "X" ? event.get<double>("dur", source) : 0);
    require<DataError>(std::isfinite(end) && begin >= 0 && end >= begin, source, ": an event from ", begin, " to ", end,
                       " us, expected an end after the beginning, and no time below 0");
    if (kind == "forward" || kind == "backward" || kind == "input") {
      step.begin = std::min(step.begin.value_or(begin), begin);
    }
    if (kind == "forward") {
      step.forward.push_back({begin, end});
    } else if (kind == "backward") {
      step.backward.push_back({begin, end});
    } else if (kind == "wait" || kind == "batch") {
      step.waits.push_back({begin, end});
    } else if (kind == "ready") {
      const auto bytes = about.get<std::int64_t>("bytes", source);
      require<DataError>(bytes > 0, source, ": a bucket of ", bytes, " bytes, expected more than 0");
      step.ready[about.get<std::int64_t>("bucket", source)] = {begin, bytes};
    }
  }
  return steps;
}

}  // namespace

std::int64_t StepProfile::bytes() const {
  std::int64_t sum = 0;
  for (const ReadyGradients& each : gradients) {
    sum += each.bytes;
  }
  return sum;
}

StepProfile step_profile(const Json& timeline, const std::string& source) {
  const Steps steps = steps_of(timeline, source);
  std::vector<double> periods;
  std::vector<double> backwards;
  std::vector<std::vector<double>> ready;  // ready times by bucket (in the order of backward), then by step
  std::vector<std::int64_t> bytes;
  StepProfile profile;
  std::int64_t last_rank = -1;
  for (auto at = steps.begin(); at != steps.end(); ++at) {
    const Step& step = at->second;
    const std::int64_t rank = at->first.first;
    if (!step.begin || step.ready.empty() || step.backward.empty()) {
      continue;  // no whole step of this rank: its backward calls or its ready buckets are missing
    }
    profile.ranks += rank != last_rank ? 1 : 0;
    last_rank = rank;

    // The last backward of the step follows its last forward call.
    double forward_end = *step.begin;
    for (const Interval& each : step.forward) {
      forward_end = std::max(forward_end, each.end);
    }
    double begin = step.ready.begin()->second.first;
    double end = begin;
    for (const Interval& each : step.backward) {
      if (each.begin >= forward_end) {
        begin = std::min(begin, each.begin);
        end = std::max(end, each.end);
      }
    }
    std::vector<std::pair<double, std::int64_t>> order;
    for (const auto& [bucket, gradients] : step.ready) {
      order.push_back(gradients);
    }
    std::sort(order.begin(), order.end());
    end = std::max(end, order.back().first);
    if (bytes.empty()) {
      for (const auto& [when, size] : order) {
        bytes.push_back(size);
      }
      ready.resize(bytes.size());
    }
    bool same = order.size() == bytes.size();
    for (std::size_t i = 0; same && i < order.size(); ++i) {
      same = order[i].second == bytes[i];
    }
    require<DataError>(same, source, ": step ", at->first.second, " of rank ", rank,
                       " has other buckets than the first step, expected the same in all");
    for (std::size_t i = 0; i < order.size(); ++i) {
      const double when = order[i].first;
      ready[i].push_back((when - begin - within(step.waits, begin, when)) * 1e-6);
    }
    backwards.push_back((end - begin - within(step.waits, begin, end)) * 1e-6);

    const auto next = std::next(at);
    if (next != steps.end() && next->first == std::pair(rank, at->first.second + 1) && next->second.begin) {
      // A wait for a batch belongs to the step that uses the batch, which is the next step.
      const double waited = within(step.waits, *step.begin, *next->second.begin) +
                            within(next->second.waits, *step.begin, *next->second.begin);
      periods.push_back((*next->second.begin - *step.begin - waited) * 1e-6);
    }
  }
  require<DataError>(periods.size() >= 2, source, ": has ", periods.size(),
                     " steps with another step after them, expected 2 or more (--trace-steps A:B)");
  profile.steps = static_cast<std::int64_t>(backwards.size()) / profile.ranks;
  profile.compute_s = measure::median_of(periods);
  profile.backward_s = measure::median_of(backwards);
  std::vector<double> distances;
  for (const double period : periods) {
    distances.push_back(std::abs(period - profile.compute_s));
  }
  profile.jitter_s = 1.4826 * measure::median_of(std::move(distances));
  double latest = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    latest = std::max(latest, measure::median_of(std::move(ready[i])));  // times must not fall from bucket to bucket
    profile.gradients.push_back({.bytes = bytes[i], .ready_s = latest});
  }
  profile.backward_s = std::max(profile.backward_s, latest);
  return profile;
}

}  // namespace lockstep::tools
