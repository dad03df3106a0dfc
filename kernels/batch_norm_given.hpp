#pragma once

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

// Batch norm whose sums a convolution has already computed in its own pass (ConvNorm in conv2d.hpp). The views have the
// shapes and types that batch_norm.hpp states for views of the same names. As stated there, results are reproducible
// bit for bit, and on a GPU the first call in a context allocates memory.

/// Least share of sum (x - shift)^2 that must remain when (sum (x - shift))^2 / N is subtracted from it. If less
/// remains, the variance would be too inexact, and the sums are not used.
constexpr double kGivenLeft = 1.0 / 1024;

/// Does batch_norm_coefficients() from sums (2, C) = sum (x - shift), sum (x - shift)^2 over all rows of x. shift (C)
/// may be running_mean, which is read before it is written. In these cases the sums cannot be used, and the op computes
/// the statistics from x:
///   - valid < N: the sums contain padding rows;
///   - N is 0;
///   - a sum of any channel is not finite, for example because the channel's shift is not finite;
///   - a sum of any channel cancels: less than the share kGivenLeft of sum (x - shift)^2 remains after the mean's part
///     is subtracted. The error of a sum in f32 grows by the inverse of this share.
void batch_norm_coefficients_given(Context& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace);

/// Writes the outputs of batch_norm_backward_reduce() from given sums: sum_g (C) = sum g and sum_gx (C) = sum g * xhat.
/// sums (2, C) receives sum_g and sum_gx. mode says whether dweight (C) and dbias (C) are set to sum_gx and sum_g, or
/// the sums are added to them; if mode is `ignore`, dweight and dbias may be missing.
void batch_norm_gradients_given(Context& context, const TensorView& sum_g, const TensorView& sum_gx, GradMode mode,
                                const TensorView& sums, const TensorView& dweight, const TensorView& dbias);

namespace backend {  // the functions that batch_norm_given.cpp calls after its checks
LOCKSTEP_BACKENDS(batch_norm_coefficients_given);
LOCKSTEP_BACKENDS(batch_norm_gradients_given);
}  // namespace backend

}  // namespace lockstep::ops
