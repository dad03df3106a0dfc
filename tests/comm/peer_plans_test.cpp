#include <lockstep/comm/gradients/peer_plans.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

using Ends = std::vector<int>;

constexpr std::int64_t kMiB = (1 << 20) / 4;  // elements of f32

std::vector<GradientRange> ranges(const std::vector<std::int64_t>& sizes) {
  std::vector<GradientRange> result;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    result.push_back({"g" + std::to_string(result.size()), begin, begin + size, 1});
    begin += size;
  }
  return result;
}

/// Sizes in MiB, cut by hand by each tool's rule.
TEST(PeerPlans, AreThoseOfTheTools) {
  // Half a MiB does not close PyTorch's first bucket, one more does; then 24 + 1, then 30 alone.
  const auto gradients = ranges({kMiB / 2, kMiB, 24 * kMiB, kMiB, 30 * kMiB, 100 * kMiB, 3 * kMiB, 2 * kMiB});
  const OverlapModel model{.all_reduce = {{{0, 2.5e-3, 0}}}, .slowdown = 2};  // 2.5 ms, 5 ms beside backward
  const std::vector<double> ready{0, 0.5e-3, 1e-3, 3e-3, 6.5e-3, 9e-3, 18.5e-3, 18.7e-3};
  const std::vector<NamedPlan> plans = peer_plans(gradients, ready, model, 4);
  ASSERT_EQ(plans.size(), 4U);
  EXPECT_EQ(plans[0].name, "PyTorch DDP, 1 and 25 MiB");
  EXPECT_EQ(plans[0].ends, (Ends{2, 4, 5, 6, 8}));
  // At 0 ms gradient 0, until 5; at 6 ms gradients 1 to 3, until 11; at 12 ms the next of 30 MiB, as 130 are too many,
  // until 17; at 18 ms that of 100 by itself, until 23, when backward has ended.
  EXPECT_EQ(plans[1].name, "Horovod, 64 MiB, 1 ms");
  EXPECT_EQ(plans[1].ends, (Ends{1, 4, 5, 6, 8}));
  EXPECT_EQ(plans[2].name, "Horovod, 128 MiB, 1 ms");
  EXPECT_EQ(plans[2].ends, (Ends{1, 4, 5, 6, 8}));
  EXPECT_EQ(plans[3].name, "Megatron-Core, 40 M");  // 152.6 MiB
  EXPECT_EQ(plans[3].ends, (Ends{6, 8}));
  // Two bytes an element: half as much is in a bucket, except by Megatron, which counts elements.
  const std::vector<NamedPlan> half = peer_plans(gradients, ready, model, 2);
  EXPECT_EQ(half[0].ends, (Ends{3, 6, 8}));
  EXPECT_EQ(half[1].ends, (Ends{1, 4, 5, 6, 8})) << "65 MiB";
  EXPECT_EQ(half[2].ends, (Ends{1, 4, 6, 8}));
  EXPECT_EQ(half[3].ends, plans[3].ends);
}

TEST(PeerPlans, OfGradientsThatAreThereAtOnceOrLate) {
  const auto gradients = ranges({kMiB, kMiB, kMiB});
  const OverlapModel model{.all_reduce = {{{0, 1e-4, 1e-9}}}};
  EXPECT_EQ(peer_plans(gradients, std::vector<double>(3), model, 4)[1].ends, (Ends{3}));
  EXPECT_EQ(peer_plans(gradients, std::vector<double>{0, 1, 1e6}, model, 4)[1].ends, (Ends{1, 2, 3}));
  EXPECT_TRUE(peer_plans({}, {}, model, 4).empty());
  EXPECT_THROW((void)peer_plans(gradients, std::vector<double>(2), model, 4), ShapeError);
  EXPECT_THROW((void)peer_plans(gradients, std::vector<double>{0, 2, 1}, model, 4), ShapeError);
}

}  // namespace
}  // namespace lockstep::comm
