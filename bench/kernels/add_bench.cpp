#include "tests/kernels/add_cases.hpp"

namespace lockstep::bench {

/// A skip gradient of ResNet-20 (batch 128) and one of ResNet-50 (batch 32).
std::vector<testing::OpCase> add_bench() {
  return {testing::add_case({128, 32, 32, 16}, DType::f32), testing::add_case({32, 56, 56, 256}, DType::f32)};
}

}  // namespace lockstep::bench
