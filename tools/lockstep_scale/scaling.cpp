#include "tools/lockstep_scale/scaling.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include <lockstep/comm/gradients/bucket_cost.hpp>
#include <lockstep/comm/gradients/bucket_plan.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

#include "tools/svg/plot.hpp"

namespace lockstep::tools {
namespace {

/// Returns, by bisection, the quantile of the standard normal distribution: the fraction `share` of all values lies
/// below it.
double normal_quantile(double share) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    const double below = 0.5 * std::erfc(-middle / std::numbers::sqrt2);
    (below < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double expected_largest(int n) {
  return n <= 1 ? 0 : normal_quantile((n - 0.375) / (n + 0.25));
}

ScalingPoint predict(const StepProfile& profile, int ranks, const comm::CostModel& sum, const ScalingOptions& options) {
  ScalingPoint point{.ranks = ranks};
  const double sharing = options.processors > 0 ? std::max(1.0, 1.0 * ranks / options.processors) : 1;
  point.compute_s = profile.compute_s * sharing;
  if (ranks == 1) {
    return point;
  }
  point.waiting_s = expected_largest(ranks) * profile.jitter_s * sharing;
  // Each element has one byte, so that the planner's sizes equal the profile's bytes.
  std::vector<comm::GradientRange> gradients;
  std::vector<double> ready;
  std::int64_t begin = 0;
  for (const ReadyGradients& each : profile.gradients) {
    gradients.push_back({.name = {}, .begin = begin, .end = begin + each.bytes});
    ready.push_back(each.ready_s * sharing);
    begin += each.bytes;
  }
  const std::vector<comm::Bucket> buckets =
      options.bucket_bytes > 0
          ? comm::plan_buckets(gradients, {.element_bytes = 1, .bucket_bytes = options.bucket_bytes})
          : comm::plan_buckets_by_cost(gradients, ready, sum, 1);
  point.buckets = static_cast<int>(buckets.size());
  for (const comm::Bucket& bucket : buckets) {
    point.largest_bytes = std::max(point.largest_bytes, bucket.end - bucket.begin);
    point.communication_s += sum.predict(static_cast<double>(bucket.end - bucket.begin));
  }
  point.exposed_s = options.overlap
                        ? std::max(0.0, comm::finish_time(buckets, ready, sum, 1) - profile.backward_s * sharing)
                        : point.communication_s;
  return point;
}

std::string scaling_table(const StepProfile& profile, const std::vector<ScalingPoint>& points) {
  std::string text = concat(
      "a step alone ", seconds_text(profile.compute_s), " (backward ", seconds_text(profile.backward_s), ", varies by ",
      seconds_text(profile.jitter_s), "), ", bytes_text(static_cast<double>(profile.bytes())), " of gradients; from ",
      profile.steps, profile.ranks == 1 ? " steps of 1 rank\n\n" : concat(" steps of ", profile.ranks, " ranks\n\n"));
  char line[200];
  std::snprintf(line, sizeof line, "%7s %8s %12s %10s %10s %10s %11s  %s\n", "ranks", "buckets", "sums", "exposed",
                "waiting", "step", "efficiency", "largest bucket by");
  text += line;
  for (const ScalingPoint& point : points) {
    std::snprintf(line, sizeof line, "%7d %8d %12s %10s %10s %10s %11s  %s\n", point.ranks, point.buckets,
                  seconds_text(point.communication_s).c_str(), seconds_text(point.exposed_s).c_str(),
                  seconds_text(point.waiting_s).c_str(), seconds_text(point.step_s()).c_str(),
                  percent_text(point.efficiency(profile.compute_s)).c_str(), point.algorithm.c_str());
    text += line;
  }
  return text;
}

Json::Object scaling_json(const StepProfile& profile, const std::vector<ScalingPoint>& points) {
  Json::Array array;
  for (const ScalingPoint& point : points) {
    Json::Object object;
    object["ranks"] = point.ranks;
    object["algorithm"] = point.algorithm;
    object["buckets"] = point.buckets;
    object["compute_s"] = point.compute_s;
    object["communication_s"] = point.communication_s;
    object["exposed_s"] = point.exposed_s;
    object["waiting_s"] = point.waiting_s;
    object["step_s"] = point.step_s();
    object["efficiency"] = point.efficiency(profile.compute_s);
    array.emplace_back(std::move(object));
  }
  Json::Object result;
  result["compute_s"] = profile.compute_s;
  result["backward_s"] = profile.backward_s;
  result["jitter_s"] = profile.jitter_s;
  result["gradient_bytes"] = profile.bytes();
  result["points"] = std::move(array);
  return result;
}

std::string scaling_plot(const std::string& title, const StepProfile& profile,
                         const std::vector<ScalingPoint>& points) {
  const Axis ranks{.scale = Axis::Scale::log2, .name = "ranks", .text = [](double value) { return digits(value, 0); }};
  Panel parts{.title = "time of a step", .x = ranks, .y = {.scale = Axis::Scale::log10, .text = seconds_text}};
  Panel efficiency{.title = "efficiency", .x = ranks, .y = {.scale = Axis::Scale::counted, .text = [](double percent) {
                                                              return percent_text(percent / 100);
                                                            }}};
  Curve step{.label = "step"};
  Curve sums{.label = "all sums"};
  Curve exposed{.label = "exposed"};
  Curve share{.label = "efficiency"};
  for (const ScalingPoint& point : points) {
    step.dots.emplace_back(point.ranks, point.step_s());
    share.dots.emplace_back(point.ranks, 100 * point.efficiency(profile.compute_s));
    if (point.communication_s > 0) {
      sums.dots.emplace_back(point.ranks, point.communication_s);
    }
    if (point.exposed_s > 0) {
      exposed.dots.emplace_back(point.ranks, point.exposed_s);
    }
  }
  parts.curves = {std::move(step), std::move(sums), std::move(exposed)};
  efficiency.curves = {std::move(share)};
  return line_plots(title,
                    concat("a step alone ", seconds_text(profile.compute_s), ", ",
                           bytes_text(static_cast<double>(profile.bytes())), " of gradients a rank"),
                    {parts, efficiency});
}

}  // namespace lockstep::tools
