#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "bench/support/interval.hpp"

namespace lockstep::bench {
namespace {

TEST(Interval, MeanAndMedian) {
  const std::array values{5.0, 1.0, 3.0, 100.0};
  EXPECT_EQ(mean_of(values), 27.25);
  EXPECT_EQ(median_of(values), 5);
  EXPECT_EQ(median_of(std::array{2.0, 9.0, 4.0}), 4);
}

TEST(Interval, ARatioWithoutScatterHasNoWidth) {
  const std::vector<double> a(9, 6.0);
  const std::vector<double> b(9, 4.0);
  EXPECT_EQ(ratio_interval(a, b, mean_of), std::pair(1.5, 1.5));
  EXPECT_EQ(ratio_interval(a, b, median_of), std::pair(1.5, 1.5));
}

/// Pairs are drawn as pairs: what slows both times of a pair down is not scatter of their ratio.
TEST(Interval, WhatBothTimesOfAPairShareDoesNotWidenIt) {
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 100; ++i) {
    const double slow = 1 + i % 7;
    b.push_back(slow);
    a.push_back(1.25 * slow);
  }
  const auto [low, high] = ratio_interval(a, b, mean_of);
  EXPECT_NEAR(low, 1.25, 1e-12);
  EXPECT_NEAR(high, 1.25, 1e-12);
}

/// Of the mean of n values with standard deviation s the interval has about +-1.96 s / sqrt(n).
TEST(Interval, IsAsWideAsTheScatterOfTheMean) {
  constexpr int kPairs = 400;
  const std::vector<double> b(kPairs, 1.0);
  std::vector<double> a;
  for (int i = 0; i < kPairs; ++i) {
    a.push_back(i % 2 == 0 ? 0.9 : 1.1);
  }
  const auto [low, high] = ratio_interval(a, b, mean_of);
  const double half = 1.96 * 0.1 / std::sqrt(kPairs);
  EXPECT_NEAR(low, 1 - half, 0.2 * half);
  EXPECT_NEAR(high, 1 + half, 0.2 * half);
}

}  // namespace
}  // namespace lockstep::bench
