#include "tests/support/cuda_test.hpp"

constinit const std::int64_t lockstep::testing::kLarge = std::int64_t{1} << 31;
