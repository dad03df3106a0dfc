#include "tests/kernels/softmax_cross_entropy_cases.hpp"

namespace lockstep::bench {

/// CIFAR-10 and ImageNet batches of one rank.
std::vector<testing::OpCase> softmax_cross_entropy_bench() {
  return {testing::softmax_cross_entropy_case({128, 10, DType::f32, 0, -1, true}),
          testing::softmax_cross_entropy_case({64, 1000, DType::f32, 0.1, -1, true}),
          testing::softmax_cross_entropy_case({256, 1000, DType::f32, 0.1, -1, true})};
}

}  // namespace lockstep::bench
