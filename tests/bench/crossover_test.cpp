#include "bench/support/crossover.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

const double kMissing = std::numeric_limits<double>::quiet_NaN();

TEST(Crossover, IsBetweenTheTwoSizesWhereItChanges) {
  // On the CPU as the size, on the GPU 10 at first and then as half the size: ratios 10, 2.5, 0.625, 0.5.
  const Crossover found = find_crossover(std::vector<TimesOfSize>{{1, 1, 10}, {4, 4, 10}, {16, 16, 10}, {64, 64, 32}});
  EXPECT_EQ(found.sizes, 4);
  EXPECT_EQ(found.crossings, 1);
  EXPECT_TRUE(found.gpu_wins_last);
  ASSERT_TRUE(found.from);
  EXPECT_NEAR(*found.from, 10, 1e-9) << "10 takes 10 on both; the lines are straight in logarithms";
  EXPECT_EQ(crossover_text(found, "cuda:0"), "from 10 x 10 on cuda:0 is faster than the CPU");
}

TEST(Crossover, NeverAndAlways) {
  const Crossover never = find_crossover(std::vector<TimesOfSize>{{16, 1, 2}, {32, 2, 3}});
  EXPECT_FALSE(never.from);
  EXPECT_EQ(never.crossings, 0);
  EXPECT_EQ(crossover_text(never, "cuda:0"), "the CPU is faster than cuda:0 at the largest size, 32");
  const Crossover always = find_crossover(std::vector<TimesOfSize>{{16, 2, 1}, {32, 3, 2}});
  EXPECT_FALSE(always.from);
  EXPECT_TRUE(always.gpu_wins_last);
  EXPECT_EQ(crossover_text(always, "cuda:1"), "cuda:1 is faster than the CPU at all sizes, 16 to 32");
}

TEST(Crossover, TheLastOfSeveralCounts) {
  const Crossover found =
      find_crossover(std::vector<TimesOfSize>{{1, 1, 2}, {2, 2, 1}, {4, 1, 2}, {8, 1, 4}, {16, 4, 1}, {32, 9, 1}});
  EXPECT_EQ(found.crossings, 3);
  ASSERT_TRUE(found.from);
  EXPECT_NEAR(*found.from, 8 * std::sqrt(2.0), 1e-9);  // ratios 4 and 1/4
  EXPECT_EQ(crossover_text(found, "cuda:0"), "from 11 x 11 on cuda:0 is faster than the CPU; it changes 3 times");
  const Crossover back = find_crossover(std::vector<TimesOfSize>{{1, 1, 2}, {2, 2, 1}, {4, 1, 2}});
  EXPECT_EQ(back.crossings, 2);
  EXPECT_FALSE(back.from) << "the CPU wins the largest";
  EXPECT_EQ(crossover_text(back, "cuda:0"), "the CPU is faster than cuda:0 at the largest size, 4; it changes 2 times");
}

TEST(Crossover, WhatWasNotMeasuredIsLeftOut) {
  const Crossover found = find_crossover(std::vector<TimesOfSize>{
      {1, 1, kMissing}, {4, 1, 2}, {8, kMissing, 1}, {16, 2, 1}, {32, 0, 1}, {64, INFINITY, 1}});
  EXPECT_EQ(found.sizes, 2);
  EXPECT_EQ(found.smallest, 4);
  EXPECT_EQ(found.largest, 16);
  ASSERT_TRUE(found.from);
  EXPECT_NEAR(*found.from, 8, 1e-9);
  const Crossover nothing = find_crossover(std::vector<TimesOfSize>{{1, kMissing, kMissing}});
  EXPECT_EQ(nothing.sizes, 0);
  EXPECT_FALSE(nothing.from);
  EXPECT_EQ(crossover_text(nothing, "cuda:0"), "no size was measured on both the CPU and cuda:0");
  EXPECT_EQ(find_crossover({}).sizes, 0);
}

TEST(Crossover, ATieIsTheCpus) {
  const Crossover found = find_crossover(std::vector<TimesOfSize>{{4, 1, 1}, {8, 2, 1}});
  ASSERT_TRUE(found.from);
  EXPECT_EQ(*found.from, 4);
  EXPECT_FALSE(find_crossover(std::vector<TimesOfSize>{{4, 1, 1}}).gpu_wins_last);
}

}  // namespace
}  // namespace lockstep::bench
