#include "tests/kernels/regression_loss_cases.hpp"

namespace lockstep::bench {

/// A rank's batch of images that a network rebuilds, with and without weights, and a table of numbers.
std::vector<testing::OpCase> regression_loss_bench() {
  const ops::RegressionLossOptions huber{ops::RegressionLoss::huber, 1};
  return {testing::regression_loss_case({Shape{32, 224, 224, 3}, {}, -1, true}, DType::f32),
          testing::regression_loss_case({Shape{32, 224, 224, 3}, huber, -1, true}, DType::f32),
          testing::regression_loss_case({Shape{4096, 8}, {}, -1, true}, DType::f32),
          testing::regression_loss_case(
              {Shape{32, 224, 224, 3}, {}, -1, true, testing::PredictionGradient::apart, testing::Weighting::element},
              DType::f32)};
}

}  // namespace lockstep::bench
