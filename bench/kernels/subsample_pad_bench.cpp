#include "tests/kernels/subsample_pad_cases.hpp"

namespace lockstep::bench {

/// The two shortcuts of ResNet-20 (batch 128).
std::vector<testing::OpCase> subsample_pad_bench() {
  std::vector<testing::OpCase> items;
  for (const testing::SubsamplePadParams& p :
       {testing::SubsamplePadParams{{128, 32, 32, 16}, 32}, testing::SubsamplePadParams{{128, 16, 16, 32}, 64}}) {
    items.push_back(testing::subsample_pad_forward_case(p));
    items.push_back(testing::subsample_pad_backward_case(p, ops::GradMode::overwrite));
    items.push_back(testing::subsample_pad_backward_case(p, ops::GradMode::accumulate));
  }
  return items;
}

}  // namespace lockstep::bench
