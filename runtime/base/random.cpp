#include <lockstep/runtime/base/random.hpp>

#include <cmath>
#include <numbers>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

constexpr std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  // Multipliers and Weyl constants are from section 3.3 and table 2 of the Philox paper (Salmon et al., SC 2011).
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

// In Random(seed, use, a, b), the arguments seed, use and a determine the Philox key. b is the upper half of the Philox
// counter. The lower half is the number of the block of four words.

std::array<std::uint32_t, 2> random_key(std::uint64_t seed, RandomUse use, std::uint64_t a, std::uint32_t part) {
  const auto words = philox({static_cast<std::uint32_t>(use), low(a), high(a), part}, {low(seed), high(seed)});
  return {words[0], words[1]};
}

Random::Random(std::uint64_t seed, RandomUse use, std::uint64_t a, std::uint64_t b)
    : counter_{0, 0, low(b), high(b)}, key_(random_key(seed, use, a)) {}

std::uint32_t Random::bits() {
  if (used_ == block_.size()) {
    block_ = philox(counter_, key_);
    counter_[1] += static_cast<std::uint32_t>(++counter_[0] == 0);
    used_ = 0;
  }
  return block_[used_++];
}

std::uint32_t Random::below(std::uint32_t bound) {
  require<UsageError>(bound > 0, "random: bound is 0, expected at least 1");
  std::uint64_t product = std::uint64_t{bits()} * bound;
  if (low(product) < bound) {
    const std::uint32_t threshold = (0U - bound) % bound;  // equals 2^32 mod bound
    while (low(product) < threshold) {
      product = std::uint64_t{bits()} * bound;
    }
  }
  return high(product);
}

std::array<double, 2> normal_of(double first, double second) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - first));  // the logarithm's argument is in (0, 1]
  const double angle = 2.0 * std::numbers::pi * second;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double Random::uniform() {
  const std::uint32_t first = bits();
  return uniform_of(first, bits());
}

double Random::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double first = uniform();
  const auto pair = normal_of(first, uniform());
  spare_ = pair[1];
  has_spare_ = true;
  return pair[0];
}

}  // namespace lockstep
