#include "tests/kernels/augment_cases.hpp"

namespace lockstep::bench {

/// Batches of one rank: CIFAR-10 with its usual padding, and ImageNet crops.
std::vector<testing::OpCase> augment_bench() {
  return {testing::augment_case({Shape{128, 32, 32, 4}, DType::f32, 4, true, 128}),
          testing::augment_case({Shape{32, 224, 224, 4}, DType::f32, 0, true, 32})};
}

}  // namespace lockstep::bench
