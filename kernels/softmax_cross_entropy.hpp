#pragma once

#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Softmax cross entropy with label smoothing (Szegedy et al. 2016, section 7), loss, gradient and accuracy in one
/// pass over the logits. Target distribution: (1 - smoothing) at the label + smoothing / K everywhere.
///
///   logits:    (N, K), or (N, ..., K) with a prediction at each of P positions of a sample; contiguous; f32, f64
///              or bf16 on the host, f32, bf16 or f16 on a GPU
///   labels:    (N) or (N, ...) i32, contiguous: one a position
///   weights:   (N) or of the shape of labels, contiguous, of the type of logits, f32 beside 16-bit types: what the
///   loss
///              and the gradient of a sample or of a position are multiplied by; not given: 1. A position of weight 0
///              takes part in nothing, whatever its label and its logits are
///   valid:     i64 scalar: the first `valid` samples count (clamped to 0 .. N); not given: all
///   scale:     scalar, of the type of logits, f32 beside 16-bit types: 1 / (global number of valid samples);
///              not given: 1
///   dlogits:   like logits, or not given: (softmax - target) * weight * scale / P, 0 for samples that do not count;
///              may be logits
///   metrics:   f64 (3): [0] += sum over the samples that count of the mean of the weighted, unscaled losses at their
///              positions, [1] += the same sum of the weights of positions whose largest logit (first of equals) is at
///              the label: without weights the share of a sample's positions, [2] += number of labels that are not in
///              [0, K) (such a position takes part in nothing else and has a zero gradient)
///   workspace: u8, softmax_cross_entropy_workspace_bytes(context, logits), aligned to 8; may be missing when
///              that is 0
///
/// Losses (f32 beside f32 and 16-bit logits on a GPU) are summed in f64 in a fixed order, on the host that of the
/// samples. Deterministic. smoothing outside [0, 1) is a UsageError.
void softmax_cross_entropy(Context& context, const TensorView& logits, const TensorView& labels,
                           const TensorView& weights, const TensorView& valid, const TensorView& scale,
                           double smoothing, const TensorView& dlogits, const TensorView& metrics,
                           const TensorView& workspace);

/// 0 on the host.
[[nodiscard]] std::size_t softmax_cross_entropy_workspace_bytes(const Context& context, const TensorView& logits);

namespace backend {  // called after the checks of softmax_cross_entropy.cpp
/// What the rows of the logits leave for the sum over the positions, on a GPU.
struct PositionLoss {
  float loss;
  std::int32_t outcome;  ///< 0: does not count, 1: wrong, 2: right, 3: bad label
};
void softmax_cross_entropy(CpuContext&, const TensorView& logits, const TensorView& labels, const TensorView& weights,
                           const TensorView& valid, const TensorView& scale, double smoothing,
                           const TensorView& dlogits, const TensorView& metrics, const TensorView& workspace);
void softmax_cross_entropy(CudaContext&, const TensorView& logits, const TensorView& labels, const TensorView& weights,
                           const TensorView& valid, const TensorView& scale, double smoothing,
                           const TensorView& dlogits, const TensorView& metrics, const TensorView& workspace);
}  // namespace backend

}  // namespace lockstep::ops
