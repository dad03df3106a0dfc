#include <lockstep/runtime/tensor/shape.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lockstep::testing {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(Shape, Basics) {
  Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.back(), 5);
  EXPECT_EQ(shape.numel(), 30);
  EXPECT_EQ(concat(shape), "(2, 3, 5)");
  EXPECT_EQ(contiguous_strides(shape), (Strides{15, 5, 1}));
  shape.push_back(7);
  EXPECT_EQ(shape, (Shape{2, 3, 5, 7}));
  EXPECT_NE(shape, (Shape{2, 3, 5}));
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(concat(Shape{}), "()");
  EXPECT_EQ(concat(Shape{4}), "(4)");
}

TEST(Shape, RankIsAtMostEight) {
  const std::vector<std::int64_t> eight(8, 1);
  const std::vector<std::int64_t> nine(9, 1);
  Shape shape{std::span<const std::int64_t>(eight)};
  EXPECT_EQ(shape.rank(), 8);
  EXPECT_THROW(shape.push_back(1), ShapeError);
  EXPECT_EQ(shape.rank(), 8);
  EXPECT_THROW(Shape{std::span<const std::int64_t>(nine)}, ShapeError);
}

TEST(Shape, CountsUpToTwoToThe63) {
  EXPECT_EQ((Shape{std::int64_t{1} << 31, 3}).numel(), std::int64_t{3} << 31);
  EXPECT_EQ((Shape{kMax, 1}).numel(), kMax);
  EXPECT_THROW(static_cast<void>((Shape{kMax, 2}).numel()), ShapeError);
  EXPECT_THROW(static_cast<void>((Shape{std::int64_t{1} << 32, std::int64_t{1} << 31}).numel()), ShapeError);
  EXPECT_THROW(static_cast<void>((Shape{3, -1}).numel()), ShapeError);
  EXPECT_THROW(static_cast<void>((Shape{0, -1}).numel()), ShapeError);
  EXPECT_EQ((Shape{kMax, 0, kMax}).numel(), 0);
  EXPECT_THROW(static_cast<void>(contiguous_strides(Shape{kMax, kMax, 2})), ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
