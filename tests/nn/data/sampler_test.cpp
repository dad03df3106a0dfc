#include <lockstep/nn/data/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

/// Returns the values at all positions of a Permutation or a Sampler::Order.
template <class Order>
std::vector<std::int64_t> all(const Order& order, std::int64_t size) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < size; ++i) {
    out.push_back(order(i));
  }
  return out;
}

template <class Order>
bool takes_all_once(const Order& order, std::int64_t size) {
  std::vector<std::int64_t> values = all(order, size);
  std::sort(values.begin(), values.end());
  std::vector<std::int64_t> expected(values.size());
  std::iota(expected.begin(), expected.end(), 0);
  return values == expected;
}

/// Expects that the values at the last thousand positions are below `size` and differ from each other.
template <class Order>
void expect_near_the_end(const Order& order, std::int64_t size) {
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    seen.insert(order(size - 1 - i));
  }
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), size);
}

TEST(Permutation, TakesEveryValueOnce) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 65, 1000, 1023, 1025, 4099}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      ASSERT_TRUE(takes_all_once(Permutation(seed, 5, size), size)) << "size " << size << ", seed " << seed;
    }
  }
}

TEST(Permutation, WorksNearTheLargestSize) {
  const std::int64_t size = (std::int64_t{1} << 62) + 12345;
  const Permutation permutation(1, 0, size);
  expect_near_the_end(permutation, size);
}

TEST(Permutation, IsInverted) {
  for (const std::int64_t size : {1, 2, 3, 5, 8, 9, 1000, 1025}) {
    const Permutation permutation(4, 2, size, 17);
    for (std::int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(permutation.position_of(permutation(i)), i) << "size " << size;
      ASSERT_EQ(permutation(permutation.position_of(i)), i) << "size " << size;
    }
  }
}

TEST(Permutation, PartsDiffer) {
  EXPECT_EQ(all(Permutation(7, 3, 500, 0), 500), all(Permutation(7, 3, 500), 500));
  EXPECT_NE(all(Permutation(7, 3, 500, 2), 500), all(Permutation(7, 3, 500), 500));
  EXPECT_NE(all(Permutation(7, 3, 500, 2), 500), all(Permutation(7, 3, 500, 3), 500));
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  const auto reference = all(Permutation(7, 3, 500), 500);
  EXPECT_EQ(all(Permutation(7, 3, 500), 500), reference);
  EXPECT_NE(all(Permutation(8, 3, 500), 500), reference);
  EXPECT_NE(all(Permutation(7, 4, 500), 500), reference);
}

// The position of a sample is uniform and independent of its neighbour's position. Chi-squared over kEpochs epochs must
// lie within about 5 standard deviations of its mean. (The mean is the degrees of freedom, the variance twice the
// mean.)
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

// An epoch continues with another batch size after `skipped` samples. Over all ranks, each remaining sample must come
// exactly once.
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

// Over all ranks each sample must come exactly once, except the samples of a last partial batch that is dropped. For
// every number of ranks, global batches must hold the same samples in the same order.
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
          // If P ranks share n samples, each of the first n mod P ranks must have one sample more.
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
  expect_holds(error_of<UsageError>([&] { (void)sampler.share(2); }), "batch is 2, expected 0 to 1");
  expect_holds(error_of<UsageError>([&] { (void)sampler.samples(-1); }), "batch is -1, expected 0 to 1");
  expect_holds(error_of<UsageError>([] { (void)Permutation(0, 0, 0); }), "0 samples");
}

// ---- chunks

Sampler in_chunks(std::int64_t size, std::int64_t chunk, std::uint64_t seed = 3) {
  return Sampler({.size = size, .batch_size = 1, .keep_last = true, .seed = seed, .chunk = chunk});
}

/// The order that sampler.hpp defines, computed with tables: the permuted chunks are joined, cut into windows, and the
/// samples of each window are shuffled.
struct Table {
  Table(std::int64_t size, std::int64_t chunk, std::uint64_t seed, std::int64_t epoch) {
    std::vector<std::vector<std::int64_t>> chunks;
    for (std::int64_t i = 0; i < size; ++i) {
      if (i % chunk == 0) {
        chunks.emplace_back();
      }
      chunks.back().push_back(i);
    }
    const auto count = static_cast<std::int64_t>(chunks.size());
    const Permutation of_chunks(seed, epoch, count);
    const std::int64_t windows = std::max<std::int64_t>(1, count / 16);
    std::int64_t place = 0;
    for (std::int64_t w = 0; w < windows; ++w) {
      std::vector<std::int64_t> samples;
      const std::int64_t places = count / windows + (w < count % windows ? 1 : 0);
      for (std::int64_t i = 0; i < places; ++i) {
        const auto& taken = chunks[static_cast<std::size_t>(of_chunks(place++))];
        samples.insert(samples.end(), taken.begin(), taken.end());
      }
      const auto length = static_cast<std::int64_t>(samples.size());
      const Permutation within(seed, epoch, length, static_cast<std::uint64_t>(w) + 2);
      begins.push_back(static_cast<std::int64_t>(order.size()));
      for (std::int64_t i = 0; i < length; ++i) {
        order.push_back(samples[static_cast<std::size_t>(within(i))]);
      }
    }
  }
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> begins;  // first position of each window
};

constexpr std::int64_t kSizes[]{1, 2, 7, 16, 17, 31, 64, 65, 100, 255, 333, 1000, 1023, 2049};
constexpr std::int64_t kChunks[]{1, 2, 3, 5, 8, 13, 16, 50, 64, 100, 999, 4000};

TEST(SamplerChunks, OrderIsThatOfTheTables) {
  for (const std::int64_t size : kSizes) {
    for (const std::int64_t chunk : kChunks) {
      // Tests several epochs, because the small last chunk has another position in each.
      for (const std::int64_t epoch : {0, 1, 2, 9}) {
        const Table table(size, chunk, 3, epoch);
        const Sampler::Order order = in_chunks(size, chunk).order(epoch);
        ASSERT_EQ(all(order, size), table.order) << "size " << size << ", chunk " << chunk << ", epoch " << epoch;
        ASSERT_EQ(order.windows(), static_cast<std::int64_t>(table.begins.size()));
        for (std::int64_t window = 0; window < order.windows(); ++window) {
          const Partition positions = order.positions_of(window);
          const auto w = static_cast<std::size_t>(window);
          ASSERT_EQ(positions.begin, table.begins[w]);
          ASSERT_EQ(positions.begin + positions.count, w + 1 < table.begins.size() ? table.begins[w + 1] : size);
          ASSERT_LE(positions.count, order.most_positions());
          ASSERT_EQ(order.window_of(positions.begin), window);
          ASSERT_EQ(order.window_of(positions.begin + positions.count - 1), window);
        }
      }
    }
  }
}

TEST(SamplerChunks, TakeEverySampleOnce) {
  for (const std::int64_t size : kSizes) {
    for (const std::int64_t chunk : kChunks) {
      ASSERT_TRUE(takes_all_once(in_chunks(size, chunk).order(4), size)) << "size " << size << ", chunk " << chunk;
    }
  }
}

TEST(SamplerChunks, WorkNearTheLargestSize) {
  const std::int64_t size = (std::int64_t{1} << 61) + 12345;
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{1000}, size / 3, size - 1, size, 2 * size}) {
    const Sampler::Order order = in_chunks(size, chunk).order(1);
    SCOPED_TRACE(chunk);
    expect_near_the_end(order, size);
  }
}

TEST(SamplerChunks, DependOnSeedAndEpoch) {
  const auto reference = all(in_chunks(1000, 8).order(5), 1000);
  EXPECT_EQ(all(in_chunks(1000, 8).order(5), 1000), reference);
  EXPECT_NE(all(in_chunks(1000, 8).order(6), 1000), reference);
  EXPECT_NE(all(in_chunks(1000, 8, 4).order(5), 1000), reference);
  EXPECT_NE(all(in_chunks(1000, 9).order(5), 1000), reference);
}

TEST(SamplerChunks, NoneAreTheOrderWithoutThem) {
  const Permutation permutation(3, 5, 1000);
  const Sampler::Order order = in_chunks(1000, 0).order(5);
  EXPECT_EQ(all(order, 1000), all(permutation, 1000));
  EXPECT_EQ(order.windows(), 1);
  EXPECT_EQ(order.positions_of(0).count, 1000);
  // Without shuffling, as in an evaluation, the chunk size must not change the order.
  const Sampler test({.size = 100, .batch_size = 4, .shuffle = false, .keep_last = true, .seed = 3, .chunk = 8});
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(test.order(2)(i), i);
  }
}

// A batch of 64 samples comes from a window of 16 chunks of 64 samples. On average a batch must have samples of 15.7
// chunks, which is 16 (1 - (15/16)^64). The chunks of a window must come from anywhere in the data set.
TEST(SamplerChunks, BatchesComeFromManyChunks) {
  constexpr std::int64_t kSize = 64 * 1600;
  constexpr std::int64_t kChunk = 64;
  const Sampler sampler = in_chunks(kSize, kChunk);
  double chunks = 0;
  double distance = 0;  // sum of the distances between samples of one batch
  const Sampler::Order order = sampler.order(0);
  for (std::int64_t batch = 0; batch < kSize / 64; ++batch) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 64; ++i) {
      const std::int64_t id = order(64 * batch + i);
      seen.insert(id / kChunk);
      distance += std::abs(static_cast<double>(id - order(64 * batch + (i + 1) % 64))) / kSize;
    }
    chunks += static_cast<double>(seen.size());
  }
  EXPECT_NEAR(chunks / (kSize / 64), 16 * (1 - std::pow(15.0 / 16, 64)), 0.15);
  // The mean distance of two random points on a line of length 1 is 1/3. With probability 1/16 both samples are in the
  // same chunk, where the distance is nearly 0.
  EXPECT_NEAR(distance / kSize, (1 - 1.0 / 16) / 3, 0.01);
}

TEST(SamplerChunks, EachSampleComesAnywhereInAnEpoch) {
  constexpr std::int64_t kSize = 1030;
  constexpr int kEpochs = 2000;
  constexpr int kBins = 10;
  const Sampler sampler = in_chunks(kSize, 4);
  const std::vector<std::int64_t> samples{0, 517, kSize - 1};  // the last sample is in the small last chunk
  std::vector<std::vector<int>> all_bins(samples.size(), std::vector<int>(kBins));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = all(sampler.order(epoch), kSize);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto at = std::find(order.begin(), order.end(), samples[i]) - order.begin();
      ++all_bins[i][static_cast<std::size_t>(at * kBins / kSize)];
    }
  }
  for (const std::vector<int>& bins : all_bins) {
    double chi2 = 0;
    for (const int count : bins) {
      chi2 += std::pow(count - kEpochs / kBins, 2) / (kEpochs / kBins);
    }
    EXPECT_LT(chi2, 27.9);  // 9 degrees of freedom: exceeded once in 1000
  }
}

TEST(SamplerChunks, RanksAndBatchesShareOneOrder) {
  const auto reference = all(in_chunks(333, 5).order(2), 333);
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<std::int64_t> read;
    // Reads 40 positions in batches of 20, then the remaining positions in batches of 14, as a run does that continues
    // with another batch size.
    for (const auto& [batch_size, skipped, batches] : {std::tuple{20, 0, 2}, std::tuple{14, 40, 21}}) {
      for (std::int64_t batch = 0; batch < batches; ++batch) {
        for (int rank = 0; rank < ranks; ++rank) {
          const Sampler sampler({.size = 333,
                                 .batch_size = batch_size,
                                 .ranks = ranks,
                                 .rank = rank,
                                 .keep_last = true,
                                 .seed = 3,
                                 .chunk = 5});
          const Partition share = sampler.share(batch, skipped);
          for (std::int64_t i = 0; i < share.count; ++i) {
            read.push_back(sampler.order(2)(share.begin + i));
          }
        }
      }
    }
    EXPECT_EQ(read, reference) << ranks;
  }
}

TEST(SamplerChunks, FewerThanNoneAreRefused) {
  expect_holds(error_of<UsageError>([] { (void)in_chunks(10, -1); }), "chunks of -1 samples");
}

}  // namespace
}  // namespace lockstep::nn
