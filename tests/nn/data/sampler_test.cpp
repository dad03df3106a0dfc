#include <lockstep/nn/data/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;
using testing::expect_holds;

std::vector<std::int64_t> all(const Permutation& permutation, std::int64_t size) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < size; ++i) {
    out.push_back(permutation(i));
  }
  return out;
}

TEST(Permutation, TakesEveryValueOnce) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 65, 1000, 1023, 1025, 4099}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      std::vector<std::int64_t> values = all(Permutation(seed, 5, size), size);
      std::sort(values.begin(), values.end());
      for (std::int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(values[static_cast<std::size_t>(i)], i) << "size " << size << ", seed " << seed;
      }
    }
  }
}

TEST(Permutation, WorksNearTheLargestSize) {
  const std::int64_t size = (std::int64_t{1} << 62) + 12345;
  const Permutation permutation(1, 0, size);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t value = permutation(size - 1 - i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, size);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 1000U);
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  const auto reference = all(Permutation(7, 3, 500), 500);
  EXPECT_EQ(all(Permutation(7, 3, 500), 500), reference);
  EXPECT_NE(all(Permutation(8, 3, 500), 500), reference);
  EXPECT_NE(all(Permutation(7, 4, 500), 500), reference);
}

// Where a sample lands is uniform and independent of where its neighbour lands: chi-squared over 1000 epochs, with
// bounds at about 5 standard deviations (mean = degrees of freedom, variance = twice that).
TEST(Permutation, IsUniform) {
  constexpr std::int64_t kSize = 16;
  constexpr int kEpochs = 4000;
  std::vector<int> place(kSize * kSize);
  std::vector<int> difference(kSize);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation permutation(99, epoch, kSize);
    for (std::int64_t i = 0; i < kSize; ++i) {
      ++place[static_cast<std::size_t>(i * kSize + permutation(i))];
    }
    ++difference[static_cast<std::size_t>((permutation(6) - permutation(5) + kSize) % kSize)];
  }
  double chi = 0;
  for (const int n : place) {
    chi += std::pow(n - kEpochs / 16.0, 2) / (kEpochs / 16.0);
  }
  EXPECT_NEAR(chi, 15.0 * 15.0, 5 * std::sqrt(2 * 225.0));
  EXPECT_EQ(difference[0], 0);
  chi = 0;
  for (std::size_t d = 1; d < difference.size(); ++d) {
    chi += std::pow(difference[d] - kEpochs / 15.0, 2) / (kEpochs / 15.0);
  }
  EXPECT_LT(chi, 14 + 5 * std::sqrt(28.0));
}

// An epoch that was begun with batches of another size: what is left of it comes once, over all ranks.
TEST(Sampler, BatchesBehindSkippedSamplesHoldTheRest) {
  for (const bool keep_last : {false, true}) {
    for (const std::int64_t skipped : {0, 1, 33, 66, 67}) {
      std::vector<std::int64_t> rest;
      for (int rank = 0; rank < 3; ++rank) {
        const Sampler sampler({67, 10, 3, rank, true, keep_last, 42});
        const std::int64_t left = 67 - skipped;
        ASSERT_EQ(sampler.batches(skipped), keep_last ? (left + 9) / 10 : left / 10);
        for (std::int64_t b = 0; b < sampler.batches(skipped); ++b) {
          EXPECT_EQ(sampler.samples(b, skipped), std::min<std::int64_t>(10, left - 10 * b));
          const Partition share = sampler.share(b, skipped);
          for (std::int64_t i = 0; i < share.count; ++i) {
            rest.push_back(share.begin + i);
          }
        }
      }
      std::sort(rest.begin(), rest.end());
      std::vector<std::int64_t> expected(static_cast<std::size_t>(keep_last ? 67 - skipped : (67 - skipped) / 10 * 10));
      std::iota(expected.begin(), expected.end(), skipped);
      EXPECT_EQ(rest, expected) << skipped;
    }
  }
  const Sampler sampler({67, 10, 1, 0, true, false, 42});
  EXPECT_THROW((void)sampler.batches(-1), UsageError);
  EXPECT_THROW((void)sampler.batches(68), UsageError);
  EXPECT_THROW((void)sampler.share(4, 30), UsageError);
}

struct Setting {
  std::int64_t size;
  std::int64_t batch;
  bool shuffle;
  bool keep_last;
};

// Over all ranks each sample comes exactly once (without the last partial batch when it is dropped), and global
// batches hold the same samples in the same order for every number of ranks.
TEST(Sampler, RanksShareEveryBatchWithoutOverlap) {
  for (const Setting& setting : {Setting{64, 16, true, false}, Setting{67, 16, true, false},
                                 Setting{67, 16, true, true}, Setting{101, 7, true, true}, Setting{101, 7, false, true},
                                 Setting{5, 11, false, true}, Setting{15, 7, true, true}}) {
    std::vector<std::vector<std::int64_t>> reference;
    for (const int ranks : {1, 2, 3, 4, 7}) {
      std::vector<std::vector<std::int64_t>> batches;
      for (int rank = 0; rank < ranks; ++rank) {
        const Sampler sampler({setting.size, setting.batch, ranks, rank, setting.shuffle, setting.keep_last, 42});
        batches.resize(static_cast<std::size_t>(sampler.batches()));
        const auto order = sampler.order(2);
        for (std::int64_t b = 0; b < sampler.batches(); ++b) {
          const Partition share = sampler.share(b);
          EXPECT_LE(share.count, sampler.capacity());
          EXPECT_EQ(sampler.samples(b), std::min(setting.batch, setting.size - b * setting.batch));
          // The first n mod P ranks have one more.
          EXPECT_EQ(share.count, sampler.samples(b) / ranks + (rank < sampler.samples(b) % ranks ? 1 : 0));
          for (std::int64_t i = 0; i < share.count; ++i) {
            batches[static_cast<std::size_t>(b)].push_back(order(share.begin + i));
          }
        }
      }
      if (reference.empty()) {
        reference = batches;
      }
      EXPECT_EQ(batches, reference) << ranks << " ranks";
      std::set<std::int64_t> seen;
      std::int64_t count = 0;
      for (const auto& batch : batches) {
        seen.insert(batch.begin(), batch.end());
        count += static_cast<std::int64_t>(batch.size());
      }
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count);
      EXPECT_EQ(count, setting.keep_last ? setting.size : setting.size / setting.batch * setting.batch);
    }
  }
}

TEST(Sampler, EvaluationKeepsTheOrder) {
  const Sampler sampler({10, 4, 1, 0, false, true, 3});
  const auto order = sampler.order(9);
  for (std::int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(order(i), i);
  }
  EXPECT_EQ(sampler.batches(), 3);
  EXPECT_EQ(sampler.samples(2), 2);
}

TEST(Sampler, BadSettingsAreRefused) {
  const auto make = [](std::int64_t size, std::int64_t batch, int ranks, int rank, bool keep_last) {
    return [=] { (void)Sampler({size, batch, ranks, rank, true, keep_last, 0}); };
  };
  expect_holds(error_of<UsageError>(make(0, 4, 1, 0, true)), "0 samples");
  expect_holds(error_of<UsageError>(make(10, 0, 1, 0, true)), "batches of 0");
  expect_holds(error_of<UsageError>(make(10, 4, 0, 0, true)), "0 ranks");
  expect_holds(error_of<UsageError>(make(10, 4, 2, 2, true)), "rank 2");
  expect_holds(error_of<UsageError>(make(10, 4, 2, -1, true)), "rank -1");
  expect_holds(error_of<UsageError>(make(10, 4, 5, 0, true)), "smaller than the number of ranks, 5");
  expect_holds(error_of<UsageError>(make(10, 11, 2, 0, false)), "larger than the data set, 10");
  EXPECT_NO_THROW(make(10, 11, 2, 0, true)());
  const Sampler sampler({10, 4, 1, 0, true, false, 0});
  expect_holds(error_of<UsageError>([&] { (void)sampler.share(2); }), "batch 2");
  expect_holds(error_of<UsageError>([&] { (void)sampler.samples(-1); }), "batch -1");
  expect_holds(error_of<UsageError>([] { (void)Permutation(0, 0, 0); }), "0 samples");
}

}  // namespace
}  // namespace lockstep::nn
