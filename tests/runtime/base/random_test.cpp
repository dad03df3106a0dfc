#include <lockstep/runtime/base/random.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::testing {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Known answers published with the reference implementation (philox4x32, 10 rounds).
TEST(Random, PhiloxKnownAnswers) {
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The numbers were computed by a separate implementation of the key schedule in random.cpp. They make sure that a
// seed gives the same numbers in every version.
TEST(Random, GoldenStream) {
  Random random(0x0123456789abcdefULL, RandomUse::augment, 0x1122334455667788ULL, 0x99aabbccddeeff00ULL);
  for (const std::uint32_t expected : {0x0e629b17U, 0x1bc52106U, 0x89c6d5f5U, 0x6ee23c5dU, 0x4a33a028U, 0x447547bdU,
                                       0xad82bf0fU, 0x5b545564U, 0x55e50515U}) {
    EXPECT_EQ(random.bits(), expected);
  }
  Random uniform(42, RandomUse::test);
  for (const double expected : {0.3059549323511812, 0.47030438144474507, 0.7823025990154147, 0.017229793540406768}) {
    EXPECT_EQ(uniform.uniform(), expected);
  }
  Random normal(42, RandomUse::test);
  EXPECT_NEAR(normal.normal(), -0.8398223687902198, 1e-14);
  EXPECT_NEAR(normal.normal(), 0.15854069539601073, 1e-14);
}

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<std::uint32_t> first;
  std::size_t streams = 0;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32}) {
    for (const RandomUse use : {RandomUse::initialise, RandomUse::shuffle, RandomUse::dropout}) {
      for (const std::uint64_t a : {0ULL, 1ULL, 1ULL << 32}) {
        for (const std::uint64_t b : {0ULL, 1ULL, 1ULL << 32}) {
          first.insert(Random(seed, use, a, b).bits());
          ++streams;
        }
      }
    }
  }
  EXPECT_EQ(first.size(), streams);
  EXPECT_EQ(Random(7, RandomUse::test, 3, 4).bits(), Random(7, RandomUse::test, 3, 4).bits());
}

TEST(Random, KeysReachEveryPlaceOfAStream) {
  constexpr std::uint64_t kFar = 1ULL << 33;
  const auto key = random_key(7, RandomUse::test, kFar);
  Random random(7, RandomUse::test, kFar, 4);
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (const std::uint32_t word : philox({block, 0, 4, 0}, key)) {
      EXPECT_EQ(word, random.bits());
    }
  }
  EXPECT_NE(key, random_key(7, RandomUse::test, kFar, 1));
}

TEST(Random, BelowIsUniformOnOddBounds) {
  Random random(1, RandomUse::test);
  constexpr int kDraws = 70000;
  std::vector<int> counts(7, 0);
  for (int i = 0; i < kDraws; ++i) {
    ++counts.at(random.below(7));
  }
  double chi2 = 0;
  for (const int count : counts) {
    chi2 += (count - kDraws / 7.0) * (count - kDraws / 7.0) / (kDraws / 7.0);
  }
  EXPECT_LT(chi2, 22.5);  // 6 degrees of freedom, 0.999 quantile
  // A bound just above 2^31 rejects nearly half of the words.
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(random.below(0x80000001U), 0x80000001U);
  }
  EXPECT_EQ(random.below(1), 0U);
  EXPECT_THROW(random.below(0), UsageError);
}

TEST(Random, Moments) {
  Random random(5, RandomUse::test);
  constexpr int kDraws = 200000;
  double mean = 0;
  double square = 0;
  double fourth = 0;
  double uniform = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    uniform += u / kDraws;
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    mean += x / kDraws;
    square += x * x / kDraws;
    fourth += x * x * x * x / kDraws;
  }
  EXPECT_NEAR(uniform, 0.5, 0.003);
  EXPECT_NEAR(mean, 0, 0.01);
  EXPECT_NEAR(square, 1, 0.015);
  EXPECT_NEAR(fourth, 3, 0.12);
}

}  // namespace
}  // namespace lockstep::testing
