// Tests that functions with variants (lockstep_add_host_kernels()) run as the variant that was chosen.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>

#include "kernel.hpp"

extern "C" std::int64_t lockstep_cpu_variant;  // defined in runtime/machine/instruction_sets.cpp

namespace lockstep::testing {
namespace {

/// Tests variant number `GetParam()`: 0 is x86-64-v3, 1 is x86-64-v4.
class Variants : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_instruction_set(ask_processor(), GetParam() == 0 ? "avx2" : "avx512vl")) {
      GTEST_SKIP() << "this processor does not run variant " << GetParam();
    }
    lockstep_cpu_variant = GetParam();
  }
  void TearDown() override { lockstep_cpu_variant = 0; }
  static std::string name() { return GetParam() == 0 ? "x86-64-v3" : "x86-64-v4"; }
};

TEST_P(Variants, TheChosenOneRuns) {
  EXPECT_EQ(variant_of_the_code(), name());
}

TEST_P(Variants, ArgumentsArriveInRegistersAndInMemory) {
  EXPECT_EQ(weighted_sum({1, 2, 4}, 0.5, 0.25, 1, 2, 3, 4, 5, 10), 70 + 0.75 + 15);
}

TEST_P(Variants, ExceptionsArriveWithTheirType) {
  try {
    throw_by_variant();
    FAIL() << "nothing was thrown";
  } catch (const ShapeError& error) {
    EXPECT_EQ(error.what(), "thrown by " + name());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Variants, ::testing::Values(0, 1));

}  // namespace
}  // namespace lockstep::testing
