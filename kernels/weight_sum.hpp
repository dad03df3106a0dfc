#pragma once

#include <cstddef>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// Computes S, the divisor of a weighted loss (softmax_cross_entropy.hpp, regression_loss.hpp): the sum, over the
/// samples that count, of the mean of a sample's weights.
///
///   weights:   (N, ...) contiguous, rank at least 1, at least one weight per sample; f32, on the host also f64
///   valid:     i64 scalar: the first `valid` samples count (clamped to 0 .. N); not given: all
///   scale:     scalar of the type of weights; not given: 1
///   mode:      says whether sum is set or added to; with mode ignore, sum must not be given
///   sum:       scalar of the type of weights, set to scale * S or increased by it; the product is rounded once
///   total:     f64 scalar to which S is added; may be missing
///   workspace: u8, weight_sum_workspace_bytes(context, weights), aligned to 8; may be missing if 0 bytes
///
/// Weights are summed in f64 in fixed chunks, which are joined in order: the bits do not depend on the number of
/// threads. Weights of samples that do not count are not read.
void weight_sum(Context& context, const TensorView& weights, const TensorView& valid, const TensorView& scale,
                GradMode mode, const TensorView& sum, const TensorView& total, const TensorView& workspace);

[[nodiscard]] std::size_t weight_sum_workspace_bytes(const Context& context, const TensorView& weights);

namespace backend {  // the functions that weight_sum.cpp calls after its checks
LOCKSTEP_BACKENDS(weight_sum);
}  // namespace backend

}  // namespace lockstep::ops
