#include "tests/kernels/scale_cases.hpp"

namespace lockstep::bench {

/// The gradients of ResNet-50 and of GPT-2 small.
std::vector<testing::OpCase> scale_bench() {
  return {testing::scale_case({25557032}, DType::f32, true), testing::scale_case({124439808}, DType::f32, true)};
}

}  // namespace lockstep::bench
