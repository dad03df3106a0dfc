#include "tests/kernels/strided_copy_cases.hpp"

namespace lockstep::bench {

/// Matrices turned; heads of attention (GPT-2 small, 8 sequences of 1024) moved in front of positions; channels of an
/// activation of ResNet-50 moved last; casts; part of every row.
std::vector<testing::OpCase> strided_copy_bench() {
  using testing::permuted_copy;
  using testing::strided_copy_case;
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    items.push_back(strided_copy_case(permuted_copy({4096, 4096}, {1, 0}, dtype, dtype)));
    items.push_back(strided_copy_case(permuted_copy({8, 1024, 12, 64}, {0, 2, 1, 3}, dtype, dtype)));
    items.push_back(strided_copy_case(permuted_copy({32, 64, 56, 56}, {0, 2, 3, 1}, dtype, dtype)));
    items.push_back(strided_copy_case(
        {"row slice", {8192, 3072}, testing::sliced(1, 768, 1536), {8192, 768}, testing::entire, dtype, dtype}));
  }
  items.push_back(strided_copy_case(testing::cast_copy({8192, 3072}, DType::f32, DType::bf16)));
  items.push_back(strided_copy_case(testing::cast_copy({8192, 3072}, DType::bf16, DType::f32)));
  return items;
}

}  // namespace lockstep::bench
