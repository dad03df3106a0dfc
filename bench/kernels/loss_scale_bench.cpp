#include "tests/kernels/loss_scale_cases.hpp"

namespace lockstep::bench {

/// A few scalars: what the launch costs.
std::vector<testing::OpCase> loss_scale_bench() {
  return {testing::loss_scale_case({.good = 7})};
}

}  // namespace lockstep::bench
