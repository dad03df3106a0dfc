#include <lockstep/nn/data/loader.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

// A data set in which pixel p of image i is (7 i + p) mod 251. The image with number `fails` cannot be read.
class Numbers final : public ImageDataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t fails = -1)
      : ImageDataset({"numbers", size, 3, 5, 4}), fails_(fails) {}
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % 4); }
  void read(std::int64_t index, std::span<std::uint8_t> image) const override {
    reads_.fetch_add(1, std::memory_order_relaxed);
    require<DataError>(index != fails_, "numbers: image ", index, " is damaged");
    for (std::size_t p = 0; p < image.size(); ++p) {
      image[p] = value(index, p);
    }
  }
  std::uint64_t fingerprint() const override { return 1; }
  static std::uint8_t value(std::int64_t index, std::size_t p) {
    return static_cast<std::uint8_t>((7 * static_cast<std::size_t>(index) + p) % 251);
  }
  std::int64_t reads() const { return reads_; }

 private:
  std::int64_t fails_;
  mutable std::atomic<std::int64_t> reads_{0};
};

struct Copy {
  std::int64_t epoch;
  std::int64_t index;
  std::int64_t valid;
  std::int64_t global_valid;
  bool last;
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> ids;
  friend bool operator==(const Copy&, const Copy&) = default;
};

template <class T>
std::vector<T> values(const TensorView& view) {
  const auto span = view.span<T>();
  return {span.begin(), span.end()};
}

Copy copy_of(const Batch& batch) {
  return {batch.epoch,
          batch.index,
          batch.valid,
          batch.global_valid,
          batch.last_of_epoch,
          values<std::uint8_t>(batch.view(StateField::images)),
          values<std::int32_t>(batch.view(StateField::labels)),
          values<std::int64_t>(batch.view(StateField::sample_ids))};
}

std::vector<Copy> take(const ImageDataset& dataset, const Sampler& sampler, const LoaderOptions& options, int count) {
  HostMemoryResource memory;
  Loader loader(dataset, sampler, memory, options);
  std::vector<Copy> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(copy_of(loader.next()));
  }
  return out;
}

TEST(Loader, BatchesHoldTheSamplersShare) {
  const Numbers data(23);
  // Three ranks share a batch of 8 samples as 3, 3 and 2, and a batch of 7 as 3, 2 and 2.
  const Sampler sampler({23, 8, 3, 1, true, true, 5});
  const auto batches = take(data, sampler, {2, 2, 0, 0}, 7);
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const Copy& batch = batches[b];
    EXPECT_EQ(batch.epoch, static_cast<std::int64_t>(b / 3));
    EXPECT_EQ(batch.index, static_cast<std::int64_t>(b % 3));
    EXPECT_EQ(batch.last, b % 3 == 2);
    EXPECT_EQ(batch.global_valid, b % 3 == 2 ? 7 : 8);
    EXPECT_EQ(batch.valid, b % 3 == 2 ? 2 : 3);
    ASSERT_EQ(batch.ids.size(), 3U);
    const auto order = sampler.order(batch.epoch);
    const std::size_t bytes = 3 * 5 * 3;
    for (std::size_t row = 0; row < 3; ++row) {
      const bool valid = static_cast<std::int64_t>(row) < batch.valid;
      const std::int64_t id = valid ? order(sampler.share(batch.index).begin + static_cast<std::int64_t>(row)) : 0;
      EXPECT_EQ(batch.ids[row], id);
      EXPECT_EQ(batch.labels[row], valid ? id % 4 : 0);
      for (std::size_t p = 0; p < bytes; ++p) {
        ASSERT_EQ(batch.images[row * bytes + p], valid ? Numbers::value(id, p) : 0);
      }
    }
  }
}

TEST(Loader, SameBatchesForAnyNumberOfWorkers) {
  const Numbers data(101);
  const Sampler sampler({101, 10, 2, 0, true, true, 1});
  const auto reference = take(data, sampler, {0, 1, 0, 0}, 30);
  for (const int workers : {1, 2, 3, 7}) {
    for (const int prefetch : {1, 2, 5}) {
      EXPECT_EQ(take(data, sampler, {workers, prefetch, 0, 0}, 30), reference) << workers << ' ' << prefetch;
    }
  }
  // A control: another seed gives other batches, so the comparison can fail.
  EXPECT_NE(take(data, Sampler({101, 10, 2, 0, true, true, 2}), {0, 1, 0, 0}, 30), reference);
}

/// A data set whose first `readers` reads wait for each other, so they must happen at the same time. Records the
/// samples of these reads.
class Meeting final : public Dataset {
 public:
  explicit Meeting(std::int64_t readers)
      : Dataset("meeting", 64, {{StateField::values, DType::u8, {}}}), readers_(readers) {}
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override {
    out[0][0] = std::byte{1};
    std::unique_lock lock(mutex_);
    if (std::ssize(first_) < readers_) {
      first_.push_back(index);
      met_.notify_all();
      met_.wait_for(lock, std::chrono::seconds(60), [&] { return std::ssize(first_) == readers_; });
    }
  }
  std::uint64_t fingerprint() const override { return 1; }
  std::vector<std::int64_t> first() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  std::int64_t readers_;
  mutable std::mutex mutex_;
  mutable std::condition_variable met_;
  mutable std::vector<std::int64_t> first_;
};

/// A worker that has no sample in the first batch must begin with the second batch.
TEST(Loader, WorkersShareABatch) {
  for (const auto& [workers, expected] : {std::pair<int, std::vector<std::int64_t>>{1, {0}},
                                          {3, {0, 3, 6}},
                                          {8, {0, 1, 2, 3, 4, 5, 6, 7}},
                                          {10, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}}) {
    const Meeting data(workers);
    const Sampler sampler({.size = 64, .batch_size = 8, .shuffle = false});
    HostMemoryResource memory;
    Loader loader(data, sampler, memory, {.workers = workers, .prefetch = 2});
    (void)loader.next();
    std::vector<std::int64_t> first = data.first();
    std::sort(first.begin(), first.end());
    EXPECT_EQ(first, expected) << workers;
  }
}

TEST(Loader, StartsAnywhere) {
  const Numbers data(50);
  const Sampler sampler({50, 7, 1, 0, true, false, 1});
  const auto reference = take(data, sampler, {0, 1, 0, 0}, 25);
  for (const int workers : {0, 2}) {
    const auto tail = take(data, sampler, {workers, 2, 1, 3}, 15);  // an epoch has 7 batches
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), reference.begin() + 10)) << workers;
  }
}

TEST(Loader, StartsBehindSkippedSamples) {
  const Numbers data(50);
  const Sampler sampler({50, 7, 1, 0, true, false, 1});
  const auto reference = take(data, sampler, {0, 1, 0, 0}, 25);  // an epoch has 7 batches
  for (const int workers : {0, 2}) {
    // An epoch has 50 samples. After 18 are skipped, 32 remain, which make 4 batches of 7. Loading starts at batch 1,
    // so 3 batches of this epoch follow.
    const auto batches =
        take(data, sampler, {.workers = workers, .prefetch = 2, .epoch = 1, .batch = 1, .skipped = 18}, 3 + 11);
    const auto order = sampler.order(1);
    for (std::int64_t b = 0; b < 3; ++b) {
      const Copy& batch = batches[static_cast<std::size_t>(b)];
      EXPECT_EQ(batch.epoch, 1);
      EXPECT_EQ(batch.index, b + 1);
      EXPECT_EQ(batch.last, b == 2);
      for (std::int64_t row = 0; row < 7; ++row) {
        EXPECT_EQ(batch.ids[static_cast<std::size_t>(row)], order(18 + 7 * (b + 1) + row));
      }
    }
    EXPECT_TRUE(std::equal(batches.begin() + 3, batches.end(), reference.begin() + 14)) << "whole epochs follow";
  }
  HostMemoryResource memory;
  EXPECT_THROW(Loader(data, sampler, memory, {.epoch = 0, .batch = 4, .skipped = 18}), UsageError);
}

TEST(Loader, RanksWithoutSamplesGetZeroRows) {
  const Numbers data(9);
  const Sampler sampler({9, 8, 4, 3, false, true, 0});
  const auto batches = take(data, sampler, {1, 2, 0, 0}, 2);
  EXPECT_EQ(batches[1].valid, 0);
  EXPECT_EQ(batches[1].global_valid, 1);
  EXPECT_EQ(std::count(batches[1].images.begin(), batches[1].images.end(), 0), 2 * 45);
}

TEST(Loader, TheLastThreeBatchesStay) {
  const Numbers data(64);
  const Sampler sampler({64, 4, 1, 0, true, false, 3});
  for (const int workers : {0, 3}) {
    HostMemoryResource memory;
    Loader loader(data, sampler, memory, {workers, 1, 0, 0});
    std::deque<std::pair<const Batch*, Copy>> held;
    for (int i = 0; i < 200; ++i) {
      const Batch& now = loader.next();
      held.emplace_back(&now, copy_of(now));
      for (const auto& [batch, kept] : held) {
        EXPECT_EQ(copy_of(*batch), kept);
      }
      if (held.size() == 3) {
        held.pop_front();
      }
    }
  }
}

TEST(Loader, ReadsNoFurtherAheadThanAsked) {
  const Numbers data(1000);
  const Sampler sampler({1000, 10, 1, 0, true, false, 3});
  HostMemoryResource memory;
  std::int64_t most = 0;
  {
    Loader loader(data, sampler, memory, {2, 3, 0, 0});
    for (int i = 0; i < 5; ++i) {
      (void)loader.next();
    }
    most = data.reads();
  }
  EXPECT_GE(most, 50);
  EXPECT_LE(data.reads(), (5 + 3) * 10);
}

TEST(Loader, TakesItsMemoryAtTheStart) {
  const Numbers data(64);
  const Sampler sampler({64, 4, 1, 0, true, false, 3});
  HostMemoryResource host;
  TrackingMemoryResource memory(host);
  {
    Loader loader(data, sampler, memory, {2, 3, 0, 0});
    const auto after_start = memory.counts();
    EXPECT_EQ(after_start.allocations, 6);  // prefetch + 3
    EXPECT_EQ(after_start.bytes_in_use, Loader::memory_bytes(data, sampler, {2, 3, 0, 0}));
    for (int i = 0; i < 100; ++i) {
      (void)loader.next();
    }
    EXPECT_EQ(memory.counts().allocations, after_start.allocations);
  }
  EXPECT_EQ(memory.counts().bytes_in_use, 0U);
}

TEST(Loader, AnErrorComesInThePlaceOfItsBatch) {
  const Numbers data(40, 25);
  const Sampler sampler({40, 10, 1, 0, false, false, 0});
  for (const int workers : {0, 1, 4}) {
    HostMemoryResource memory;
    Loader loader(data, sampler, memory, {workers, 4, 0, 0});
    EXPECT_EQ(loader.next().index, 0);
    EXPECT_EQ(loader.next().index, 1);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(error_of<DataError>([&] { (void)loader.next(); }), "numbers: image 25 is damaged");
    }
  }
}

// Destroys loaders after 0 to 4 batches, with workers in different states. A hang shows as a timeout.
TEST(Loader, DestructionNeverHangs) {
  const Numbers data(40);
  const Sampler sampler({40, 10, 1, 0, true, false, 0});
  HostMemoryResource memory;
  for (int i = 0; i < 200; ++i) {
    Loader loader(data, sampler, memory, {1 + i % 4, 1 + i % 3, 0, 0});
    for (int n = 0; n < i % 5; ++n) {
      (void)loader.next();
    }
    Loader moved = std::move(loader);
    EXPECT_EQ(moved.next().index, i % 5 % 4);
  }
}

/// A data set that records the ranges that ahead() announces, and the samples that were read before they were
/// announced.
class Announced final : public Dataset {
 public:
  explicit Announced(std::int64_t size) : Dataset("announced", size, {{StateField::values, DType::u8, {}}}) {}
  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override {
    out[0][0] = std::byte{1};
    const std::lock_guard lock(mutex_);
    read_.push_back(index);
    if (announced_ids_.count(index) == 0) {
      unannounced_.push_back(index);
    }
  }
  void ahead(std::int64_t begin, std::int64_t count) const noexcept override {
    const std::lock_guard lock(mutex_);
    ranges_.push_back({begin, count});
    for (std::int64_t id = begin; id < begin + count; ++id) {
      announced_ids_.insert(id);
    }
  }
  std::uint64_t fingerprint() const override { return 1; }
  // These functions must be called after the loader is destroyed, because its workers may still call ahead().
  [[nodiscard]] const std::vector<Partition>& ranges() const { return ranges_; }
  [[nodiscard]] const std::vector<std::int64_t>& unannounced() const { return unannounced_; }
  [[nodiscard]] std::vector<std::int64_t> announced() const {
    std::vector<std::int64_t> ids;
    for (const Partition& range : ranges_) {
      for (std::int64_t id = range.begin; id < range.begin + range.count; ++id) {
        ids.push_back(id);
      }
    }
    return ids;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<Partition> ranges_;
  mutable std::multiset<std::int64_t> announced_ids_;
  mutable std::vector<std::int64_t> read_;
  mutable std::vector<std::int64_t> unannounced_;
};

void load(const Dataset& data, const Sampler& sampler, const LoaderOptions& options, std::int64_t batches) {
  HostMemoryResource memory;
  Loader loader(data, sampler, memory, options);
  for (std::int64_t i = 0; i < batches; ++i) {
    (void)loader.next();
  }
}

/// Returns the samples that a rank reads in the windows [from, to) of an epoch, window after window, each in ascending
/// order.
std::vector<std::int64_t> samples_of(const Sampler& sampler, std::int64_t epoch, std::int64_t skipped,
                                     std::int64_t from, std::int64_t to) {
  const Sampler::Order order = sampler.order(epoch);
  std::vector<std::int64_t> all;
  for (std::int64_t window = from; window < to; ++window) {
    std::vector<std::int64_t> ids;
    for (std::int64_t batch = 0; batch < sampler.batches(skipped); ++batch) {
      const Partition share = sampler.share(batch, skipped);
      for (std::int64_t position = share.begin; position < share.begin + share.count; ++position) {
        if (order.window_of(position) == window) {
          ids.push_back(order(position));
        }
      }
    }
    std::sort(ids.begin(), ids.end());
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

TEST(LoaderChunks, SamplesAreAnnouncedAWindowBeforeTheyAreRead) {
  // The data set has 201 chunks of 5 samples, of which the last has 3, in 12 windows of 16 or 17 chunks. Some batches
  // are smaller than a window, some are larger.
  for (const std::int64_t batch : {10, 100, 400}) {
    for (const int ranks : {1, 3}) {
      for (const bool keep_last : {true, false}) {
        const Sampler sampler({.size = 1003,
                               .batch_size = batch,
                               .ranks = ranks,
                               .rank = ranks - 1,
                               .keep_last = keep_last,
                               .seed = 2,
                               .chunk = 5});
        ASSERT_EQ(sampler.order(0).windows(), 12);
        const Announced data(1003);
        // Reads two whole epochs. The last batch has announced the first window of the third epoch.
        load(data, sampler, {.workers = 0}, 2 * sampler.batches());
        EXPECT_EQ(data.unannounced(), std::vector<std::int64_t>());
        std::vector<std::int64_t> expected = samples_of(sampler, 0, 0, 0, 12);
        for (const auto& [epoch, windows] : {std::pair{1, 12}, {2, 1}}) {
          const auto more = samples_of(sampler, epoch, 0, 0, windows);
          expected.insert(expected.end(), more.begin(), more.end());
        }
        EXPECT_EQ(data.announced(), expected) << batch << ' ' << ranks << ' ' << keep_last;
        // The loader announces the chunks that it will read (Dataset::ahead()). It announces whole chunks and joins
        // neighbouring chunks into one range.
        if (ranks == 1 && keep_last) {
          EXPECT_LE(data.ranges().size(), 202U + 202U + 17U);
        }
      }
    }
  }
}

TEST(LoaderChunks, OneWindowIsAnnouncedWithTheFirstBatchAndTheNextWithIt) {
  const Sampler sampler({.size = 1003, .batch_size = 10, .keep_last = true, .seed = 2, .chunk = 5});
  Announced data(1003);
  load(data, sampler, {.workers = 0}, 1);
  EXPECT_EQ(data.announced(), samples_of(sampler, 0, 0, 0, 2));
  // A loader that begins in the middle of an epoch, after skipped samples, must announce the chunks of the current
  // windows.
  Announced later(1003);
  load(later, sampler, {.workers = 0, .epoch = 3, .batch = 30, .skipped = 33}, 1);
  const Sampler::Order order = sampler.order(3);
  EXPECT_GT(order.window_of(333), 1);
  EXPECT_EQ(later.announced(), samples_of(sampler, 3, 33, order.window_of(333), order.window_of(342) + 2));
}

TEST(LoaderChunks, WorkersAnnounceTheSame) {
  const Sampler sampler({.size = 1003, .batch_size = 10, .keep_last = true, .seed = 2, .chunk = 5});
  const Announced alone(1003);
  load(alone, sampler, {.workers = 0}, 210);
  for (const int workers : {1, 3}) {
    const Announced data(1003);
    load(data, sampler, {.workers = workers, .prefetch = 4}, 210);
    // Workers read ahead, so they announce more chunks than a loader without workers, and in any order.
    std::vector<std::int64_t> announced = data.announced();
    std::vector<std::int64_t> expected = alone.announced();
    EXPECT_GE(announced.size(), expected.size());
    std::sort(announced.begin(), announced.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_TRUE(std::includes(announced.begin(), announced.end(), expected.begin(), expected.end())) << workers;
  }
}

TEST(LoaderChunks, WithoutThemNothingIsAnnounced) {
  for (const Sampler& sampler : {Sampler({.size = 100, .batch_size = 10, .seed = 2}),
                                 Sampler({.size = 100, .batch_size = 10, .shuffle = false, .chunk = 5})}) {
    const Announced data(100);
    load(data, sampler, {.workers = 1}, 25);
    EXPECT_TRUE(data.ranges().empty());
  }
}

TEST(Loader, BadSettingsAreRefused) {
  const Numbers data(40);
  const Sampler sampler({40, 10, 1, 0, true, false, 0});
  HostMemoryResource memory;
  const auto make = [&](LoaderOptions options) { return [&, options] { Loader(data, sampler, memory, options); }; };
  expect_holds(error_of<UsageError>(make({-1, 2, 0, 0})), "workers is -1, expected 0 to");
  expect_holds(error_of<UsageError>(make({1000, 2, 0, 0})), "workers is 1000, expected 0 to");
  expect_holds(error_of<UsageError>(make({1, 0, 0, 0})), "prefetch is 0");
  expect_holds(error_of<UsageError>(make({1, 2, -1, 0})), "epoch -1");
  expect_holds(error_of<UsageError>(make({1, 2, 0, 4})), "batch 4");
  expect_holds(error_of<UsageError>([&] {
                 Loader(data, Sampler({41, 10, 1, 0, true, false, 0}), memory);
               }),
               "41 samples");
}

}  // namespace
}  // namespace lockstep::nn
