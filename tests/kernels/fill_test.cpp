#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <lockstep/kernels/fill.hpp>

#include "tests/kernels/fill_cases.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kGuard = 64;
constexpr unsigned char kPoison = 0xA5;

/// Fills poisoned memory and returns the bytes of the elements; the bytes on both sides must stay as they are.
std::vector<unsigned char> filled(Context& context, double value, const Shape& shape, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  std::vector<unsigned char> memory(bytes + 2 * kGuard, kPoison);
  ops::fill(context, value, TensorView(memory.data() + kGuard, dtype, Device::cpu(), shape));
  context.synchronize();
  for (std::size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(memory[i], kPoison);
    EXPECT_EQ(memory[kGuard + bytes + i], kPoison);
  }
  return {memory.begin() + kGuard, memory.end() - kGuard};
}

TEST(Fill, EveryTypeAndShapeHasTheBytesOfOneElementEverywhere) {
  CpuContext context({.threads = 2});
  for (const DType dtype : testing::all_dtypes()) {
    unsigned char expected[8] = {};
    // 3.75 by hand: IEEE bit patterns of the floating types, 3 in the integers.
    switch (dtype) {
      case DType::f32: {
        const std::uint32_t bits = 0x40700000U;
        std::memcpy(expected, &bits, sizeof bits);
        break;
      }
      case DType::f64: {
        const std::uint64_t bits = 0x400E000000000000ULL;
        std::memcpy(expected, &bits, sizeof bits);
        break;
      }
      case DType::bf16: {
        const std::uint16_t bits = 0x4070U;
        std::memcpy(expected, &bits, sizeof bits);
        break;
      }
      case DType::f16: {
        const std::uint16_t bits = 0x4380U;
        std::memcpy(expected, &bits, sizeof bits);
        break;
      }
      default:
        expected[0] = 3;  // little endian
    }
    for (const Shape& shape : testing::fill_shapes()) {
      const auto bytes = filled(context, 3.75, shape, dtype);
      bool same = true;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        same = same && bytes[i] == expected[i % size_of(dtype)];
      }
      EXPECT_TRUE(same) << name_of(dtype) << " " << shape;
    }
  }
}

TEST(Fill, TheSameBytesForAnyNumberOfThreads) {
  CpuContext one({.threads = 1});
  const Shape shape{200003};
  const auto expected = filled(one, 0.1, shape, DType::f32);
  for (const int threads : {2, 3}) {
    CpuContext context({.threads = threads});
    EXPECT_EQ(filled(context, 0.1, shape, DType::f32), expected);
    EXPECT_NE(filled(context, 0.100001, shape, DType::f32), expected);
  }
}

TEST(Fill, SpecialValues) {
  CpuContext context;
  float value = 0;
  const TensorView out(std::span(&value, 1), Shape{});
  ops::fill(context, std::numeric_limits<double>::quiet_NaN(), out);
  EXPECT_TRUE(std::isnan(value));
  ops::fill(context, -std::numeric_limits<double>::infinity(), out);
  EXPECT_EQ(value, -std::numeric_limits<float>::infinity());
  ops::fill(context, -0.0, out);
  EXPECT_TRUE(value == 0 && std::signbit(value));
}

TEST(Fill, IntegersTakeWhatFitsAndRefuseTheRest) {
  CpuContext context;
  std::uint8_t byte = 7;
  const TensorView u8(std::span(&byte, 1), Shape{1});
  ops::fill(context, 255.9, u8);
  EXPECT_EQ(byte, 255);
  ops::fill(context, -0.9, u8);
  EXPECT_EQ(byte, 0);
  for (const double value : {256.0, -1.0, 1e300, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    EXPECT_THROW(ops::fill(context, value, u8), UsageError) << value;
  }
  std::int64_t word = 0;
  const TensorView i64(std::span(&word, 1), Shape{1});
  ops::fill(context, -9223372036854775808.0, i64);
  EXPECT_EQ(word, std::numeric_limits<std::int64_t>::min());
  EXPECT_THROW(ops::fill(context, 9223372036854775808.0, i64), UsageError);
  std::int32_t half = 0;
  const TensorView i32(std::span(&half, 1), Shape{1});
  ops::fill(context, -2147483648.5, i32);
  EXPECT_EQ(half, std::numeric_limits<std::int32_t>::min());
  EXPECT_THROW(ops::fill(context, 2147483648.0, i32), UsageError);
}

TEST(Fill, WorkerStreamRunsIt) {
  Stream stream = Stream::host_worker("fill");
  CpuContext context({.threads = 1, .stream = &stream});
  std::vector<double> values(1001, 0.0);
  ops::fill(context, 2.5, TensorView(std::span(values), Shape{7, 11, 13}));
  context.synchronize();
  EXPECT_EQ(values, std::vector<double>(1001, 2.5));
}

TEST(Fill, RefusesWhatTheContractExcludes) {
  CpuContext context;
  std::vector<float> values(6);
  EXPECT_THROW(ops::fill(context, 0, TensorView()), ShapeError);
  EXPECT_THROW(ops::fill(context, 0, TensorView(values.data(), DType::f32, Device::cpu(), Shape{2, 3}, Strides{1, 2})),
               ShapeError);
  EXPECT_THROW(ops::fill(context, 0, TensorView(values.data(), DType::f32, Device::cuda(0), Shape{6})), DeviceError);
}

}  // namespace
}  // namespace lockstep
