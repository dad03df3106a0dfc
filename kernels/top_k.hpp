#pragma once

#include <cstddef>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Adds to `result` the weights of those samples whose label is among the k largest logits: top-k accuracy, as used by
/// Krizhevsky et al. 2012.
///
///   logits:    (N, K) contiguous; f32, f64 or bf16 on the host, f32, bf16 or f16 on a GPU          labels: (N) i32
///   weights:   (N) contiguous, of the type of logits, f32 with 16-bit types; not given: 1 for each sample
///   valid:     i64 scalar: the first `valid` samples count (clamped to 0 .. N); not given: all samples count
///   k:         1 .. K; otherwise UsageError is thrown
///   result:    f64 scalar
///   workspace: u8, top_k_workspace_bytes(context, logits); may be missing if 0 bytes
///
/// A logit is ahead of the label's logit if it is larger, or equal and of a lower index. A row with a NaN or +infinity
/// makes every label wrong (kernels/prediction.hpp). A label outside [0, K) is never correct. The label is correct if
/// fewer than k logits are ahead of its logit. Without weights, `result` is exact below 2^53. Weights are added up in
/// f64 in a fixed order. Deterministic.
void top_k_correct(Context& context, const TensorView& logits, const TensorView& labels, const TensorView& weights,
                   const TensorView& valid, int k, const TensorView& result, const TensorView& workspace);

/// Returns the bytes of workspace that top_k_correct needs for these logits; 0 on the host.
[[nodiscard]] std::size_t top_k_workspace_bytes(const Context& context, const TensorView& logits);

namespace backend {  // the functions that top_k.cpp calls after its checks
LOCKSTEP_BACKENDS(top_k_correct);
}  // namespace backend

}  // namespace lockstep::ops
