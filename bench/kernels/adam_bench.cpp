#include "tests/kernels/adam_cases.hpp"

namespace lockstep::bench {

/// The arenas of ResNet-20 and ResNet-50, and one bucket of 25 MiB; AdamW with 16-bit gradients and a 16-bit copy.
std::vector<testing::OpCase> adam_bench() {
  std::vector<testing::OpCase> items;
  const auto arena = [](std::int64_t n) {
    return testing::ArenaParams{n, DType::f32, testing::mixed_segments(n, 0), 0};
  };
  for (const std::int64_t n : {272474, 6553600, 25557032}) {
    items.push_back(testing::adam_case(arena(n), {}));
  }
  testing::ArenaParams half = arena(25557032);
  half.gradients = half.copy = DType::bf16;
  items.push_back(testing::adam_case(half, {.decoupled = true}));
  return items;
}

}  // namespace lockstep::bench
