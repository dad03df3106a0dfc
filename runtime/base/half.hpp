#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

/// bfloat16 in host memory: the upper half of an IEEE binary32. The conversion from float rounds to nearest even; a NaN
/// stays a NaN. The bit layout is the same as in __nv_bfloat16.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    bits = (u & 0x7fffffffU) > 0x7f800000U ? static_cast<std::uint16_t>((u >> 16) | 0x40U)
                                           : static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16 in host memory. The conversion from float rounds to nearest even, keeps subnormals and overflows to
/// infinity. The bit layout is the same as in __half.
struct Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

}  // namespace lockstep
