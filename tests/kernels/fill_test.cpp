#include "tests/kernels/fill_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

/// Returns the bits of 3.75 as written by hand: the IEEE pattern for floating types, and 3 for integers.
std::uint64_t bits_of_3_75(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x40700000;
    case DType::f64:
      return 0x400E000000000000;
    case DType::bf16:
      return 0x4070;
    case DType::f16:
      return 0x4380;
    default:
      return 3;
  }
}

TEST(Fill, EveryTypeAndShapeHoldsTheBitsOfTheValueEverywhere) {
  for (const OpCase& item : fill_cases()) {
    expect_matches(item, [&](Inputs, Outputs expected) {
      const std::uint64_t bits = bits_of_3_75(item.dtype);
      auto* bytes = static_cast<std::uint8_t*>(expected[0].view().data);
      for (std::size_t i = 0; i < expected[0].view().bytes(); ++i) {
        bytes[i] = static_cast<std::uint8_t>(bits >> (i % size_of(item.dtype) * 8));  // little endian
      }
    });
  }
}

TEST(Fill, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(fill_case(0.1, Shape{200003}, DType::f32));
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

TEST(Fill, RunsOnAWorkerStream) {
  Stream stream = Stream::host_worker("fill");
  CpuContext context({.threads = 1, .stream = &stream});
  std::vector<double> values(1001, 0.0);
  ops::fill(context, 2.5, TensorView(std::span(values), Shape{7, 11, 13}));
  context.synchronize();
  EXPECT_EQ(values, std::vector<double>(1001, 2.5));
}

TEST(Fill, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor tensor(Shape{2, 3}, DType::f32);
  EXPECT_THROW(ops::fill(context, 0, TensorView()), ShapeError);
  EXPECT_THROW(ops::fill(context, 0, tensor.view().permute({1, 0})), ShapeError);
  EXPECT_THROW(ops::fill(context, 0, with(tensor, &TensorView::device, Device::cuda(0))), DeviceError);
}

}  // namespace
}  // namespace lockstep::testing
