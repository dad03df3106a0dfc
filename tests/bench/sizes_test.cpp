#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>

#include "bench/support/options.hpp"

namespace lockstep::bench {
namespace {

TEST(SizeSweep, EndsWithTheLargest) {
  EXPECT_EQ(size_sweep(4, 64, 4), (std::vector<std::int64_t>{4, 16, 64}));
  EXPECT_EQ(size_sweep(4, 100, 4), (std::vector<std::int64_t>{4, 16, 64, 100}));
  EXPECT_EQ(size_sweep(7, 7, 2), (std::vector<std::int64_t>{7}));
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_EQ(size_sweep(1, most, std::int64_t{1} << 40), (std::vector<std::int64_t>{1, std::int64_t{1} << 40, most}));
  EXPECT_THROW((void)size_sweep(8, 4, 2), UsageError);
  EXPECT_THROW((void)size_sweep(0, 4, 2), UsageError);
  EXPECT_THROW((void)size_sweep(4, 8, 1), UsageError);
}

}  // namespace
}  // namespace lockstep::bench
