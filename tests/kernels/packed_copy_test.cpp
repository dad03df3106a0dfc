// On the host a packed copy is a grouped copy; what it refuses is the same on a GPU (packed_copy_cuda_test.cpp).
#include "tests/kernels/packed_copy_support.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

using ops::CopyPair;
using ops::PackedCopy;

template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span(values), Shape{static_cast<std::int64_t>(values.size())}};
}

TEST(PackedCopy, IsAGroupedCopyOnTheHost) {
  Stream worker = Stream::host_worker("w");
  CpuContext context({.stream = &worker});
  std::vector<float> a{1, 2, 3};
  std::vector<float> b(3, NAN);
  std::vector<float> c(3, NAN);
  std::vector<std::int64_t> d{-4};
  std::vector<std::int64_t> e{0};
  const std::vector<CopyPair> first{{view_of(a), view_of(b)}, {view_of(d), view_of(e)}};
  const std::vector<CopyPair> second{{view_of(b), view_of(c)}, {view_of(d), view_of(e)}};
  PackedCopy packed(context, first, {.largest_packed = 4});
  EXPECT_EQ(packed.packed_bytes(), 0U);
  packed.run(first);
  packed.run(second);  // in stream order
  context.synchronize();
  EXPECT_EQ(c, a);
  EXPECT_EQ(e, d);
  EXPECT_EQ(context.copied().host_to_host, 0U);
}

TEST(PackedCopy, NothingToCopy) {
  CpuContext context;
  PackedCopy packed(context, {});
  EXPECT_NO_THROW(packed.run({}));
}

TEST(PackedCopy, RefusesWhatThePlanDoesNotKnow) {
  CpuContext context;
  std::vector<float> a{1, 2}, b{0, 0}, c{3, 4, 5}, d{0, 0, 0};
  std::vector<std::int32_t> i{1, 2}, j{0, 0};
  const CopyPair floats{view_of(a), view_of(b)};
  const std::vector<CopyPair> plan{floats, {view_of(c), view_of(d)}};
  PackedCopy packed(context, plan);
  const auto run = [&](const std::vector<CopyPair>& pairs) { packed.run(pairs); };
  EXPECT_THROW(run({}), ShapeError);
  EXPECT_THROW(run({floats}), ShapeError);
  EXPECT_THROW(run({floats, floats}), ShapeError);
  EXPECT_THROW(run({{view_of(i), view_of(j)}, plan[1]}), DTypeError);
  EXPECT_THROW(run({{view_of(a), view_of(j)}, plan[1]}), DTypeError);
  EXPECT_THROW(run({{view_of(a), view_of(a)}, plan[1]}), ShapeError) << "overlap";
  EXPECT_THROW(run({floats, {plan[1].src, view_of(b)}}), ShapeError);
  CopyPair bad = floats;
  bad.dst.device = Device::cuda(0);
  EXPECT_THROW(run({bad, plan[1]}), DeviceError);
  EXPECT_THROW(PackedCopy(context, std::vector<CopyPair>{bad}), DeviceError);
  bad = floats;
  bad.src.data = nullptr;
  EXPECT_THROW(run({bad, plan[1]}), ShapeError);
  EXPECT_EQ(b, (std::vector<float>{0, 0})) << "no pair was copied";
  EXPECT_EQ(d, (std::vector<float>{0, 0, 0}));
  run(plan);
  EXPECT_EQ(b, a);
  EXPECT_EQ(d, c);
}

TEST(PackedCopy, RefusesOptionsOutOfRange) {
  CpuContext context;
  EXPECT_THROW(PackedCopy(context, {}, {.threads = -1}), UsageError);
  EXPECT_THROW(PackedCopy(context, {}, {.largest_packed = std::size_t{1} << 31}), UsageError);
  EXPECT_NO_THROW(PackedCopy(context, {}, {.largest_packed = 0}));
}

}  // namespace
}  // namespace lockstep
