#include "tests/kernels/lars_cases.hpp"

namespace lockstep::bench {

/// The arenas of ResNet-20 and ResNet-50 with as many tensors as those have, and one bucket of 25 MiB.
std::vector<testing::OpCase> lars_bench() {
  std::vector<testing::OpCase> items;
  for (const auto& [n, tensors] : {std::pair<std::int64_t, std::int64_t>{272474, 65}, {6553600, 40}, {25557032, 161}}) {
    items.push_back(testing::lars_case({n, DType::f32, testing::many_segments(n, tensors), 0}, {.momentum = 0.9}));
  }
  return items;
}

}  // namespace lockstep::bench
