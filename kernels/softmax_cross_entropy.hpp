#pragma once

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor_view.hpp>

namespace lockstep::ops {

/// Softmax cross entropy with label smoothing (Szegedy et al. 2016, section 7), loss, gradient and accuracy in one
/// pass over the logits. Target distribution: (1 - smoothing) at the label + smoothing / K everywhere.
///
///   logits:  (N, K) contiguous, f32 or f64           labels: (N) i32
///   valid:   i64 scalar: the first `valid` samples count (at most N); not given: all
///   scale:   scalar of the type of logits: 1 / (global number of valid samples); not given: 1
///   dlogits: (N, K) or not given: (softmax - target) * scale, 0 for samples that do not count; may be logits
///   metrics: f64 (3): [0] += sum of the unscaled losses of the samples that count, [1] += number of samples whose
///            largest logit (first of equals) is at the label, [2] += number of samples whose label is not in [0, K)
///            (such a sample takes part in nothing else and has a zero gradient)
/// Sums run in sample order in f64. Deterministic, no workspace. smoothing outside [0, 1) is a UsageError.
void softmax_cross_entropy(Context& context, const TensorView& logits, const TensorView& labels,
                           const TensorView& valid, const TensorView& scale, double smoothing,
                           const TensorView& dlogits, const TensorView& metrics);

namespace backend {  // called after the checks of softmax_cross_entropy.cpp
void softmax_cross_entropy(CpuContext&, const TensorView& logits, const TensorView& labels, const TensorView& valid,
                           const TensorView& scale, double smoothing, const TensorView& dlogits,
                           const TensorView& metrics);
}  // namespace backend

}  // namespace lockstep::ops
