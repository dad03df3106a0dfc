// Compares GradientTree with a plain loop, and with the reducer. The bits of a tree sum must not depend on which rank
// adds which leaves.
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/gradients/gradient_reducer.hpp>
#include <lockstep/comm/gradients/gradient_tree.hpp>
#include <lockstep/comm/gradients/make_bucket_sum.hpp>
#include <lockstep/kernels/dispatch.hpp>

#include "tests/comm/gradient_data.hpp"
#include "tests/comm/local_ranks.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::comm {
namespace {

using testing::error_of;

constexpr std::int64_t kElements = 777;

/// Returns the gradient of a leaf. Sizes and signs vary, so that another order of the sum gives other bits.
template <class T>
T leaf_value(std::int64_t leaf, std::int64_t i) {
  const auto x = static_cast<T>(gradient(static_cast<int>(leaf), 1, i));
  return ((leaf + i) % 3 == 0 ? T(-1) : T(1)) * std::ldexp(x, static_cast<int>((leaf * 5 + i) % 7));
}

/// Returns the sum of the leaves in pairs. Each pass replaces two neighbours by their sum.
template <class T>
T plain_sum(std::int64_t leaves, std::int64_t i) {
  std::vector<T> row;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
    row.push_back(leaf_value<T>(leaf, i));
  }
  while (row.size() > 1) {
    for (std::size_t k = 0; 2 * k < row.size(); ++k) {
      row[k] = row[2 * k] + row[2 * k + 1];
    }
    row.resize(row.size() / 2);
  }
  return row.front();
}

/// Writes leaves [first, first + count) to the arena in turn, and adds each leaf to the tree.
template <class T>
void add_leaves(GradientTree& tree, Context& context, std::vector<T>& arena, std::int64_t first, std::int64_t count) {
  for (std::int64_t leaf = first; leaf < first + count; ++leaf) {
    for (std::int64_t i = 0; i < kElements; ++i) {
      arena[static_cast<std::size_t>(i)] = leaf_value<T>(leaf, i);
    }
    tree.add(context);
  }
}

template <class T>
void expect_sums(std::int64_t leaves) {
  CpuContext context({.threads = 1});
  std::vector<T> arena(kElements);
  GradientTree tree(context, view_of(arena), leaves);
  EXPECT_EQ(tree.arenas(), std::llround(std::log2(leaves)));
  EXPECT_EQ(tree.bytes(), static_cast<std::size_t>(tree.arenas()) * kElements * sizeof(T));
  for (int step = 0; step < 2; ++step) {
    add_leaves(tree, context, arena, 0, leaves);
    for (std::int64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(arena[static_cast<std::size_t>(i)], plain_sum<T>(leaves, i)) << leaves << " leaves, element " << i;
    }
    add_leaves(tree, context, arena, 0, leaves / 2);  // half of a step, which restart() drops
    tree.restart();
  }
}

TEST(GradientTree, IsThePlainSumInPairs) {
  for (const std::int64_t leaves : {1, 2, 4, 8, 32}) {
    expect_sums<float>(leaves);
    expect_sums<double>(leaves);
  }
}

TEST(GradientTree, RanksThatShareTheLeavesMakeTheSameTree) {
  constexpr std::int64_t kLeaves = 8;
  std::set<std::vector<float>> in_library_order;
  for (const int ranks : {1, 2, 4, 8}) {
    for (const SumOrder order : {SumOrder::tree, SumOrder::library}) {
      std::vector<float> sums;
      on_ranks(ranks, [&](Communicator& communicator) {
        CpuContext context({.threads = 1});
        std::vector<float> arena(kElements);
        GradientTree tree(context, view_of(arena), kLeaves / ranks);
        const auto gradients = ranges({300, 200, 277});
        GradientReducer reducer(communicator, context.stream(), context.stream(), gradients,
                                plan_buckets(gradients, {.bucket_bytes = 1600}), view_of(arena),
                                {.sum = make_bucket_sum({.order = order})});
        add_leaves(tree, context, arena, communicator.rank() * (kLeaves / ranks), kLeaves / ranks);
        reducer.begin_step();
        for (int gradient = 0; gradient < 3; ++gradient) {
          reducer.gradient_written(gradient);
        }
        reducer.finish();
        for (std::int64_t i = 0; order == SumOrder::tree && i < kElements; ++i) {
          ASSERT_EQ(arena[static_cast<std::size_t>(i)], plain_sum<float>(kLeaves, i)) << ranks << " ranks, " << i;
        }
        if (communicator.rank() == 0) {
          sums = arena;
        }
      });
      if (order == SumOrder::library) {
        in_library_order.insert(sums);
      }
    }
  }
  EXPECT_GT(in_library_order.size(), 1U) << "added rank after rank the sums depend on the number of ranks";
}

TEST(GradientTree, KeepsNaNAndInfinity) {
  CpuContext context({.threads = 1});
  std::vector<float> arena(3);
  GradientTree tree(context, view_of(arena), 4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (int leaf = 0; leaf < 4; ++leaf) {
    arena = {leaf == 1 ? nan : 1.0F, leaf == 3 ? infinity : 1.0F, 1.0F};
    tree.add(context);
  }
  EXPECT_TRUE(std::isnan(arena[0]));
  EXPECT_EQ(arena[1], infinity);
  EXPECT_EQ(arena[2], 4.0F);
}

TEST(GradientTree, LeavesAreAPowerOfTwo) {
  CpuContext context({.threads = 1});
  std::vector<float> arena(3);
  for (const std::int64_t leaves : {0, -4, 3, 6}) {
    EXPECT_EQ(error_of<UsageError>([&] { GradientTree(context, view_of(arena), leaves); }),
              "gradient tree: the number of leaves is " + std::to_string(leaves) + ", expected a power of two");
  }
}

}  // namespace
}  // namespace lockstep::comm
