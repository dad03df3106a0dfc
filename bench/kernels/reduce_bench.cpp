#include "tests/kernels/reduce_cases.hpp"

namespace lockstep::bench {

/// Bias gradients of classifiers, one tall reduction, and ResNet-50: the gradient norm, the
/// search for infinities.
std::vector<testing::OpCase> reduce_bench() {
  return {testing::reduce_rows_case(128, 10, DType::f32),    testing::reduce_rows_case(256, 1000, DType::f32),
          testing::reduce_rows_case(131072, 64, DType::f32), testing::squared_norm_case(Shape{25557032}, DType::f32),
          testing::sum_case(Shape{25557032}, DType::f32),    testing::all_finite_case(Shape{25557032}, DType::f32)};
}

}  // namespace lockstep::bench
