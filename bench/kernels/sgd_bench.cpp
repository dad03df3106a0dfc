#include "tests/kernels/sgd_cases.hpp"

namespace lockstep::bench {

/// The arenas of ResNet-20 and ResNet-50, and one bucket of 25 MiB; two groups as with undecayed biases. Then without
/// momentum, and with 16-bit gradients and a 16-bit copy.
std::vector<testing::OpCase> sgd_bench() {
  std::vector<testing::OpCase> items;
  const auto arena = [](std::int64_t n) {
    return testing::ArenaParams{n, DType::f32, testing::mixed_segments(n, 0), 0};
  };
  for (const std::int64_t n : {272474, 6553600, 25557032}) {
    items.push_back(testing::sgd_case(arena(n), {0.9, false}));
  }
  items.push_back(testing::sgd_case(arena(25557032), {}));
  testing::ArenaParams half = arena(25557032);
  half.gradients = half.copy = DType::bf16;
  items.push_back(testing::sgd_case(half, {0.9, false}));
  return items;
}

}  // namespace lockstep::bench
