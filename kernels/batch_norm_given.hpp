#pragma once

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

// Batch norm with sums that another op has taken in its own pass: a convolution that serves the norm (ConvNorm in
// conv2d.hpp). Views as in batch_norm.hpp; its notes on bits, and on what the first op of a context allocates, hold for
// these ops, too.

/// The least share of sum (x - shift)^2 that must remain after the square of the mean is subtracted.
constexpr double kGivenLeft = 1.0 / 1024;

/// Does batch_norm_coefficients() from sums (2, C) = sum (x - shift), sum (x - shift)^2 over all N rows of samples;
/// shift (C) may be running_mean, which is read before it is written. Where the sums cannot be used this op takes the
/// statistics from x:
///   - valid < N: the sums have padding rows in them;
///   - N is 0;
///   - a sum of any channel is not finite, for example because its shift is not;
///   - a sum of any channel cancels: of sum (x - shift)^2, less the square of the mean, a share of less than kGivenLeft
///     remains. The error of a sum in f32 grows by the inverse of this share.
void batch_norm_coefficients_given(Context& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace);

/// Writes what batch_norm_backward_reduce() makes of its sums, from given ones: sums (2, C) = sum_g, sum_gx (C each:
/// sum g, sum g * xhat). dweight (C) is set to sum_gx and dbias (C) to sum_g, or the sums are added; with ignore both
/// may be missing.
void batch_norm_gradients_given(Context& context, const TensorView& sum_g, const TensorView& sum_gx, GradMode mode,
                                const TensorView& sums, const TensorView& dweight, const TensorView& dbias);

namespace backend {  // called after the checks of batch_norm_given.cpp
LOCKSTEP_BACKENDS(batch_norm_coefficients_given);
LOCKSTEP_BACKENDS(batch_norm_gradients_given);
}  // namespace backend

}  // namespace lockstep::ops
