#include "tests/kernels/average_pool2d_cases.hpp"

namespace lockstep::bench {

/// The shortcuts of ResNet-D and the transitions of DenseNet (2 x 2 at stride 2, batch 32), the windows of Inception (3
/// x 3, padded), and the last layers of ResNet-20 (batch 128) and ResNet-50.
std::vector<testing::OpCase> average_pool2d_bench() {
  std::vector<testing::OpCase> items;
  for (const testing::PoolParams& p : {testing::PoolParams{{32, 56, 56, 256}, {{2, 2}, {2, 2}}},
                                       testing::PoolParams{{32, 35, 35, 288}, {{3, 3}, {1, 1}, {1, 1}, {1, 1}}}}) {
    items.push_back(testing::average_pool2d_forward_case(p, ops::AverageOver::window));
    items.push_back(testing::average_pool2d_backward_case(p, ops::AverageOver::window));
  }
  for (const Shape& shape : {Shape{128, 8, 8, 64}, Shape{32, 7, 7, 2048}}) {
    items.push_back(testing::global_average_pool_forward_case(shape, DType::f32));
    items.push_back(testing::global_average_pool_backward_case(shape, DType::f32));
  }
  return items;
}

}  // namespace lockstep::bench
