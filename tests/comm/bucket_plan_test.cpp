#include <lockstep/comm/gradients/bucket_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "gradient_data.hpp"

namespace lockstep::comm {
namespace {

/// Returns the number of gradients in each bucket.
std::vector<int> counts(const std::vector<Bucket>& buckets) {
  std::vector<int> result;
  for (const Bucket& b : buckets) {
    result.push_back(b.last - b.first);
  }
  return result;
}

/// Returns the parameter sizes of ResNet-50 (He et al. 2015, but with the stride in the 3x3 convolution; 1000 classes)
/// in forward order. The weights of the stem have four input channels, because the input's three are padded to four.
std::vector<std::int64_t> resnet50_sizes() {
  std::vector<std::int64_t> sizes{64 * 7 * 7 * 4, 64, 64};
  std::int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t mid = std::int64_t{64} << stage;
    const std::int64_t out = 4 * mid;
    for (int b = 0; b < blocks[stage]; ++b) {
      const std::vector<std::int64_t> convolutions{in * mid, mid * mid * 9, mid * out};
      const std::vector<std::int64_t> channels{mid, mid, out};
      for (std::size_t i = 0; i < 3; ++i) {
        sizes.insert(sizes.end(), {convolutions[i], channels[i], channels[i]});
      }
      if (b == 0) {
        sizes.insert(sizes.end(), {in * out, out, out});
      }
      in = out;
    }
  }
  sizes.insert(sizes.end(), {2048 * 1000, 1000});
  return sizes;
}

TEST(BucketPlan, NoGradientsNoBuckets) {
  EXPECT_TRUE(plan_buckets({}, {}).empty());
}

TEST(BucketPlan, OneGradientIsOneBucketWhateverItsSize) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 33}) {
    for (const std::int64_t cap : {std::int64_t{0}, std::int64_t{1}}) {
      BucketOptions options;
      options.bucket_bytes = cap;
      const auto plan = plan_buckets(ranges({size}, 64), options);
      ASSERT_EQ(plan.size(), 1u);
      EXPECT_EQ(plan[0].begin, 64);
      EXPECT_EQ(plan[0].end, 64 + size);
    }
  }
}

TEST(BucketPlan, CapClosesBeforeTheTensorThatWouldPassIt) {
  BucketOptions options;
  options.bucket_bytes = 40;  // room for ten f32 elements
  EXPECT_EQ(counts(plan_buckets(ranges({4, 6, 1, 9, 1, 30, 2, 8}), options)), (std::vector<int>{2, 2, 1, 1, 2}));
  options.element_bytes = 2;  // room for twenty 16-bit elements
  EXPECT_EQ(counts(plan_buckets(ranges({4, 6, 1, 9, 1, 30, 2, 8}), options)), (std::vector<int>{4, 1, 1, 2}));
}

TEST(BucketPlan, DefaultFillsTheTailFromTheEnd) {
  BucketOptions options;
  options.element_bytes = 1;
  options.tail_bytes = 10;
  options.head_bytes = 100;
  EXPECT_EQ(counts(plan_buckets(ranges({60, 40, 7, 3, 4, 3}), options)), (std::vector<int>{2, 1, 3}));
  // The last tensor is larger than tail_bytes, so it is a bucket by itself.
  EXPECT_EQ(counts(plan_buckets(ranges({60, 40, 7, 3, 4, 11}), options)), (std::vector<int>{2, 3, 1}));
  // All tensors fit into the tail bucket.
  EXPECT_EQ(counts(plan_buckets(ranges({1, 2, 3, 4}), options)), (std::vector<int>{4}));
  // One tensor is larger than head_bytes, so it is a bucket by itself.
  EXPECT_EQ(counts(plan_buckets(ranges({5, 500, 5, 10}), options)), (std::vector<int>{1, 1, 1, 1}));
  options.tail_bytes = 0;
  EXPECT_EQ(counts(plan_buckets(ranges({1, 2, 3, 4}), options)), (std::vector<int>{3, 1}));
}

TEST(BucketPlan, RandomSizesAreCoveredOnceInOrderWithinTheCaps) {
  Random random(7, RandomUse::test);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> sizes(1 + random.below(200));
    for (std::int64_t& size : sizes) {
      size = random.below(round % 3 == 0 ? 5000u : 200u);
    }
    const auto gradients = ranges(sizes, random.below(1000));
    BucketOptions options;
    options.element_bytes = std::int64_t{1} << random.below(4);
    options.bucket_bytes = round % 2 == 0 ? 0 : 1 + random.below(20000);
    options.tail_bytes = random.below(10000);
    options.head_bytes = 1 + random.below(60000);
    const auto plan = plan_buckets(gradients, options);
    int next = 0;
    for (std::size_t k = 0; k < plan.size(); ++k) {
      const Bucket& b = plan[k];
      ASSERT_EQ(b.first, next);
      ASSERT_LT(b.first, b.last);
      ASSERT_EQ(b.begin, gradients[static_cast<std::size_t>(b.first)].begin);
      ASSERT_EQ(b.end, gradients[static_cast<std::size_t>(b.last) - 1].end);
      const bool last = k + 1 == plan.size();
      const std::int64_t cap =
          options.bucket_bytes > 0 ? options.bucket_bytes : (last ? options.tail_bytes : options.head_bytes);
      if (b.last - b.first > 1) {
        ASSERT_LE((b.end - b.begin) * options.element_bytes, cap);
      }
      next = b.last;
    }
    ASSERT_EQ(next, static_cast<int>(sizes.size()));
    const auto again = plan_buckets(gradients, options);
    ASSERT_EQ(counts(again), counts(plan));
  }
}

TEST(BucketPlan, ResNet50HasAFewLargeBucketsAndASmallTail) {
  std::vector<std::int64_t> sizes = resnet50_sizes();
  ASSERT_EQ(sizes.size(), 161u);
  ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), 25557032 + 64 * 7 * 7);
  std::reverse(sizes.begin(), sizes.end());  // backward order
  for (std::int64_t& size : sizes) {
    size = (size + 63) / 64 * 64;  // rounded up to 256 bytes, as in the arena
  }
  const auto plan = plan_buckets(ranges(sizes), {});
  EXPECT_GE(plan.size(), 4u);
  EXPECT_LE(plan.size(), 5u);
  const std::int64_t tail = 4 * (plan.back().end - plan.back().begin);
  EXPECT_LE(tail, 1 << 20);
  EXPECT_GE(tail, 1 << 19);
  for (const Bucket& b : plan) {
    EXPECT_LE(4 * (b.end - b.begin), 32 << 20);
  }
}

TEST(BucketPlan, RefusesRangesThatAreNotContiguousAndAscending) {
  auto gap = ranges({3, 4, 5});
  gap[1].begin += 1;
  EXPECT_THROW((void)plan_buckets(gap, {}), ShapeError);
  auto overlap = ranges({3, 4, 5});
  overlap[2].begin -= 1;
  EXPECT_THROW((void)plan_buckets(overlap, {}), ShapeError);
  auto backwards = ranges({3});
  backwards[0] = {"g", 5, 2, 1};
  EXPECT_THROW((void)plan_buckets(backwards, {}), ShapeError);
  EXPECT_THROW((void)plan_buckets(ranges({3}, -1), {}), ShapeError);
}

TEST(BucketPlan, RefusesImpossibleOptions) {
  const auto gradients = ranges({3});
  const BucketOptions bad[] = {{0, 0, 1, 1}, {4, -1, 1, 1}, {4, 0, -1, 1}, {4, 0, 1, 0}};
  for (const BucketOptions& options : bad) {
    EXPECT_THROW((void)plan_buckets(gradients, options), UsageError);
  }
}

TEST(BucketPlan, APlanThatIsKnownIsTaken) {
  const std::vector<GradientRange> gradients = ranges({60, 40, 7, 3, 4, 3});
  BucketOptions options;
  options.ends = {1, 4, 6};
  options.bucket_bytes = 8;  // ignored, because `ends` is given
  const std::vector<Bucket> plan = plan_buckets(gradients, options);
  EXPECT_EQ(counts(plan), (std::vector<int>{1, 3, 2}));
  EXPECT_EQ(plan[1].begin, gradients[1].begin);
  EXPECT_EQ(plan[1].end, gradients[3].end);
  for (const auto& wrong : std::vector<std::vector<int>>{{1, 4}, {1, 4, 7}, {4, 1, 6}, {0, 6}, {1, 1, 6}, {-1, 6}}) {
    options.ends = wrong;
    EXPECT_THROW((void)plan_buckets(gradients, options), UsageError);
  }
}

}  // namespace
}  // namespace lockstep::comm
