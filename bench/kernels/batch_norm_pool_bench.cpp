#include "tests/kernels/batch_norm_pool_cases.hpp"

namespace lockstep::bench {

/// The stem of ResNet-50 (batch 32): forward and both halves of backward, in f32 and bf16.
std::vector<testing::OpCase> batch_norm_pool_bench() {
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const testing::StemParams p{{{32, 112, 112, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype}};
    for (testing::OpCase& item : testing::batch_norm_pool_calls(p, 0)) {
      items.push_back(std::move(item));
    }
  }
  return items;
}

}  // namespace lockstep::bench
