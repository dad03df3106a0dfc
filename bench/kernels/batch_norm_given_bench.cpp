#include "tests/kernels/batch_norm_given_cases.hpp"

namespace lockstep::bench {

/// Channels of ResNet-50 behind sums that a convolution has taken: nothing of x is read.
std::vector<testing::OpCase> batch_norm_given_bench() {
  std::vector<testing::OpCase> items;
  for (const std::int64_t channels : {64, 2048}) {
    items.push_back(testing::batch_norm_coefficients_given_case({{64, 14, 14, channels}, DType::f32, 64, true, true}));
    items.push_back(testing::batch_norm_gradients_given_case(channels, DType::f32, ops::GradMode::overwrite));
  }
  return items;
}

}  // namespace lockstep::bench
