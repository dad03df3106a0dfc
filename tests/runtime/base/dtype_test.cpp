#include <lockstep/runtime/base/dtype.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <lockstep/runtime/base/random.hpp>

namespace lockstep::testing {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                          DType::u8,  DType::i32, DType::i64,  DType::u64};

TEST(DType, NamesSizesAndKinds) {
  const char* names[] = {"f32", "f64", "bf16", "f16", "u8", "i32", "i64", "u64"};
  const std::size_t sizes[] = {4, 8, 2, 2, 1, 4, 8, 8};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(name_of(kAll[i]), names[i]);
    EXPECT_EQ(size_of(kAll[i]), sizes[i]);
    EXPECT_EQ(parse_dtype(names[i]), kAll[i]);
    EXPECT_EQ(is_floating(kAll[i]), i < 4);
    EXPECT_EQ(concat(kAll[i]), names[i]);
    visit_dtype(kAll[i], [&](auto type) {
      using T = typename decltype(type)::type;
      EXPECT_EQ(dtype_of<T>, kAll[i]);
      EXPECT_EQ(dtype_of<const T>, kAll[i]);
      EXPECT_EQ(sizeof(T), sizes[i]);
    });
  }
}

TEST(DType, ParseRefusesOtherText) {
  for (const char* text : {"", "f33", "F32", "float", "f32 ", "bf16x"}) {
    EXPECT_THROW(static_cast<void>(parse_dtype(text)), UsageError) << text;
  }
  EXPECT_THROW(static_cast<void>(size_of(static_cast<DType>(9))), DTypeError);
}

TEST(DType, VisitComputeTakesF32AndF64Only) {
  for (const DType dtype : kAll) {
    std::size_t size = 0;
    const auto visit = [&] {
      visit_compute(dtype, "op", [&](auto type) { size = sizeof(typename decltype(type)::type); });
    };
    if (dtype == DType::f32 || dtype == DType::f64) {
      visit();
      EXPECT_EQ(size, size_of(dtype));
    } else {
      EXPECT_THROW(visit(), DTypeError);
    }
  }
}

float half_to_float(std::uint16_t bits) {
  Float16 half;
  half.bits = bits;
  return static_cast<float>(half);
}

float bfloat_to_float(std::uint16_t bits) {
  BFloat16 half;
  half.bits = bits;
  return static_cast<float>(half);
}

/// Returns the value of a pattern with the given field widths, from the definition of the format.
double value_of(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int sign = bits >> 15;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    magnitude = std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
  return sign != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryPatternHasItsValueAndComesBack) {
  for (unsigned i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double half = value_of(bits, 5, 10);
    const double bfloat = value_of(bits, 8, 7);
    if (std::isnan(half)) {
      ASSERT_TRUE(std::isnan(half_to_float(bits))) << i;
      ASSERT_EQ(Float16(half_to_float(bits)).bits, bits | 0x200U) << i;  // the NaN becomes quiet
    } else {
      ASSERT_EQ(half_to_float(bits), half) << i;
      ASSERT_EQ(Float16(half_to_float(bits)).bits, bits) << i;  // holds for signed zeros, too
    }
    if (std::isnan(bfloat)) {
      ASSERT_TRUE(std::isnan(bfloat_to_float(bits))) << i;
      ASSERT_EQ(BFloat16(bfloat_to_float(bits)).bits, bits | 0x40U) << i;
    } else {
      ASSERT_EQ(bfloat_to_float(bits), bfloat) << i;
      ASSERT_EQ(BFloat16(bfloat_to_float(bits)).bits, bits) << i;
    }
  }
}

/// Checks rounding between all pairs of neighbouring numbers of type Half. A float in the middle must be rounded to the
/// number with an even fraction. A float one ulp below or above the middle must be rounded to the nearer number.
template <class Half>
void check_rounding(std::uint16_t largest, float (*to_float)(std::uint16_t), double above_largest) {
  for (std::uint16_t low = 0; low <= largest; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double upper = low == largest ? above_largest : to_float(high);
    const auto tie = static_cast<float>((static_cast<double>(to_float(low)) + upper) / 2);  // exact in binary32
    const std::uint16_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0F, -1.0F}) {
      const unsigned sign_bit = sign < 0 ? 0x8000U : 0U;
      ASSERT_EQ(Half(sign * tie).bits, even | sign_bit) << low;
      ASSERT_EQ(Half(sign * std::nextafter(tie, 0.0F)).bits, low | sign_bit) << low;
      ASSERT_EQ(Half(sign * std::nextafter(tie, HUGE_VALF)).bits, high | sign_bit) << low;
    }
  }
}

TEST(Half, RoundsToNearestEvenAndOverflowsToInfinity) {
  check_rounding<Float16>(0x7bff, half_to_float, 65536.0);
  check_rounding<BFloat16>(0x7f7e, bfloat_to_float, bfloat_to_float(0x7f7f));
  EXPECT_EQ(Float16(1e30F).bits, 0x7c00);
  EXPECT_EQ(Float16(-HUGE_VALF).bits, 0xfc00);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(Float16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(Float16(std::bit_cast<float>(0x7f800001U)).bits, 0x7e00);  // a NaN whose payload does not fit into the half
}

}  // namespace
}  // namespace lockstep::testing
