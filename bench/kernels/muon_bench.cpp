#include "tests/kernels/muon_cases.hpp"

namespace lockstep::bench {

/// ResNet-50's arena, and the squares of a layer of GPT-2 small and of four of ResNet-50's widest.
std::vector<testing::OpCase> muon_bench() {
  return {testing::muon_direction_case({25557032, DType::f32, testing::many_segments(25557032, 161), 0}, {}),
          testing::muon_polynomial_case(12, 768, DType::f32), testing::muon_polynomial_case(4, 2048, DType::f32)};
}

}  // namespace lockstep::bench
