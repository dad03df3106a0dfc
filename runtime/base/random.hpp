#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

/// Uses of random numbers. The use is part of the key, so that two uses never share numbers. Never renumber: seeds keep
/// their meaning over versions.
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

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four 32-bit
/// words from a 128-bit counter and a 64-bit key. Stateless: the same arguments give the same bits on every device,
/// thread and rank.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key);

/// Returns the Philox key for (seed, use, a), for callers that jump to any position with philox(). `part` separates the
/// parts of one use. With part 0 and the counter {block, b} (two words each), the words of blocks 0, 1, .. are the
/// bits() of Random(seed, use, a, b).
[[nodiscard]] std::array<std::uint32_t, 2> random_key(std::uint64_t seed, RandomUse use, std::uint64_t a,
                                                      std::uint32_t part = 0);

/// Returns the number that Random::uniform() makes of its next two words.
[[nodiscard]] inline double uniform_of(std::uint32_t first, std::uint32_t second) {
  const std::uint64_t upper = first >> 5;   // 27 bits
  const std::uint64_t lower = second >> 6;  // 26 bits
  return static_cast<double>(upper << 26 | lower) * 0x1p-53;
}
/// Returns the two numbers that Random::normal() makes of its next two uniform numbers (Box-Muller).
[[nodiscard]] std::array<double, 2> normal_of(double first, double second);

/// A stream of numbers keyed by (seed, use, a, b): e.g. (seed, augment, epoch, sample id). Draws in order; cheap to
/// make. Do not share one between threads; make one per key.
class Random {
 public:
  Random(std::uint64_t seed, RandomUse use, std::uint64_t a = 0, std::uint64_t b = 0);

  std::uint32_t bits();                      ///< 32 uniform bits
  std::uint32_t below(std::uint32_t bound);  ///< uniform in [0, bound), unbiased (Lemire 2019); bound > 0
  double uniform();                          ///< [0, 1), 53 bits
  double normal();                           ///< mean 0, variance 1 (Box-Muller)

 private:
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> block_{};
  unsigned used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace lockstep
