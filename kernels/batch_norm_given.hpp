#pragma once

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

// Batch norm with sums that another op has taken on its way, a convolution that serves the norm (ConvNorm in
// conv2d.hpp). Views, and what holds of bits and of the first op of a context, as in batch_norm.hpp.

constexpr double kGivenLeft = 1.0 / 1024;

/// batch_norm_coefficients() from sums (2, C) = sum (x - shift), sum (x - shift)^2 over all N rows of samples; shift
/// (C) may be running_mean, which is read before it is written. Where the sums are of no use this op takes the
/// statistics from x: where valid < N, as the sums then have padding rows in them; where N is 0; and where in any
/// channel they are not finite, as those of a shift that is not, or cancel: their squares, of which that of the mean is
/// taken off, are then left with less than kGivenLeft of themselves, by which the error of a sum in f32 grows.
void batch_norm_coefficients_given(Context& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace);

/// What batch_norm_backward_reduce() makes of its sums, from given ones: sums (2, C) = sum_g, sum_gx (C each: sum g,
/// sum g * xhat), and dweight (C) is set to sum_gx, dbias (C) to sum_g, or these are added; with ignore both may be
/// missing.
void batch_norm_gradients_given(Context& context, const TensorView& sum_g, const TensorView& sum_gx, GradMode mode,
                                const TensorView& sums, const TensorView& dweight, const TensorView& dbias);

namespace backend {  // called after the checks of batch_norm_given.cpp
LOCKSTEP_BACKENDS(batch_norm_coefficients_given);
LOCKSTEP_BACKENDS(batch_norm_gradients_given);
}  // namespace backend

}  // namespace lockstep::ops
