#include "tests/kernels/max_pool2d_cases.hpp"

namespace lockstep::bench {

/// The stem of ResNet-50 (batch 32).
std::vector<testing::OpCase> max_pool2d_bench() {
  const testing::PoolParams stem{{32, 112, 112, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}};
  return {testing::max_pool2d_forward_case(stem), testing::max_pool2d_backward_case(stem)};
}

}  // namespace lockstep::bench
