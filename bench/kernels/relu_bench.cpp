#include "tests/kernels/relu_cases.hpp"

namespace lockstep::bench {

/// The first stage of ResNet-20 (batch 128) and of ResNet-50 (batch 32).
std::vector<testing::OpCase> relu_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{128, 32, 32, 16}, Shape{32, 56, 56, 256}}) {
    items.push_back(testing::relu_forward_case(shape, DType::f32));
    items.push_back(testing::relu_forward_case(shape, DType::f32, true));
    items.push_back(testing::relu_backward_case(shape, DType::f32));
  }
  return items;
}

}  // namespace lockstep::bench
