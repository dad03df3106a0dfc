#include "tests/kernels/softmax_cases.hpp"

namespace lockstep::bench {

/// Attention scores (B, heads, T, T): GPT-2 small on a sequence of 1024 with a causal mask, ViT-B/16 on 4 images.
std::vector<testing::OpCase> softmax_bench() {
  const Shape gpt2{1, 12, 1024, 1024};
  const Shape vit{4, 12, 197, 197};
  return {testing::softmax_forward_case(gpt2, DType::f32, ops::SoftmaxMask::causal),
          testing::softmax_backward_case(gpt2, DType::f32),
          testing::softmax_forward_case(vit, DType::f32, ops::SoftmaxMask::none),
          testing::softmax_backward_case(vit, DType::f32)};
}

}  // namespace lockstep::bench
