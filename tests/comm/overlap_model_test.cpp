#include <lockstep/comm/gradients/overlap_model.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::comm {
namespace {

std::vector<GradientRange> ranges(const std::vector<std::int64_t>& sizes) {
  std::vector<GradientRange> result;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    result.push_back({"g" + std::to_string(result.size()), begin, begin + size, 1});
    begin += size;
  }
  return result;
}

std::vector<Bucket> plan_of(const std::vector<GradientRange>& gradients, unsigned cuts) {
  BucketOptions options;
  const int n = static_cast<int>(gradients.size());
  for (int i = 1; i <= n; ++i) {
    if (i == n || ((cuts >> (i - 1)) & 1U) != 0) {
      options.ends.push_back(i);
    }
  }
  return plan_buckets(gradients, options);
}

/// The same once more, in many small steps of time: the end of backward and of the last sum.
std::pair<double, double> by_small_steps(const std::vector<Bucket>& plan, const std::vector<double>& ready,
                                         const OverlapModel& model, double step) {
  double done = 0;  // of backward
  double now = 0;
  double backward_end = 0;
  std::size_t bucket = 0;
  double work = -1;  // of the sum that is under way; negative: none is
  while (bucket < plan.size()) {
    if (work < 0 && done >= ready[static_cast<std::size_t>(plan[bucket].last) - 1]) {
      work = model.all_reduce.predict(4.0 * static_cast<double>(plan[bucket].end - plan[bucket].begin));
    }
    const bool computes = done < ready.back();
    const bool sums = work >= 0;
    done += computes ? step / (sums ? model.drag : 1) : 0;
    now += step;
    backward_end = computes ? now : backward_end;
    if (sums) {
      work -= step / (computes ? model.slowdown : 1);
      bucket += work < 0 ? 1 : 0;
    }
  }
  return {backward_end, now};
}

TEST(OverlapModel, TimesAreThoseOfSmallSteps) {
  Random random(7, RandomUse::test);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int64_t> sizes;
    std::vector<double> ready{0};
    for (int i = 0; i < 7; ++i) {
      sizes.push_back(1 + static_cast<std::int64_t>(random.below(2000)));
      if (i > 0) {
        ready.push_back(ready.back() + 1e-4 * static_cast<double>(random.below(40)));
      }
    }
    const auto gradients = ranges(sizes);
    const OverlapModel model{.all_reduce = {{{0, 3e-4, 4e-7}}},
                             .slowdown = 1 + 0.25 * static_cast<double>(random.below(6)),
                             .drag = 1 + 0.25 * static_cast<double>(random.below(6))};
    const auto plan = plan_of(gradients, static_cast<unsigned>(random.below(64)));
    constexpr double kStep = 1e-6;
    const auto [backward, finish] = by_small_steps(plan, ready, model, kStep);
    const OverlapTimes times = overlap_times(plan, ready, model, 4);
    ASSERT_EQ(times.ready_s.size(), ready.size());
    EXPECT_TRUE(std::is_sorted(times.ready_s.begin(), times.ready_s.end()));
    EXPECT_NEAR(times.ready_s.back(), backward, 40 * kStep) << round;
    EXPECT_NEAR(times.finish_s, finish, 40 * kStep) << round;
    EXPECT_NEAR(times.exposed_s(), std::max(finish - backward, 0.0), 80 * kStep) << round;
    EXPECT_NEAR(overlap_times(plan, ready, {model.all_reduce, model.slowdown, 1}, 4).finish_s,
                finish_time(plan, ready, model.all_reduce, 4, model.slowdown), 1e-12);
  }
}

/// By hand. Backward takes 10 ms alone, sums of 1000 elements take 4 ms, both twice as long beside each other.
TEST(OverlapModel, ASumBesideBackwardDelaysIt) {
  const auto gradients = ranges({1000, 1000});
  const OverlapModel model{.all_reduce = {{{0, 0, 1e-6}}}, .slowdown = 2, .drag = 2};
  const OverlapTimes two = overlap_times(plan_of(gradients, 1), std::vector<double>{2e-3, 10e-3}, model, 4);
  EXPECT_NEAR(two.ready_s[0], 2e-3, 1e-12);
  EXPECT_NEAR(two.ready_s[1], 14e-3, 1e-12);  // 8 ms beside the first sum are 4 of backward
  EXPECT_NEAR(two.finish_s, 18e-3, 1e-12);
  const OverlapTimes one = overlap_times(plan_of(gradients, 0), std::vector<double>{2e-3, 10e-3}, model, 4);
  EXPECT_NEAR(one.ready_s[1], 10e-3, 1e-12);
  EXPECT_NEAR(one.finish_s, 18e-3, 1e-12);
  EXPECT_NEAR(one.exposed_s(), 8e-3, 1e-12);
}

/// Where a sum costs backward more than it takes alone, nothing is worth summing meanwhile; the search that does not
/// know this cuts.
TEST(OverlapModel, TheSearchKnowsWhatSumsCostBackward) {
  Random random(9, RandomUse::test);
  int better = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int64_t> sizes;
    std::vector<double> ready{0};
    for (int i = 0; i < 7; ++i) {
      sizes.push_back(100 + static_cast<std::int64_t>(random.below(2000)));
      if (i > 0) {
        ready.push_back(ready.back() + 1e-4 * static_cast<double>(1 + random.below(40)));
      }
    }
    const auto gradients = ranges(sizes);
    const OverlapModel model{.all_reduce = {{{0, 3e-4, 4e-7}}},
                             .slowdown = 1 + 0.5 * static_cast<double>(random.below(4)),
                             .drag = 1 + 0.5 * static_cast<double>(random.below(6))};
    const auto finish = [&](const std::vector<Bucket>& plan) { return overlap_times(plan, ready, model, 4).finish_s; };
    double least = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 64; ++cuts) {
      least = std::min(least, finish(plan_of(gradients, cuts)));
    }
    const double found = finish(plan_buckets_by_overlap(gradients, ready, model, 4));
    const double blind = finish(plan_buckets_by_cost(gradients, ready, model.all_reduce, 4, model.slowdown));
    EXPECT_GE(found, least * (1 - 1e-12));
    EXPECT_LE(found, finish(plan_of(gradients, 0)) * (1 + 1e-12));
    if (model.drag == 1) {
      EXPECT_LE(found, least + 0.0011 * (least - ready.back())) << round;
    }
    better += found < blind * (1 - 1e-9) ? 1 : 0;
  }
  EXPECT_GT(better, 0);
}

TEST(OverlapModel, RefusesFactorsAndTakesNoGradients) {
  const OverlapModel line{.all_reduce = {{{0, 1e-4, 1e-9}}}};
  EXPECT_TRUE(plan_buckets_by_overlap({}, {}, line, 4).empty());
  EXPECT_EQ(overlap_times({}, {}, line, 4).exposed_s(), 0);
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW((void)overlap_times({}, {}, {line.all_reduce, bad, 1}, 4), UsageError);
    EXPECT_THROW((void)overlap_times({}, {}, {line.all_reduce, 1, bad}, 4), UsageError);
  }
}

}  // namespace
}  // namespace lockstep::comm
