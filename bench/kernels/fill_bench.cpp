#include "tests/kernels/fill_cases.hpp"

namespace lockstep::bench {

/// A small range, the gradients of ResNet-20 and those of ResNet-50.
std::vector<testing::OpCase> fill_bench() {
  std::vector<testing::OpCase> items;
  for (const std::int64_t n : {4096, 272474, 25557032}) {
    items.push_back(testing::fill_case(0.0, Shape{n}, DType::f32));
  }
  return items;
}

}  // namespace lockstep::bench
