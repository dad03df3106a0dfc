#include "tests/kernels/grouped_copy_cases.hpp"

#include <cmath>

#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::CopyPair;

TEST(GroupedCopy, ByHand) {
  CpuContext context;
  std::vector<float> a{1, 2, 3};
  std::vector<float> a_copy(3, NAN);
  std::vector<std::int64_t> b{-4};
  std::vector<std::int64_t> b_copy(1, 0);
  const std::vector<CopyPair> pairs{{TensorView(std::span(a), Shape{3}), TensorView(std::span(a_copy), Shape{3})},
                                    {TensorView(std::span(b), Shape{}), TensorView(std::span(b_copy), Shape{})}};
  ops::grouped_copy(context, pairs);
  EXPECT_EQ(a_copy, a);
  EXPECT_EQ(b_copy, b);
}

TEST(GroupedCopy, MatchesTheNaiveLoop) {
  for (const OpCase& item : grouped_copy_cases()) {
    expect_matches(item, [&](Inputs in, Outputs expected) {
      for (std::size_t i = 0; i < in.size(); ++i) {
        expected[i].assign(in[i].values());
      }
    });
  }
}

TEST(GroupedCopy, KeepsTheBits) {
  CpuContext context;
  const GuardedTensor nan(Shape{5}, DType::f32);  // poisoned: all bits are 1
  GuardedTensor copy(Shape{5}, DType::f32, constant(0));
  ops::grouped_copy(context, std::vector<CopyPair>{{nan, copy}});
  expect_same_bits(copy, nan);
}

TEST(GroupedCopy, TheSameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_threads(grouped_copy_case("large", {{{3 << 18}, DType::f32}, {{7}, DType::u8}}));
}

TEST(GroupedCopy, RunsInStreamOrder) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  GuardedTensor a(Shape{100}, DType::f32, normal(1)), b(Shape{100}, DType::f32), c(Shape{100}, DType::f32);
  const std::vector<CopyPair> first{{a, b}};
  const std::vector<CopyPair> second{{b, c}};
  ops::grouped_copy(context, first);
  ops::grouped_copy(context, second);
  context.synchronize();
  expect_same_bits(c, a);
}

TEST(GroupedCopy, RefusesWhatTheContractExcludes) {
  CpuContext context;
  GuardedTensor a(Shape{2, 3}, DType::f32), b(Shape{2, 3}, DType::f32), wide(Shape{2, 3}, DType::f64);
  GuardedTensor good_src(Shape{4}, DType::f32, constant(1)), good_dst(Shape{4}, DType::f32, constant(2));
  const TensorView src = a;
  const TensorView dst = b;
  const auto call = [&](const TensorView& from, const TensorView& to) {
    ops::grouped_copy(context, std::vector<CopyPair>{{good_src, good_dst}, {from, to}});
  };
  TensorView bad = src;
  bad.device = Device::cuda(0);
  EXPECT_THROW(call(bad, dst), DeviceError);
  EXPECT_THROW(call(src, bad), DeviceError);
  EXPECT_THROW(call(src, dst.reshape(Shape{3, 2})), ShapeError);
  EXPECT_THROW(call(src, wide), DTypeError);
  EXPECT_THROW(call(src, src), ShapeError) << "overlap";
  EXPECT_THROW(call(src.slice(1, 0, 2), dst.slice(1, 0, 2)), ShapeError) << "not contiguous";
  EXPECT_THROW(call(src.slice(1, 0, 2), dst.reshape(Shape{6}).slice(0, 0, 4).reshape(Shape{2, 2})), ShapeError);
  EXPECT_THROW(call(src.reshape(Shape{6}).slice(0, 0, 4).reshape(Shape{2, 2}), dst.slice(1, 0, 2)), ShapeError);
  bad = dst;
  bad.data = nullptr;
  EXPECT_THROW(call(src, bad), ShapeError);
  EXPECT_THROW(call(bad, dst), ShapeError);
  EXPECT_EQ(good_dst.values(), std::vector<double>(4, 2)) << "no pair was copied";
  EXPECT_NO_THROW(call(src, dst));
  EXPECT_EQ(good_dst.values(), std::vector<double>(4, 1));
}

}  // namespace
}  // namespace lockstep::testing
