#include "tests/kernels/batch_norm_cases.hpp"

namespace lockstep::bench {

/// The batch norms of ResNet-20 (batch 128) and of the first and last stage of ResNet-50 (batch 32): statistics,
/// forward with ReLU and mask, with and without a residual, and both halves of backward; in f32 and bf16. The
/// statistics of 8 ranks.
std::vector<testing::OpCase> batch_norm_bench() {
  using testing::BatchNormParams;
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{128, 32, 32, 16}, Shape{128, 16, 16, 32}, Shape{128, 8, 8, 64},
                             Shape{32, 56, 56, 256}, Shape{32, 7, 7, 2048}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const BatchNormParams plain{.shape = shape, .dtype = dtype};
      const BatchNormParams relu{.shape = shape, .dtype = dtype, .relu = true};
      const BatchNormParams block{.shape = shape, .dtype = dtype, .residual = true, .relu = true, .second = true};
      items.push_back(testing::batch_norm_stats_case(plain));
      for (const BatchNormParams& p : {plain, relu, block}) {
        items.push_back(testing::batch_norm_apply_case(p));
        items.push_back(testing::batch_norm_backward_reduce_case(p, ops::GradMode::overwrite));
        items.push_back(testing::batch_norm_backward_apply_case(p));
      }
    }
  }
  for (const std::int64_t channels : {16, 64, 2048}) {
    items.push_back(testing::batch_norm_merge_stats_case(channels, DType::f32, std::vector<std::int64_t>(8, 1000)));
  }
  return items;
}

}  // namespace lockstep::bench
