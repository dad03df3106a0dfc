// Tests the functions that choose batch size, learning rate and number of workers. The tests give the numbers of
// processors and ranks, so the machine that runs them does not matter.
#include <cmath>
#include <set>

#include <lockstep/nn/data/partition.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/support/files.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

TEST(ShareOf, PartsAreContiguousAndDifferByAtMostOne) {
  for (const std::int64_t total : {0, 1, 5, 13, 560, 561}) {
    for (const std::int64_t parts : {1, 2, 3, 8, 14}) {
      std::int64_t next = 0;
      std::set<std::int64_t> sizes;
      for (std::int64_t i = 0; i < parts; ++i) {
        const Partition part = partition_of(total, parts, i);
        EXPECT_EQ(part.begin, next) << total << " in " << parts;
        next += part.count;
        sizes.insert(part.count);
      }
      EXPECT_EQ(next, total);
      EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1) << total << " in " << parts;
    }
  }
  EXPECT_THROW((void)partition_of(5, 0, 0), UsageError);
  EXPECT_THROW((void)partition_of(5, 2, 2), UsageError);
  EXPECT_THROW((void)partition_of(5, 2, -1), UsageError);
  EXPECT_THROW((void)partition_of(-1, 2, 0), UsageError);
}

TEST(RunRules, TheBatchComesFromTheWholeOrFromARank) {
  const RunRules rules = run_rules({.ranks = 10, .batch_per_rank = 7, .accumulate = 8});
  EXPECT_EQ(rules.global_batch, 560);
  EXPECT_EQ(rules.batch_text(), "7 x 8 x 10 = 560 (a micro-batch x micro-batches x ranks)");
  EXPECT_EQ(run_rules({.ranks = 10, .global_batch = 560, .accumulate = 8}).batch_text(), rules.batch_text());
  EXPECT_EQ(run_rules({.ranks = 10, .global_batch = 560, .batch_per_rank = 7, .accumulate = 8}).global_batch, 560);
  EXPECT_EQ(run_rules({.ranks = 2, .global_batch = 128}).batch_text(), "64 x 2 = 128 (a rank x ranks)");
}

TEST(RunRules, UnevenSharesAreShown) {
  EXPECT_EQ(run_rules({.ranks = 3, .global_batch = 13}).batch_text(), "13 over 3 ranks: 1 of 5, 2 of 4");
  EXPECT_EQ(run_rules({.ranks = 2, .global_batch = 13, .accumulate = 2}).batch_text(),
            "13 over 2 ranks: 1 of 7, 1 of 6; in 2 micro-batches of 3 to 4");
  EXPECT_EQ(run_rules({.ranks = 2, .global_batch = 14, .accumulate = 2}).batch_text(),
            "7 x 2 = 14 (a rank x ranks); in 2 micro-batches of 3 to 4");
  EXPECT_EQ(run_rules({.ranks = 3, .global_batch = 20, .accumulate = 6}).batch_text(),
            "20 over 3 ranks: 2 of 7, 1 of 6; in 6 micro-batches of 1 to 2");
}

TEST(RunRules, TheRateFollowsTheGlobalBatchAndNotTheRanks) {
  const auto rate = [](int ranks, std::int64_t batch, std::int64_t microbatches = 1) {
    return run_rules({.ranks = ranks, .global_batch = batch, .accumulate = microbatches, .base_learning_rate = 0.2})
        .learning_rate;
  };
  EXPECT_EQ(rate(1, 256), 0.2);
  EXPECT_EQ(rate(8, 256), 0.2);
  EXPECT_EQ(rate(8, 256, 4), 0.2);
  EXPECT_EQ(rate(1, 512), 0.4);
  EXPECT_EQ(rate(2, 128), 0.1);
  EXPECT_EQ(run_rules({.ranks = 4, .batch_per_rank = 64, .base_learning_rate = 0.2}).learning_rate, 0.2);
  EXPECT_EQ(run_rules({.global_batch = 512, .learning_rate = 0.03}).learning_rate, 0.03) << "what is given stays";
  EXPECT_EQ(run_rules({.global_batch = 512, .base_learning_rate = 1e-3, .reference_batch = 0}).learning_rate, 1e-3);
  EXPECT_EQ(run_rules({.global_batch = 64, .base_learning_rate = 0.1, .reference_batch = 32}).learning_rate, 0.2);
  EXPECT_EQ(warmup_steps(400), 20);
  EXPECT_EQ(warmup_steps(19), 0);
}

TEST(RunRules, WorkersFollowTheProcessorsThatARankHas) {
  const auto workers = [](int processors, int sharers) {
    return run_rules({.ranks = sharers, .global_batch = 64, .processors = processors, .sharers = sharers}).workers;
  };
  EXPECT_EQ(workers(1, 1), 1);
  EXPECT_EQ(workers(2, 1), 1);
  EXPECT_EQ(workers(6, 1), 5);
  EXPECT_EQ(workers(64, 1), 8);
  EXPECT_EQ(workers(2, 2), 1);
  EXPECT_EQ(workers(16, 4), 3);
  EXPECT_EQ(workers(2, 4), 0) << "more ranks than processors: each reads by itself";
  for (const int processors : {1, 2, 3, 16, 256}) {
    for (const int sharers : {1, 2, 3, 5, 16}) {
      const RunRules rules =
          run_rules({.ranks = sharers, .global_batch = 64, .processors = processors, .sharers = sharers});
      EXPECT_TRUE(warnings(rules, false, 0).empty()) << processors << ' ' << sharers;
    }
  }
  const RunRules given = run_rules({.global_batch = 64, .workers = 20, .processors = 2});
  EXPECT_EQ(given.workers, 20);
  EXPECT_EQ(given.prefetch, 3) << "workers share a batch";
  EXPECT_EQ(run_rules({.global_batch = 64, .workers = 0}).workers, 0);
  EXPECT_EQ(run_rules({.global_batch = 64}).prefetch, 3);
}

TEST(RunRules, WarnsOfLargeBatchesAndOfTooManyWorkers) {
  const auto lines = [](std::int64_t batch, bool lars, std::int64_t warmup) {
    return warnings(run_rules({.ranks = 8, .global_batch = batch}), lars, warmup);
  };
  EXPECT_TRUE(lines(8192, false, 0).empty());
  ASSERT_EQ(lines(8193, false, 0).size(), 1U);
  expect_holds(lines(8193, false, 0)[0], "8193");
  expect_holds(lines(8193, false, 0)[0], "8192");
  EXPECT_TRUE(lines(8193, true, 0).empty());
  EXPECT_TRUE(lines(8193, false, 1).empty());

  const auto threads = [](int workers, int processors, int sharers) {
    return warnings(
        run_rules(
            {.ranks = sharers, .global_batch = 64, .workers = workers, .processors = processors, .sharers = sharers}),
        false, 0);
  };
  EXPECT_TRUE(threads(2, 4, 2).empty());
  ASSERT_EQ(threads(3, 4, 2).size(), 1U);
  expect_holds(threads(3, 4, 2)[0], "6 reading threads (3 x 2 ranks) on 4 processors");
  EXPECT_EQ(threads(1, 2, 4).size(), 1U);
}

TEST(RunRules, WhatCannotBeIsRefused) {
  struct Case {
    RunRequest request;
    std::string text;
  };
  for (const Case& item : {
           Case{{.ranks = 2}, "no batch size is given"},
           Case{{.ranks = 2, .global_batch = 0}, "batch size is 0, expected at least 1"},
           Case{{.ranks = 2, .global_batch = -4}, "batch size is -4, expected at least 1"},
           Case{{.ranks = 3, .global_batch = 2}, "batch size is 2, expected at least one sample for each of the 3"},
           Case{{.ranks = 3, .global_batch = 11, .accumulate = 4}, "each of the 3 ranks in each of 4 micro-batches"},
           Case{{.ranks = 0, .global_batch = 2}, "number of ranks is 0"},
           Case{{.ranks = 2, .batch_per_rank = 0}, "batch size of a rank is 0"},
           Case{{.ranks = 2, .batch_per_rank = 5, .accumulate = 0}, "micro-batches an update is 0"},
           Case{{.ranks = 4, .global_batch = 128, .batch_per_rank = 16, .accumulate = 3},
                "given twice: 128 over all ranks, but 16 a rank x 3 micro-batches x 4 ranks are 192"},
           Case{{.ranks = 4, .batch_per_rank = INT64_MAX / 2}, "fewer than 2^63"},
           Case{{.ranks = 4, .batch_per_rank = 3, .accumulate = INT64_MAX / 2}, "fewer than 2^63"},
           Case{{.global_batch = 8, .learning_rate = 0.0}, "learning rate is 0, expected a positive number"},
           Case{{.global_batch = 8, .learning_rate = NAN}, "learning rate is nan"},
           Case{{.global_batch = 8, .base_learning_rate = -1}, "base learning rate is -1"},
           Case{{.global_batch = 8, .reference_batch = -1}, "reference batch is -1"},
           Case{{.global_batch = 8, .workers = -1}, "number of workers is -1"},
           Case{{.global_batch = 8, .processors = 0}, "0 processors for 1 ranks"},
           Case{{.global_batch = 8, .sharers = 0}, "1 processors for 0 ranks"},
       }) {
    expect_holds(error_of<UsageError>([&] { (void)run_rules(item.request); }), item.text);
  }
}

}  // namespace
}  // namespace lockstep::nn
