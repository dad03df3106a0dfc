#include <lockstep/comm/gradients/bucket_cost.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "gradient_data.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

const CostModel kLine{{{0, 1e-4, 1e-9}}};  // latency 0.1 ms, bandwidth 1 GB/s
// The time for each additional byte first falls, then rises. Collectives that change their algorithm with the size have
// such a cost.
const CostModel kPieces{{{0, 2e-5, 4e-9}, {1e5, 3.6e-4, 6e-10}, {1e6, 0, 1.1e-9}}};

constexpr std::int64_t kBegin = 128;  // arena offset of the first gradient

/// Returns the plan in which a bucket ends after gradient i if bit i of `cuts` is set. `cuts` has 64 bits, so the last
/// bucket holds all gradients from number 64 on.
std::vector<Bucket> plan_of(std::span<const GradientRange> gradients, std::uint64_t cuts) {
  std::vector<Bucket> plan;
  int first = 0;
  const int n = static_cast<int>(gradients.size());
  for (int i = 0; i < n; ++i) {
    if (i == n - 1 || (i < 64 && ((cuts >> i) & 1U) != 0)) {
      plan.push_back(
          {first, i + 1, gradients[static_cast<std::size_t>(first)].begin, gradients[static_cast<std::size_t>(i)].end});
      first = i + 1;
    }
  }
  return plan;
}

/// A second implementation of finish_time() for comparison.
double end_of(const std::vector<Bucket>& plan, const std::vector<double>& ready, const CostModel& model) {
  double now = 0;
  for (const Bucket& bucket : plan) {
    now = std::max(now, ready[static_cast<std::size_t>(bucket.last - 1)]) +
          model.predict(4.0 * static_cast<double>(bucket.end - bucket.begin));
  }
  return now;
}

TEST(BucketCost, NoPlanOfAllIsOverEarlierNorHasFewerBuckets) {
  constexpr int kGradients = 9;
  Random random(1, RandomUse::test);
  int better_than_one = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<std::int64_t> sizes;
    std::vector<double> ready;
    double now = 0;
    for (int i = 0; i < kGradients; ++i) {
      sizes.push_back(1 + random.below(400000));
      now += random.uniform() * 1e-3;
      ready.push_back(now);
    }
    const std::vector<GradientRange> gradients = ranges(sizes, kBegin);
    for (const CostModel& model : {kLine, kPieces}) {
      const std::vector<Bucket> plan = plan_buckets_by_cost(gradients, ready, model, 4);
      const double finish = finish_time(plan, ready, model, 4);
      EXPECT_NEAR(finish, end_of(plan, ready, model), 1e-12);
      double least = std::numeric_limits<double>::infinity();
      for (unsigned cuts = 0; cuts < 1U << (kGradients - 1); ++cuts) {
        least = std::min(least, end_of(plan_of(gradients, cuts), ready, model));
      }
      EXPECT_LE(finish, least + 0.0011 * (least - ready.back()));
      EXPECT_GE(finish, least * (1 - 1e-12));
      std::size_t fewest = kGradients;
      for (unsigned cuts = 0; cuts < 1U << (kGradients - 1); ++cuts) {
        const std::vector<Bucket> other = plan_of(gradients, cuts);
        if (end_of(other, ready, model) <= least) {
          fewest = std::min(fewest, other.size());
        }
      }
      EXPECT_LE(plan.size(), fewest);
      EXPECT_EQ(plan.front().begin, 128);
      EXPECT_EQ(plan.back().last, kGradients);
      // Control: a single bucket, and a bucket for each gradient, must be worse plans.
      const double one = end_of(plan_of(gradients, 0), ready, model);
      const double each = end_of(plan_of(gradients, ~0U), ready, model);
      better_than_one += finish < 0.95 * std::min(one, each) ? 1 : 0;
    }
  }
  EXPECT_GT(better_than_one, 30);
}

TEST(BucketCost, WhatLatencyAndBandwidthAskFor) {
  // 100 gradients: 40 MB of f32.
  const std::vector<GradientRange> gradients = ranges(std::vector<std::int64_t>(100, 100000), kBegin);
  const std::vector<double> at_once(100, 0.0);
  EXPECT_EQ(plan_buckets_by_cost(gradients, at_once, kLine, 4).size(), 1U);

  // The backward pass is so long that the sums of all buckets but the last overlap with it. So the cheapest last bucket
  // has a single gradient.
  const std::vector<Bucket> hidden = plan_buckets_by_cost(gradients, even_ready_times(gradients, 10), kLine, 4);
  EXPECT_EQ(hidden.back().last - hidden.back().first, 1);
  EXPECT_LE(hidden.size(), 3U);

  // S is `bytes`, T is `backward_s`, and kLine has latency alpha and beta seconds per byte. With equal buckets of b
  // bytes the sums would end at b / S * T + alpha * S / b + beta * S. The minimum is at b = S * sqrt(alpha / T).
  // The search may choose unequal buckets, so its plan must not end later than this minimum.
  const double backward_s = 0.04;
  const double bytes = 4e7;
  const std::vector<double> ready = even_ready_times(gradients, backward_s);
  const std::vector<Bucket> plan = plan_buckets_by_cost(gradients, ready, kLine, 4);
  const double b = bytes * std::sqrt(1e-4 / backward_s);
  const std::vector<Bucket> equal = plan_buckets(gradients, {.bucket_bytes = static_cast<std::int64_t>(b)});
  EXPECT_LE(finish_time(plan, ready, kLine, 4), finish_time(equal, ready, kLine, 4));
  EXPECT_LT(finish_time(plan, ready, kLine, 4), 0.75 * finish_time(plan_of(gradients, 0), ready, kLine, 4));
}

TEST(BucketCost, PlanBucketsTakesTheModel) {
  const std::vector<GradientRange> gradients = ranges(std::vector<std::int64_t>(50, 100000), kBegin);
  BucketOptions options;
  options.all_reduce = kLine;
  options.backward_s = 0.03;
  const std::vector<Bucket> plan = plan_buckets(gradients, options);
  const std::vector<double> ready = even_ready_times(gradients, 0.03);
  EXPECT_EQ(finish_time(plan, ready, kLine, 4),
            finish_time(plan_buckets_by_cost(gradients, ready, kLine, 4), ready, kLine, 4));
  EXPECT_LT(finish_time(plan, ready, kLine, 4), finish_time(plan_buckets(gradients, {}), ready, kLine, 4));
  options.backward_s = 0;  // 0: assumes a backward pass as long as one all-reduce of all gradients
  EXPECT_GT(plan_buckets(gradients, options).size(), 1U);
  options.bucket_bytes = 1000;
  EXPECT_THROW((void)plan_buckets(gradients, options), UsageError);
  options.bucket_bytes = 0;
  options.all_reduce = CostModel{{{0, -1, 0}}};
  EXPECT_THROW((void)plan_buckets(gradients, options), DataError) << "not an error of the times made of it";
  options.all_reduce = kLine;
  options.backward_s = std::nan("");
  EXPECT_THROW((void)plan_buckets(gradients, options), UsageError);
}

TEST(BucketCost, EdgesAndErrors) {
  EXPECT_TRUE(plan_buckets_by_cost({}, {}, kLine, 4).empty());
  EXPECT_EQ(finish_time({}, {}, kLine, 4), 0);
  const std::vector<GradientRange> empty = ranges({0, 0}, kBegin);
  EXPECT_EQ(even_ready_times(empty, 1), (std::vector<double>{1, 1}));
  EXPECT_EQ(plan_buckets_by_cost(empty, std::vector<double>{1, 1}, kLine, 4).size(), 1U);
  const CostModel free{{{0, 0, 0}}};
  EXPECT_EQ(plan_buckets_by_cost(ranges({5, 6}, kBegin), std::vector<double>{0, 0}, free, 4).size(), 1U);
  const std::vector<GradientRange> two = ranges({1, 1}, kBegin);
  EXPECT_THROW((void)plan_buckets_by_cost(two, std::vector<double>{1}, kLine, 4), ShapeError);
  EXPECT_THROW((void)plan_buckets_by_cost(two, std::vector<double>{2, 1}, kLine, 4), ShapeError);
  EXPECT_THROW((void)plan_buckets_by_cost(two, std::vector<double>{-1, 1}, kLine, 4), ShapeError);
  EXPECT_THROW((void)plan_buckets_by_cost(two, std::vector<double>{0, std::nan("")}, kLine, 4), ShapeError);
  EXPECT_THROW((void)plan_buckets_by_cost(two, std::vector<double>{0, 1}, CostModel{}, 4), DataError);
}

TEST(CostModel, PredictsByPieces) {
  EXPECT_EQ(kPieces.predict(0), 2e-5);
  EXPECT_NEAR(kPieces.predict(99999), 2e-5 + 4e-9 * 99999, 1e-12);
  EXPECT_NEAR(kPieces.predict(100000), 3.6e-4 + 6e-10 * 1e5, 1e-12);
  EXPECT_NEAR(kPieces.predict(4e6), 1.1e-9 * 4e6, 1e-12);
  EXPECT_EQ(kPieces.latency_s(), 2e-5);
  EXPECT_NEAR(kPieces.bandwidth(), 1 / 1.1e-9, 1);
  EXPECT_NE(kPieces.text(), kLine.text());
  EXPECT_NO_THROW(check(kPieces, "here"));
}

TEST(CostModel, NonsenseIsRefusedByName) {
  const double nan = std::nan("");
  const struct {
    CostModel model;
    const char* says;
  } cases[] = {
      {{}, "no pieces"},
      {{{{8, 1, 1}}}, "first_bytes of piece 0 is 8, expected 0"},
      {{{{0, 1, 1}, {4, 1, 1}, {4, 1, 1}}}, "first_bytes of piece 2 is 4"},
      {{{{0, -1, 1}}}, "alpha_s of piece 0 is -1"},
      {{{{0, nan, 1}}}, "alpha_s of piece 0 is nan"},
      {{{{0, 1, -1}}}, "beta_s of piece 0 is -1"},
      {{{{0, 1, nan}, {4, 1, 1}}}, "beta_s of piece 0 is nan"},
      {{{{0, 1, -1}, {4, 1, 1}}}, "the time at the end of piece 0 is -3"},
      {{{{0, 1, 1}, {4, -5, 1}}}, "the time at the beginning of piece 1 is -1"},
      {{{{0, 1, 1}, {std::numeric_limits<double>::infinity(), 1, 0}}}, "expected a finite number"},
  };
  for (const auto& item : cases) {
    const std::string text = testing::error_of<DataError>([&] { check(item.model, "cost.json"); });
    testing::expect_holds(text, item.says);
    EXPECT_EQ(text.rfind("cost.json: ", 0), 0U) << text << ", expected: " << item.says;
  }
}

}  // namespace
}  // namespace lockstep::comm
