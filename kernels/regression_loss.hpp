#pragma once

#include <cstddef>
#include <type_traits>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// The kinds of loss of a difference d = prediction - target:
///   mse    d^2
///   l1     |d|; its derivative at 0 is 0
///   huber  d^2 / 2 if |d| <= delta, otherwise delta * (|d| - delta / 2) (Huber, 1964)
enum class RegressionLoss : unsigned char { mse, l1, huber };

struct RegressionLossOptions {
  RegressionLoss kind = RegressionLoss::mse;
  double delta = 1;  ///< limit of |d| in the formula of huber; positive and finite
};

/// Computes a regression loss and its gradient in one pass. The loss of a sample is the mean over its F elements. If
/// all samples count, the losses are PyTorch's MSELoss, L1Loss and HuberLoss.
///
///   prediction, target: (N, ...) contiguous, rank at least 1, F = numel / N at least 1; f32, f64 or bf16 on the host,
///                f32, bf16 or f16 on a GPU
///   weights:     (N) or the shape of prediction, contiguous, of the type of prediction, f32 with 16-bit types:
///                factors of the loss and the gradient of each sample or element; not given: 1. An element of weight 0
///                is left out, even if its prediction or target is NaN
///   valid:       i64 scalar: the first `valid` samples count (clamped to 0 .. N); not given: all
///   scale:       scalar of the type of prediction, f32 with 16-bit types: 1 / (global number of valid samples); not
///                given: 1
///   dprediction: shape and type of prediction, may be prediction itself or not given: receives scale / F * weight *
///                (derivative of the loss at d), and 0 for samples that do not count
///   metrics:     f64 (3): metrics[0] grows by the sum, over the samples that count, of the mean weighted loss of a
///                sample, not multiplied by scale; metrics[1] and metrics[2] do not change
///   workspace:   u8, regression_loss_workspace_bytes(context, prediction), aligned to 8; may be missing if 0 bytes
///
/// If a difference d is NaN, its loss and gradient are NaN. Differences have the type of prediction, f32 with 16-bit
/// types. Losses are f64 and are summed in fixed chunks, which are joined in order: the bits do not depend on the
/// number of threads. Throws UsageError for an unknown kind, and for a delta that is not positive and finite.
void regression_loss(Context& context, const RegressionLossOptions& options, const TensorView& prediction,
                     const TensorView& target, const TensorView& weights, const TensorView& valid,
                     const TensorView& scale, const TensorView& dprediction, const TensorView& metrics,
                     const TensorView& workspace);

[[nodiscard]] std::size_t regression_loss_workspace_bytes(const Context& context, const TensorView& prediction);

namespace backend {  // the functions that regression_loss.cpp calls after its checks
/// Calls f(std::integral_constant<RegressionLoss, kind>{}).
template <class F>
decltype(auto) visit_kind(RegressionLoss kind, F&& f) {
  if (kind == RegressionLoss::mse) {
    return f(std::integral_constant<RegressionLoss, RegressionLoss::mse>{});
  }
  if (kind == RegressionLoss::l1) {
    return f(std::integral_constant<RegressionLoss, RegressionLoss::l1>{});
  }
  return f(std::integral_constant<RegressionLoss, RegressionLoss::huber>{});
}
LOCKSTEP_BACKENDS(regression_loss);
}  // namespace backend

}  // namespace lockstep::ops
