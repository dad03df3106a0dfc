#pragma once

#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Computes softmax cross entropy with label smoothing (Szegedy et al. 2016, section 7): loss, gradient and accuracy in
/// one pass over the logits. The target distribution is smoothing / K everywhere, plus (1 - smoothing) at the label.
///
///   logits:    (N, K), or (N, ..., K) with one prediction at each of the P positions of a sample; contiguous; f32, f64
///              or bf16 on the host, f32, bf16 or f16 on a GPU
///   labels:    (N) or (N, ...) i32, contiguous: one per position
///   weights:   (N) or the shape of labels, contiguous, of the type of logits, f32 with 16-bit types: factors of the
///              loss and the gradient of each sample or position; not given: 1. A position of weight 0 is left out, for
///              any label and any logits
///   valid:     i64 scalar: the first `valid` samples count (clamped to 0 .. N); not given: all
///   scale:     scalar of the type of logits, f32 with 16-bit types: 1 / (global number of valid samples); not given: 1
///   dlogits:   shape and type of logits, may be logits itself or not given: receives (softmax - target) * weight *
///              scale / P, and 0 for samples that do not count
///   metrics:   f64 (3), increased by sums over the samples that count:
///              [0] the mean of the weighted losses of a sample's positions, not multiplied by scale
///              [1] the sum of the weights of a sample's correct positions (kernels/prediction.hpp, k = 1), divided
///                  by P
///              [2] the number of a sample's labels outside [0, K); a position with such a label has gradient 0 and
///                  adds nothing to [0] and [1]
///   workspace: u8, softmax_cross_entropy_workspace_bytes(context, logits), aligned to 8; may be missing if 0 bytes
///
/// Losses are summed in f64 in a fixed order, so the op is deterministic. Throws UsageError for a smoothing outside [0,
/// 1).
void softmax_cross_entropy(Context& context, const TensorView& logits, const TensorView& labels,
                           const TensorView& weights, const TensorView& valid, const TensorView& scale,
                           double smoothing, const TensorView& dlogits, const TensorView& metrics,
                           const TensorView& workspace);

/// Returns the bytes of workspace that softmax_cross_entropy needs for these logits; 0 on the host.
[[nodiscard]] std::size_t softmax_cross_entropy_workspace_bytes(const Context& context, const TensorView& logits);

namespace backend {  // the functions that softmax_cross_entropy.cpp calls after its checks
/// The result for one position of the logits on a GPU, before the results of all positions are added.
struct PositionLoss {
  float loss;
  std::int32_t outcome;  ///< 0: position does not count; 1: prediction is wrong; 2: right; 3: label is outside [0, K)
};
LOCKSTEP_BACKENDS(softmax_cross_entropy);
}  // namespace backend

}  // namespace lockstep::ops
