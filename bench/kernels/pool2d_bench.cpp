#include "tests/kernels/pool2d_cases.hpp"

namespace lockstep::bench {

/// The stem of ResNet-50 (batch 32) and the last layers of ResNet-20 (batch 128) and ResNet-50.
std::vector<testing::OpCase> pool2d_bench() {
  const testing::PoolParams stem{{32, 112, 112, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}};
  std::vector<testing::OpCase> items{testing::max_pool2d_forward_case(stem), testing::max_pool2d_backward_case(stem)};
  for (const Shape& shape : {Shape{128, 8, 8, 64}, Shape{32, 7, 7, 2048}}) {
    items.push_back(testing::global_average_pool_forward_case(shape, DType::f32));
    items.push_back(testing::global_average_pool_backward_case(shape, DType::f32));
  }
  return items;
}

}  // namespace lockstep::bench
