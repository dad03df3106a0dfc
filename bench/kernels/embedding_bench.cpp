#include "tests/kernels/embedding_cases.hpp"

namespace lockstep::bench {

/// GPT-2 small on 8 sequences of 1024, ids in equal shares.
std::vector<testing::OpCase> embedding_bench() {
  const testing::EmbeddingParams p{50257, 768, Shape{8, 1024}, true, 8};
  return {testing::embedding_forward_case(p, DType::f32),
          testing::embedding_backward_case(p, DType::f32, ops::GradMode::accumulate)};
}

}  // namespace lockstep::bench
