#include "tests/kernels/clip_cases.hpp"

namespace lockstep::bench {

/// A few scalars: what the launch costs.
std::vector<testing::OpCase> clip_bench() {
  return {testing::clip_case({DType::f32, 1, 4, 1024})};
}

}  // namespace lockstep::bench
