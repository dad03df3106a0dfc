#include "tests/kernels/dropout_cases.hpp"

namespace lockstep::bench {

/// Transformer blocks of width 768 and their attention (GPT-2 small) on 8 sequences of 1024; a classifier's last layer.
std::vector<testing::OpCase> dropout_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{8, 1024, 768}, Shape{1, 12, 1024, 1024}, Shape{256, 4096}}) {
    items.push_back(testing::dropout_case(shape, DType::f32, testing::dropout_desc(0.1)));
  }
  return items;
}

}  // namespace lockstep::bench
