#pragma once

#include <cstdint>

#include <lockstep/kernels/cuda/port.hpp>
#include <lockstep/runtime/base/random.hpp>

namespace lockstep::gpu {

/// Returns the same words as philox() of runtime/base/random.hpp, on the device.
__device__ inline uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter.x;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter.z;
    counter = make_uint4(
        static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ key.x, static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ key.y, static_cast<std::uint32_t>(product0));
    key.x += 0x9E3779B9U;
    key.y += 0xBB67AE85U;
  }
  return counter;
}

__device__ inline std::uint32_t low_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
__device__ inline std::uint32_t high_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

/// Returns the same key as random_key() of runtime/base/random.hpp, on the device.
__device__ inline uint2 random_key(std::uint64_t seed, RandomUse use, std::uint64_t a, std::uint32_t part = 0) {
  const uint4 words = philox(make_uint4(static_cast<std::uint32_t>(use), low_word(a), high_word(a), part),
                             make_uint2(low_word(seed), high_word(seed)));
  return make_uint2(words.x, words.y);
}

/// The class Random of runtime/base/random.hpp on the device: the same arguments of the constructor give the same
/// draws.
class Random {
 public:
  __device__ Random(std::uint64_t seed, RandomUse use, std::uint64_t a, std::uint64_t b)
      : counter_(make_uint4(0, 0, low_word(b), high_word(b))), key_(gpu::random_key(seed, use, a)) {}

  __device__ std::uint32_t bits() {
    if (left_ == 0) {
      block_ = philox(counter_, key_);
      counter_.x += 1;
      counter_.y += counter_.x == 0 ? 1 : 0;
      left_ = 4;
    }
    const std::uint32_t word = block_.x;
    block_ = make_uint4(block_.y, block_.z, block_.w, 0);  // a shift keeps the block in registers; an index would not
    --left_;
    return word;
  }

  /// Returns a random number, uniform in [0, bound). `bound` must be positive.
  __device__ std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{bits()} * bound;
    if (low_word(product) < bound) {
      const std::uint32_t threshold = (0U - bound) % bound;  // 2^32 mod bound
      while (low_word(product) < threshold) {
        product = std::uint64_t{bits()} * bound;
      }
    }
    return high_word(product);
  }

 private:
  uint4 counter_;
  uint2 key_;
  uint4 block_ = {};
  int left_ = 0;  // number of words in `block_` that are not drawn yet
};

}  // namespace lockstep::gpu
