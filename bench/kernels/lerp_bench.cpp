#include "tests/kernels/lerp_cases.hpp"

namespace lockstep::bench {

/// The averaged weights of ResNet-50 and of GPT-2 small.
std::vector<testing::OpCase> lerp_bench() {
  return {testing::lerp_case({25557032}, DType::f32, 1e-4), testing::lerp_case({124439808}, DType::f32, 1e-4)};
}

}  // namespace lockstep::bench
