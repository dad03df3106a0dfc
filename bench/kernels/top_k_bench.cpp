#include "tests/kernels/top_k_cases.hpp"

namespace lockstep::bench {

/// A rank's batch of ImageNet, and tokens of GPT-2.
std::vector<testing::OpCase> top_k_bench() {
  return {testing::top_k_case({256, 1000, 5}, DType::f32), testing::top_k_case({1024, 50257, 5}, DType::f32)};
}

}  // namespace lockstep::bench
