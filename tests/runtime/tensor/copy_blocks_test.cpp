// Tests the decisions that copy() makes before it calls CUDA: the order of loops, blocks and boxes. The tested
// functions are pure.
#include <lockstep/runtime/detail/copy_blocks.hpp>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lockstep::detail {
namespace {

CopyLoops loops_of(std::vector<std::int64_t> extent, std::vector<std::int64_t> src, std::vector<std::int64_t> dst) {
  CopyLoops loops;
  loops.rank = static_cast<int>(extent.size());
  std::copy(extent.begin(), extent.end(), loops.extent);
  std::copy(src.begin(), src.end(), loops.src);
  std::copy(dst.begin(), dst.end(), loops.dst);
  return loops;
}

/// Offsets (src, dst) of the copied elements.
using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
Pairs sorted(Pairs pairs) {
  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return pairs;
}
Pairs elements_of(const CopyLoops& loops) {
  Pairs pairs;
  for_each_index(loops, [&](std::int64_t src, std::int64_t dst) { pairs.emplace_back(src, dst); });
  return sorted(pairs);
}

/// Returns the elements that the calls of a plan move, in units of `size` bytes; empty when a call breaks CUDA's rules.
Pairs moved_by(const BlockPlan& plan, std::size_t size) {
  const CopyBlock& b = plan.block;
  const auto at = [](std::int64_t slice, std::int64_t rows, std::int64_t row, std::size_t pitch) {
    return (slice * rows + row) * static_cast<std::int64_t>(pitch);
  };
  bool legal = b.width > 0 && b.height > 0 && b.depth > 0;
  if (b.height > 1 || b.depth > 1) {
    legal = legal && b.src_pitch >= b.width && b.dst_pitch >= b.width && b.src_pitch < (1U << 31U) &&
            b.dst_pitch < (1U << 31U);
  }
  legal = legal && (b.depth == 1 || (b.src_rows >= b.height && b.dst_rows >= b.height));
  Pairs pairs;
  for_each_index(plan.outer, [&](std::int64_t src, std::int64_t dst) {
    for (std::int64_t slice = 0; slice < b.depth; ++slice) {
      for (std::int64_t row = 0; row < b.height; ++row) {
        for (std::size_t byte = 0; byte < b.width; byte += size) {
          const auto size64 = static_cast<std::int64_t>(size);
          const auto inside = static_cast<std::int64_t>(byte);
          pairs.emplace_back((src + at(slice, b.src_rows, row, b.src_pitch) + inside) / size64,
                             (dst + at(slice, b.dst_rows, row, b.dst_pitch) + inside) / size64);
        }
      }
    }
  });
  return legal ? sorted(pairs) : Pairs{};
}

TEST(CopyBlocks, OneCallForRowsPlanesAndStacks) {
  BlockPlan plan = plan_blocks(loops_of({30}, {1}, {1}), 4);
  EXPECT_EQ(plan.block.width, 120U);
  EXPECT_EQ(plan.block.height, 1);
  EXPECT_EQ(plan.blocks(), 1);

  plan = plan_blocks(loops_of({6, 5}, {10, 1}, {5, 1}), 4);
  EXPECT_EQ(plan.block.width, 20U);
  EXPECT_EQ(plan.block.height, 6);
  EXPECT_EQ(plan.block.src_pitch, 40U);
  EXPECT_EQ(plan.block.dst_pitch, 20U);
  EXPECT_EQ(plan.blocks(), 1);

  plan = plan_blocks(loops_of({3, 6, 5}, {80, 10, 1}, {42, 7, 1}), 2);
  EXPECT_EQ(plan.block.depth, 3);
  EXPECT_EQ(plan.block.src_rows, 8);
  EXPECT_EQ(plan.block.dst_rows, 6);
  EXPECT_EQ(plan.blocks(), 1);

  plan = plan_blocks(loops_of({2, 3, 6, 5}, {1000, 80, 10, 1}, {1000, 42, 7, 1}), 8);
  EXPECT_EQ(plan.block.depth, 3);
  EXPECT_EQ(plan.outer.rank, 1);
  EXPECT_EQ(plan.outer.src[0], 8000);
  EXPECT_EQ(plan.blocks(), 2);

  plan = plan_blocks(loops_of({7}, {2}, {3}), 4);  // single elements are rows, too
  EXPECT_EQ(plan.block.width, 4U);
  EXPECT_EQ(plan.block.height, 7);
}

TEST(CopyBlocks, WhatCudaCannotSayIsLeftOutside) {
  EXPECT_EQ(plan_blocks(loops_of({3, 6, 5}, {75, 10, 1}, {42, 7, 1}), 4).blocks(), 3) << "75 is no number of rows";
  EXPECT_EQ(plan_blocks(loops_of({3, 6, 5}, {50, 10, 1}, {42, 7, 1}), 4).blocks(), 3) << "slices overlap";
  EXPECT_EQ(plan_blocks(loops_of({6, 5}, {4, 1}, {5, 1}), 4).blocks(), 6) << "rows overlap";
  EXPECT_EQ(plan_blocks(loops_of({6, 5}, {0, 1}, {5, 1}), 4).blocks(), 6) << "one row for all";
  EXPECT_EQ(plan_blocks(loops_of({6, 5}, {-5, 1}, {5, 1}), 4).blocks(), 6) << "from the last row";
  constexpr std::int64_t kPitch = (std::int64_t{1} << 29) - 1;  // largest allowed pitch, in elements of 4 bytes
  EXPECT_EQ(plan_blocks(loops_of({6, 5}, {kPitch, 1}, {5, 1}), 4).blocks(), 1);
  EXPECT_EQ(plan_blocks(loops_of({6, 5}, {kPitch + 1, 1}, {5, 1}), 4).blocks(), 6);
  EXPECT_EQ(plan_blocks(loops_of({6, 5}, {5, 1}, {std::int64_t{1} << 40, 1}), 4).blocks(), 6);
}

TEST(CopyBlocks, ReversedTargetsAreTurnedRound) {
  const Shape shape{4, 3};
  const TensorView src(nullptr, DType::f32, Device::cpu(), shape, {3, 1});
  const TensorView dst(nullptr, DType::f32, Device::cpu(), shape, {-10, -2});
  const OrderedLoops ordered = order_loops(src, dst);
  EXPECT_EQ(ordered.src_offset, 11);
  EXPECT_EQ(ordered.dst_offset, -34);
  EXPECT_EQ(ordered.loops.dst[0], 10);
  EXPECT_EQ(ordered.loops.src[1], -1);
  EXPECT_FALSE(has_rows(ordered.loops));
  const OrderedLoops both = order_loops(dst, dst);
  EXPECT_EQ(both.loops.src[1], 2);
  EXPECT_EQ(both.loops.dst[1], 2);
}

/// For random loops, a plan must move each element exactly once, to the right offset. Boxes must cover each element
/// once and must not be too large.
TEST(CopyBlocks, AnyLoops) {
  std::mt19937 random(1);
  int several = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto pick = [&](int most) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(most)); };
    Shape shape;
    Strides src;
    Strides dst;
    std::int64_t src_stride = 1 + pick(2);
    std::int64_t dst_stride = 1 + pick(2);
    const auto rank = static_cast<int>(pick(5));
    for (int axis = 0; axis < rank; ++axis) {
      const std::int64_t extent = 1 + pick(4);
      shape.push_back(extent);
      src.push_back(pick(6) == 0 ? 0 : (pick(6) == 0 ? -src_stride : src_stride));
      dst.push_back(pick(6) == 0 ? -dst_stride : dst_stride);
      src_stride *= extent + (pick(2) == 0 ? 0 : pick(3));
      dst_stride *= extent + (pick(2) == 0 ? 0 : pick(3));
    }
    const TensorView from(nullptr, DType::f32, Device::cpu(), shape, src);
    const TensorView to(nullptr, DType::f32, Device::cpu(), shape, dst);
    const OrderedLoops ordered = order_loops(from, to);
    Pairs expected =
        elements_of(loops_of({shape.begin(), shape.end()}, {src.begin(), src.end()}, {dst.begin(), dst.end()}));
    for (auto& [a, b] : expected) {
      a -= ordered.src_offset;
      b -= ordered.dst_offset;
    }
    const CopyLoops& loops = ordered.loops;
    ASSERT_EQ(elements_of(loops), expected) << shape << src << dst;
    for (const std::size_t size : {1U, 4U, 8U}) {
      const BlockPlan plan = plan_blocks(loops, size);
      several += plan.blocks() > 1 ? 1 : 0;
      ASSERT_EQ(moved_by(plan, size), expected) << shape << src << dst << " of " << size;
    }
    const std::int64_t most = 1 + pick(12);
    Pairs boxes;
    for_each_box(loops, most, [&](const CopyLoops& box, std::int64_t s, std::int64_t d) {
      std::int64_t strides[Dims::kMaxRank];
      pack_strides(box, strides);
      std::int64_t last = 0;
      for (int axis = 0; axis < box.rank; ++axis) {
        last += (box.extent[axis] - 1) * strides[axis];
      }
      EXPECT_LT(last, most);
      for (auto [a, b] : elements_of(box)) {
        boxes.emplace_back(a + s, b + d);
      }
    });
    ASSERT_EQ(sorted(boxes), expected) << shape << src << dst << " boxes of " << most;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(several, 100);
}

TEST(CopyBlocks, AxesWithOneElementOfDstCountOnce) {
  // dst is a vector of 3 that is broadcast to (3, 1000), as order_loops() gives it. A box may have 2 elements of dst.
  // Indices of the broadcast axis must not count, so 2 boxes suffice.
  int boxes = 0;
  for_each_box(loops_of({3, 1000}, {1000, 1}, {1, 0}), 2, [&](const CopyLoops& box, std::int64_t, std::int64_t) {
    std::int64_t strides[Dims::kMaxRank];
    pack_strides(box, strides);
    EXPECT_EQ(strides[box.rank - 1], 0);
    EXPECT_EQ(box.extent[box.rank - 1], 1000);
    ++boxes;
  });
  EXPECT_EQ(boxes, 2);
}

}  // namespace
}  // namespace lockstep::detail
