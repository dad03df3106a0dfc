#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

/// Uses of random numbers. The use is a part of the random key, so that two uses never share numbers. Never renumber
/// the uses: a seed must give the same numbers in every version.
enum class RandomUse : std::uint32_t {
  initialise = 1,
  shuffle = 2,
  augment = 3,
  synthetic = 4,
  dropout = 5,
  test = 6,
  tensor = 7,
  sample = 8
};

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Returns four
/// 32-bit words for a 128-bit counter and a 64-bit key. Has no state: the same arguments give the same bits on every
/// device, thread and rank.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key);

/// Returns the Philox key of (seed, use, a), for callers that read numbers at any position with philox(). Different
/// values of `part` give different keys within one use. With part 0 and the counter {block, b} (two words each), the
/// words of the blocks 0, 1, .. are the bits() of Random(seed, use, a, b).
[[nodiscard]] std::array<std::uint32_t, 2> random_key(std::uint64_t seed, RandomUse use, std::uint64_t a,
                                                      std::uint32_t part = 0);

/// Returns the uniform number that Random::uniform() makes if its next two words are `first` and `second`.
[[nodiscard]] inline double uniform_of(std::uint32_t first, std::uint32_t second) {
  const std::uint64_t upper = first >> 5;   // has 27 bits
  const std::uint64_t lower = second >> 6;  // has 26 bits
  return static_cast<double>(upper << 26 | lower) * 0x1p-53;
}
/// Returns the two numbers that Random::normal() makes from the uniform numbers `first` and `second` (Box-Muller).
[[nodiscard]] std::array<double, 2> normal_of(double first, double second);

/// A stream of random numbers with the key (seed, use, a, b), for example (seed, augment, epoch, sample id). Draws the
/// numbers in order. Cheap to make: make one object per key, and do not share an object between threads.
class Random {
 public:
  Random(std::uint64_t seed, RandomUse use, std::uint64_t a = 0, std::uint64_t b = 0);

  std::uint32_t bits();                      ///< returns 32 uniform bits
  std::uint32_t below(std::uint32_t bound);  ///< returns an unbiased integer in [0, bound) (Lemire 2019); bound > 0
  double uniform();                          ///< returns a uniform number in [0, 1) with 53 random bits
  double normal();                           ///< returns a normal number of mean 0 and variance 1 (Box-Muller)

 private:
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> block_{};
  unsigned used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace lockstep
