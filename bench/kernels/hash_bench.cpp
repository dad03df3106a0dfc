#include "tests/kernels/hash_cases.hpp"

namespace lockstep::bench {

/// The parameters of ResNet-50 and of GPT-2 small.
std::vector<testing::OpCase> hash_bench() {
  return {testing::hash_case({25557032}, DType::f32), testing::hash_case({124439808}, DType::f32)};
}

}  // namespace lockstep::bench
