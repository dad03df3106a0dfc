#include "tests/kernels/weight_sum_cases.hpp"

namespace lockstep::bench {

/// A weight a sample, a position of a text, and a pixel.
std::vector<testing::OpCase> weight_sum_bench() {
  return {testing::weight_sum_case({Shape{256}}, DType::f32), testing::weight_sum_case({Shape{32, 1024}}, DType::f32),
          testing::weight_sum_case({Shape{32, 224, 224, 3}}, DType::f32)};
}

}  // namespace lockstep::bench
