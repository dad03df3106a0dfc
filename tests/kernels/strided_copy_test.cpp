#include "tests/kernels/strided_copy_cases.hpp"

#include <cmath>
#include <limits>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

TEST(StridedCopy, ByHand) {
  CpuContext context;
  std::vector<float> src{1, 2, 3, 4, 5, 6};  // a matrix of 2 x 3
  std::vector<float> turned(6, NAN);
  const TensorView from(std::span<float>(src), Shape{2, 3});
  const TensorView to(std::span<float>(turned), Shape{3, 2});
  ops::strided_copy(context, from.permute({1, 0}), to);
  EXPECT_EQ(turned, (std::vector<float>{1, 4, 2, 5, 3, 6}));
  std::vector<std::int32_t> padded(12, -1);  // 3 x 4; the 2 x 3 matrix goes to rows 1 and 2, columns 1 to 3
  ops::strided_copy(context, from,
                    TensorView(std::span<std::int32_t>(padded), Shape{3, 4}).slice(0, 1, 3).slice(1, 1, 4));
  EXPECT_EQ(padded, (std::vector<std::int32_t>{-1, -1, -1, -1, -1, 1, 2, 3, -1, 4, 5, 6}));
}

TEST(StridedCopy, ConversionsAreThoseOfCopy) {
  CpuContext context;
  std::vector<double> src{2.75, -2.75, 3e9, -3e9, std::nan("")};
  std::vector<std::int32_t> i32(5, 7);
  ops::strided_copy(context, TensorView(std::span(src), Shape{5}), TensorView(std::span(i32), Shape{5}));
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(i32, (std::vector<std::int32_t>{2, -2, kMost, -kMost - 1, 0}));
  std::vector<std::uint8_t> u8(5, 7);
  ops::strided_copy(context, TensorView(std::span(src), Shape{5}), TensorView(std::span(u8), Shape{5}));
  EXPECT_EQ(u8, (std::vector<std::uint8_t>{2, 0, 255, 0, 0}));
  std::vector<std::int64_t> i64{(std::int64_t{1} << 53) + 1, -1};
  std::vector<std::uint8_t> low(2, 7);
  ops::strided_copy(context, TensorView(std::span(i64), Shape{2}), TensorView(std::span(low), Shape{2}));
  EXPECT_EQ(low, (std::vector<std::uint8_t>{1, 255}));
}

/// Compares the op with a loop that copies all elements of the views through double, in row-major order.
TEST(StridedCopy, MatchesTheNaiveLoop) {
  for (const StridedCopyParams& p : all_strided_copies()) {
    expect_matches(strided_copy_case(p), [&](Inputs in, Outputs expected) {
      from_doubles(to_doubles(p.src_view(in[0])), p.dst_view(expected[0]));
    });
  }
}

TEST(StridedCopy, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(strided_copy_case(permuted_copy({211, 307}, {1, 0}, DType::f32, DType::bf16)));
}

TEST(StridedCopy, RunsInStreamOrder) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  GuardedTensor a(Shape{100, 30}, DType::f32), b(Shape{30, 100}, DType::f32), c(Shape{100, 30}, DType::f32);
  a.normal(1);
  ops::strided_copy(context, a.view().permute({1, 0}), b);
  ops::strided_copy(context, b.view().permute({1, 0}), c);
  context.synchronize();
  expect_same_bits(c, a);
}

TEST(StridedCopy, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor a(Shape{2, 3}, DType::f32), b(Shape{2, 3}, DType::f32), line(Shape{10}, DType::f32);
  const TensorView src = a;
  const TensorView dst = b;
  const auto call = [&](const TensorView& from, const TensorView& to) { ops::strided_copy(context, from, to); };
  EXPECT_NO_THROW(call(src, dst));
  TensorView bad = src;
  bad.device = Device::cuda(0);
  EXPECT_THROW(call(bad, dst), DeviceError);
  EXPECT_THROW(call(src, bad), DeviceError);
  EXPECT_THROW(call(src, dst.reshape(Shape{3, 2})), ShapeError);
  EXPECT_THROW(call(src, dst.reshape(Shape{6})), ShapeError);
  EXPECT_THROW(call({}, dst), ShapeError);
  EXPECT_THROW(call(src, {}), ShapeError);
  EXPECT_THROW(call({}, {}), ShapeError) << "rank 0 has one element";
  bad = dst;
  bad.data = nullptr;
  EXPECT_THROW(call(src, bad), ShapeError);
  EXPECT_THROW(call(bad, dst), ShapeError);
  bad = dst;
  bad.strides[0] = 0;
  EXPECT_THROW(call(src, bad), ShapeError);
  EXPECT_NO_THROW(call(bad, src)) << "broadcast";
  bad.shape[0] = 1;
  EXPECT_NO_THROW(call(src.slice(0, 0, 1), bad)) << "one element with stride 0";
  EXPECT_THROW(call(src, src), ShapeError);
  EXPECT_THROW(call(line.view().slice(0, 0, 6), line.view().slice(0, 4, 10)), ShapeError);
  EXPECT_NO_THROW(call(line.view().slice(0, 0, 5), line.view().slice(0, 5, 10)));
  const TensorView nothing(nullptr, DType::f32, Device::cpu(), Shape{0, 3});
  EXPECT_NO_THROW(call(nothing, nothing));
}

}  // namespace
}  // namespace lockstep::testing
