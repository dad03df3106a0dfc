#include "tests/kernels/layer_norm_cases.hpp"

namespace lockstep::bench {

/// Transformer blocks of width 768 (GPT-2 small) on 8 sequences of 1024, and of width 4096 on 2048 tokens.
std::vector<testing::OpCase> layer_norm_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{8192, 768}, Shape{2048, 4096}}) {
    items.push_back(testing::layer_norm_forward_case(shape, DType::f32));
    items.push_back(testing::layer_norm_backward_case(shape, DType::f32, ops::GradMode::overwrite));
  }
  return items;
}

}  // namespace lockstep::bench
