// Tests copies on a GPU: values out of range of the target type, integers that double cannot represent, NaN, more than
// 2^31 elements, errors. cuda_cases_test.cpp runs the test cases that every op has.
#include <cmath>
#include <limits>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/kernels/strided_copy_cases.hpp"
#include "tests/support/cuda_test.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using CudaStridedCopy = CudaTest;

/// Runs the test case on both devices with the same input bits, not converted through double, and compares the outputs'
/// bits.
void expect_host_bits(const OpCase& item, Context& host, Context& device) {
  expect_same_outputs(CheckedRun(item, device), CheckedRun(item, host), item.name);
}

TEST_F(CudaStridedCopy, FloatingToIntegerStopsAtTheRange) {
  const std::vector<double> list{HUGE_VAL,
                                 -HUGE_VAL,
                                 std::nan(""),
                                 1e30,
                                 -1e30,
                                 255.5,
                                 256,
                                 -0.75,
                                 2147483647.9,
                                 2147483648.0,
                                 -2147483648.,
                                 -2147483648.9,
                                 2147483520.0,
                                 9.2233720e18,
                                 9223372036854775808.0,
                                 -9.3e18,
                                 1.8446743e19,
                                 18446744073709551616.0,
                                 254.99,
                                 0};
  for (const DType from : kFloatingTypes) {
    for (const DType to : {DType::u8, DType::i32, DType::i64, DType::u64}) {
      OpCase item = strided_copy_case(cast_copy({static_cast<std::int64_t>(list.size())}, from, to));
      item.inputs[0].start = values(list);
      expect_host_bits(item, cpu(), cuda());
    }
  }
}

TEST_F(CudaStridedCopy, IntegersThatDoubleDoesNotHave) {
  const std::vector<std::int64_t> list{
      0,
      -1,
      (std::int64_t{1} << 53) + 1,
      (std::int64_t{1} << 24) + 1,
      (std::int64_t{1} << 60) + (std::int64_t{1} << 36) + 1,  // converting to f32 through f64 would round differently
      std::numeric_limits<std::int64_t>::max(),
      std::numeric_limits<std::int64_t>::min(),
      0x123456789abcdef0};
  const auto start = [&](GuardedTensor& tensor) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      static_cast<std::int64_t*>(tensor.view().data)[i] = list[i];
    }
  };
  for (const DType from : {DType::i64, DType::u64}) {
    for (const DType to :
         {DType::f32, DType::f64, DType::bf16, DType::f16, DType::u8, DType::i32, DType::i64, DType::u64}) {
      OpCase item = strided_copy_case(cast_copy({static_cast<std::int64_t>(list.size())}, from, to));
      item.inputs[0].start = start;
      expect_host_bits(item, cpu(), cuda());
    }
  }
}

TEST_F(CudaStridedCopy, SpecialFloatingValues) {
  const std::vector<double> list{-0.0, HUGE_VAL, -HUGE_VAL, 1e-310, 1e-40, 65520, 65519, 3.4e38, 1e300, 6e-8};
  for (const DType from : kFloatingTypes) {
    for (const DType to : kFloatingTypes) {
      OpCase item = strided_copy_case(cast_copy({static_cast<std::int64_t>(list.size())}, from, to));
      item.inputs[0].start = values(list);
      expect_host_bits(item, cpu(), cuda());
      item.inputs[0].start = constant(std::nan(""));
      const CheckedRun nan(item, cuda());
      for (const double value : nan.output(0).values()) {
        EXPECT_TRUE(std::isnan(value)) << from << " to " << to;
      }
    }
  }
}

TEST_F(CudaStridedCopy, OneTypeKeepsTheBits) {
  OpCase item = strided_copy_case(permuted_copy({33, 40}, {1, 0}, DType::f32, DType::f32));
  item.inputs[0].start = {};  // poisoned: NaN with all bits 1
  expect_host_bits(item, cpu(), cuda());
}

TEST_F(CudaStridedCopy, Beyond2To31Elements) {
  run_large([&] {
    constexpr std::int64_t kColumns = 160;
    const std::int64_t kRows = kLarge / kColumns + 16;
    const Tensor src = Tensor::empty(cuda(), Shape{kRows, kColumns}, DType::u8);
    const Tensor dst = Tensor::empty(cuda(), Shape{kColumns, kRows}, DType::u8);
    ops::fill(cuda(), 1, src);
    ops::fill(cuda(), 9, src.view().slice(0, kRows - 1, kRows));  // the last row, which becomes the last column
    ops::strided_copy(cuda(), src.view().permute({1, 0}), dst);
    const auto expect_end = [&](const TensorView& view, double before_the_end, double end) {
      const TensorView line = view.reshape(Shape{view.numel()});
      const std::vector<double> corner = fetch(line.slice(0, line.numel() - 16, line.numel()));
      for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(corner[i], i == 15 ? end : before_the_end) << i;
      }
    };
    expect_end(dst, 1, 9);
    ops::fill(cuda(), 2, dst.view().slice(0, kColumns - 1, kColumns));
    ops::strided_copy(cuda(), dst, src.view().reshape(Shape{kColumns, kRows}));  // copies by rows
    expect_end(src, 2, 2);
  });
}

TEST_F(CudaStridedCopy, RefusesWhatTheContractExcludes) {
  const Tensor memory = Tensor::zeros(cuda(), Shape{64}, DType::f32);
  const Tensor other = Tensor::zeros(cuda(), Shape{16}, DType::bf16);
  TensorView odd(static_cast<std::byte*>(memory.view().data) + 2, DType::f32, cuda().device(), Shape{16});
  EXPECT_THROW(ops::strided_copy(cuda(), odd, other), ShapeError);
  EXPECT_THROW(ops::strided_copy(cuda(), other, odd), ShapeError);
  odd.data = memory.view().data;
  EXPECT_NO_THROW(ops::strided_copy(cuda(), odd, other));
  const GuardedTensor host(Shape{16}, DType::f32);
  EXPECT_THROW(ops::strided_copy(cuda(), host, odd), DeviceError) << "copy() goes across devices";
}

}  // namespace
}  // namespace lockstep::testing
