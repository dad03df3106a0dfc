#include <lockstep/runtime/base/half.hpp>

namespace lockstep {

// Numbers of bits for sign, exponent and fraction: binary32 has 1, 8 (bias 127) and 23; binary16 has 1, 5 (bias 15) and
// 10.
Float16::Float16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t magnitude = u & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13) & 0x1ffU);  // a NaN: sets the quiet bit and keeps the upper bits of the payload
  } else if (magnitude >= 0x477ff000U) {
    half = 0x7c00U;  // 65520 and larger round to infinity
  } else if (magnitude >= 0x38800000U) {
    // Normal results begin at 2^-14. The code changes the bias and drops 13 bits, with ties to even. If rounding
    // overflows the fraction, the carry increments the exponent, which gives the correct result.
    const std::uint32_t rebased = magnitude - 0x38000000U;
    half = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
  } else if (magnitude >= 0x33000000U) {
    // Magnitudes of at least 2^-25 can give subnormal results. Their significand counts units of 2^-24.
    const std::uint32_t exponent = magnitude >> 23;  // in the range 102 to 112
    const std::uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
    const std::uint32_t shift = 126U - exponent;  // in the range 14 to 24
    const std::uint32_t rest = significand & ((1U << shift) - 1U);
    const std::uint32_t tie = 1U << (shift - 1U);
    half = significand >> shift;
    half += static_cast<std::uint32_t>(rest > tie || (rest == tie && (half & 1U) != 0));
  }
  bits = static_cast<std::uint16_t>(sign | half);
}

Float16::operator float() const {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;  // this conversion is exact
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

}  // namespace lockstep
