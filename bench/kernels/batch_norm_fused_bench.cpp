#include "tests/kernels/batch_norm_fused_cases.hpp"

namespace lockstep::bench {

/// Layers 1 and 3 of ResNet-20 (batch 128), the latter with a residual: forward and backward, in f32 and bf16.
std::vector<testing::OpCase> batch_norm_fused_bench() {
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const testing::BatchNormParams& p :
         {testing::BatchNormParams{{128, 32, 32, 16}, dtype, 128, false, true},
          testing::BatchNormParams{{128, 8, 8, 64}, dtype, 128, true, true, true}}) {
      for (testing::OpCase& item : testing::batch_norm_fused_calls(p, 0)) {
        items.push_back(std::move(item));
      }
    }
  }
  return items;
}

}  // namespace lockstep::bench
