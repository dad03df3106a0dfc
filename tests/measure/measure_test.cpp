#include "measure/measure.hpp"
#include "measure/arithmetic.hpp"

#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/comm/local_ranks.hpp"

namespace lockstep::measure {
namespace {

Samples counted(int n) {
  Samples samples;
  for (int i = n; i >= 1; --i) {
    samples.seconds.push_back(i);
  }
  return samples;
}

TEST(Samples, MedianMeanAndSpreadByHand) {
  EXPECT_EQ(counted(5).median(), 3);
  EXPECT_EQ(counted(4).median(), 2.5);
  EXPECT_EQ(counted(1).median(), 1);
  EXPECT_EQ(counted(4).mean(), 2.5);
  EXPECT_EQ(counted(4).min(), 1);
  EXPECT_EQ(counted(4).max(), 4);
  Samples samples = counted(3);
  EXPECT_EQ(samples.rank_spread(), 1);
  samples.rank_medians = {2, 3, 1.5};
  EXPECT_EQ(samples.rank_spread(), 2);
}

TEST(Samples, OfNothingIsNaN) {
  const Samples none;
  EXPECT_TRUE(std::isnan(none.median()));
  EXPECT_TRUE(std::isnan(none.mean()));
  EXPECT_TRUE(std::isnan(none.min()));
  EXPECT_FALSE(none.percentile(50).has_value());
}

TEST(Samples, APercentileNeedsAValueBeyondIt) {
  EXPECT_EQ(counted(100).percentile(99), 99);
  EXPECT_FALSE(counted(99).percentile(99).has_value());
  EXPECT_EQ(counted(20).percentile(95), 19);
  EXPECT_FALSE(counted(19).percentile(95).has_value());
  EXPECT_EQ(counted(2).percentile(50), 1);
  EXPECT_EQ(counted(1000).percentile(99), 990);
  EXPECT_EQ(counted(1000).percentile(0.001), 1);
  EXPECT_THROW((void)counted(9).percentile(0), UsageError);
  EXPECT_THROW((void)counted(9).percentile(100), UsageError);
  EXPECT_THROW((void)counted(9).percentile(std::nan("")), UsageError);
}

TEST(Measure, KeepsToTheNumberOfIterations) {
  int calls = 0;
  int waits = 0;
  int prepared = 0;
  const Work work{[&] { ++calls; }, [&] { ++waits; }, [&] { ++prepared; }};
  const Samples samples = measure({.target_seconds = 0, .min_iterations = 7, .max_iterations = 9}, work);
  EXPECT_EQ(samples.seconds.size(), 7U);
  EXPECT_EQ(samples.calls, 1);
  // Expects 7 samples, a warm-up, and one call that measures how long a call takes.
  EXPECT_EQ(calls, 9);
  EXPECT_EQ(waits, 9);
  EXPECT_EQ(prepared, 9);
  EXPECT_EQ(measure({.target_seconds = 10, .min_iterations = 2, .max_iterations = 11}, work).seconds.size(), 11U);
}

TEST(Measure, TimesAreThoseOfOneCall) {
  const auto begin = std::chrono::steady_clock::now();
  const Work sleep{[] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }, {}, {}};
  const Samples samples =
      measure({.target_seconds = 0, .min_iterations = 3, .max_iterations = 3, .sample_seconds = 2e-2}, sleep);
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(samples.calls, 2);
  EXPECT_GE(samples.min(), 1e-3);
  EXPECT_LT(samples.mean() * 3 * static_cast<double>(samples.calls), all);
}

TEST(Measure, ShortCallsAreTimedTogether) {
  int calls = 0;
  const Samples samples = measure(
      {.target_seconds = 0, .min_iterations = 2, .max_iterations = 2, .sample_seconds = 2e-2}, {[&] { ++calls; }});
  EXPECT_GT(samples.calls, 1000);
  EXPECT_LT(samples.median(), 1e-4);
  EXPECT_GE(calls, 2 * samples.calls);
}

TEST(Measure, MakesExactlyTheCallsThatAreAskedFor) {
  int calls = 0;
  const Work count{[&] { ++calls; }};
  EXPECT_EQ(measure({.calls = 7}, count).seconds.size(), 7U);
  EXPECT_EQ(calls, 9);
  const Work sleep{[] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }};
  // measure() times several short calls together as one sample. It divides the 11 calls among the samples.
  const Samples samples = measure({.sample_seconds = 5e-3, .calls = 11}, sleep);
  EXPECT_GE(samples.calls, 1);  // two to five calls, unless the machine is busy
  EXPECT_EQ(static_cast<std::int64_t>(samples.seconds.size()), 11 / samples.calls);
  EXPECT_EQ(measure({.sample_seconds = 1, .calls = 1}, {[] {}}).seconds.size(), 1U) << "fewer than fill one value";
}

TEST(Measure, TakesTheSlowestRankAndTheSameCallsOnAll) {
  std::mutex mutex;
  std::vector<std::int64_t> counts;
  std::vector<Samples> all;
  comm::LocalGroup group(3);
  const auto errors = comm::run_ranks(3, [&](comm::Communicator& ranks) {
    std::int64_t calls = 0;
    const auto work = [&] {
      ++calls;
      if (ranks.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    };
    const Samples samples = measure(ranks, {.target_seconds = 0.03, .min_iterations = 2}, {work});
    const std::lock_guard lock(mutex);
    counts.push_back(calls);
    all.push_back(samples);
  });
  EXPECT_EQ(errors, comm::none_failed(3));
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_EQ(counts[0], counts[2]);
  for (const Samples& samples : all) {
    EXPECT_GE(samples.min(), 3e-3);
    ASSERT_EQ(samples.rank_medians.size(), 3U);
    EXPECT_GE(samples.rank_medians[1], 3e-3);
    EXPECT_LT(samples.rank_medians[0], samples.rank_medians[1]);  // rank 0 has no slow call
    EXPECT_GT(samples.rank_spread(), 1);
    EXPECT_LT(samples.mean_over_ranks, samples.mean());  // two of the three ranks have no slow call
    EXPECT_GT(samples.mean_over_ranks, samples.mean() / 4);
    EXPECT_EQ(samples.mean_over_ranks, all[0].mean_over_ranks);
    EXPECT_EQ(samples.seconds, all[0].seconds);
  }
}

TEST(Measure, RefusesWhatMakesNoSense) {
  const Work work{[] {}};
  EXPECT_THROW((void)measure({.min_iterations = 0}, work), UsageError);
  EXPECT_THROW((void)measure({.min_iterations = 6, .max_iterations = 5}, work), UsageError);
  EXPECT_THROW((void)measure({.target_seconds = -1}, work), UsageError);
  EXPECT_THROW((void)measure({.sample_seconds = std::nan("")}, work), UsageError);
  EXPECT_THROW((void)measure({.calls = -1}, work), UsageError);
  EXPECT_THROW((void)measure(MeasureOptions{}, Work{}), UsageError);
}

TEST(Measure, MultiplyAddsOfAProcessor) {
  const double one = fma_flop_per_second(CpuContext({.threads = 1}), 0);
  EXPECT_GT(one, 1e9);  // this bound holds under a sanitizer, too
  EXPECT_LT(one, 1e12) << "no processor does that on one thread";
  EXPECT_GT(fma_flop_per_second(CpuContext({.threads = 2}), 0), 1e9);
}

}  // namespace
}  // namespace lockstep::measure
