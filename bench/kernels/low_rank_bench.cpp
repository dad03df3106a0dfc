#include "tests/kernels/low_rank_cases.hpp"

namespace lockstep::bench {

/// The largest convolution of ResNet-50 (512 x 4608) and the embedding of GPT-2 small, rank 2.
std::vector<testing::OpCase> low_rank_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{512, 4608}, Shape{50257, 768}}) {
    items.push_back(testing::orthonormalise_case(Shape{shape[0], 2}, DType::f32));
    items.push_back(testing::low_rank_residual_case(shape[0], shape[1], 2, DType::f32));
    items.push_back(testing::keep_columns_case(shape[1], 2, DType::f32, ops::Column::kept));
  }
  return items;
}

}  // namespace lockstep::bench
