#include "tests/kernels/sgd_cases.hpp"

namespace lockstep::bench {

/// The arenas of ResNet-20 and ResNet-50, and one bucket of 25 MiB; two groups as with undecayed biases.
std::vector<testing::OpCase> sgd_bench() {
  std::vector<testing::OpCase> items;
  for (const std::int64_t n : {272474, 6553600, 25557032}) {
    items.push_back(testing::sgd_case({n, DType::f32, {0.9, false}, testing::mixed_segments(n, 0), 0}));
  }
  items.push_back(testing::sgd_case({25557032, DType::f32, {}, testing::mixed_segments(25557032, 0), 0}));
  return items;
}

}  // namespace lockstep::bench
