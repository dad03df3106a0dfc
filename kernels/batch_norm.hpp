#pragma once

#include <cstddef>
#include <cstdint>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

// Batch normalisation (Ioffe and Szegedy, 2015) in steps that SyncBN, virtual ranks and fusions can recombine.
// kernels/cuda/batch_norm.md walks through the ops and their files.
//
//   x, y, dy, dx, residual ..: (N, ..., C) contiguous, rank >= 2, channels last; all of one type: f32, f64 or bf16 on
//                the host, f32, bf16 or f16 on a GPU
//   stats, coefficients, sums, weight, bias, running_mean, running_var, dweight, dbias: contiguous, of x's type, f32
//                with the 16-bit types
//   valid:       i64 scalar (numel 1) on the device: the first `valid` samples of the batch count, the rest is
//                padding that takes no part in any sum; not given: all N count. 0 <= valid <= N: another value is
//                an error on the host, and is replaced by the nearest of these on a GPU
//   stats:       (2C + 1): mean[C], M2[C] (sum of squared deviations from the mean), count (rows, as a float)
//   mask:        u8, relu_mask_bytes(numel): bit i & 7 of byte i >> 3 is 1 where y[i] > 0 after the ReLU
//
// Sums run in fixed chunks of rows joined in order: the bits do not depend on the number of threads. On a GPU they
// depend on the shape, and on whether all tensors allow 16-byte accesses; the first of stats, coefficients and
// backward_reduce in a context allocates 16 KB, which must not happen in a capture.

/// Returns the bytes of the ReLU mask of a tensor of numel elements (a multiple of 4).
[[nodiscard]] std::size_t relu_mask_bytes(std::int64_t numel);

/// Returns the bytes of workspace (u8, contiguous, aligned to 64 bytes) for x on this device. Ops that take sums need
/// it: batch_norm_stats, batch_norm_backward_reduce, and the ops that include one of these.
[[nodiscard]] std::size_t batch_norm_workspace_bytes(const Context& context, const TensorView& x);

/// Computes the statistics of the valid rows of x. Chunks are joined by the pairwise formula of Chan, Golub and LeVeque
/// (1979). count == 0 gives zeros.
void batch_norm_stats(Context& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
                      const TensorView& workspace);

/// Merges the statistics of P parts of a batch: row p of parts (P, 2C + 1), contiguous, P >= 1, is the stats of part p,
/// such as the share of rank p. The parts are joined in this order, by the formula of batch_norm_stats, in f64; parts
/// with count 0 take no part, and only such parts give zeros. With P == 1 stats are the part, bit for bit. In f32 a
/// count beyond 2^24 is rounded.
void batch_norm_merge_stats(Context& context, const TensorView& parts, const TensorView& stats);

/// Computes the per-channel numbers of the forward pass from stats (of this batch, or merged):
///   coefficients: (4, C): scale = weight * inv_std, shift = bias - mean * scale, mean, inv_std
/// with inv_std = 1 / sqrt(M2 / count + epsilon). When given, running_mean and running_var (C) become (1 - momentum) *
/// running + momentum * batch, with the unbiased variance (M2 / (count - 1); count 1 counts as 2). They stay as they
/// are when count is 0, and in a channel whose mean or M2 is not finite: one NaN would stay for ever.
void batch_norm_finalize(Context& context, const TensorView& stats, const TensorView& weight, const TensorView& bias,
                         double epsilon, double momentum, const TensorView& running_mean, const TensorView& running_var,
                         const TensorView& coefficients);

/// Does batch_norm_stats, then batch_norm_finalize, with the same bits; on a GPU in one launch.
void batch_norm_coefficients(Context& context, const TensorView& x, const TensorView& valid, const TensorView& weight,
                             const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                             const TensorView& running_mean, const TensorView& running_var,
                             const TensorView& coefficients, const TensorView& workspace);

/// Computes the coefficients of batch_norm_finalize from running statistics, for evaluation and inference.
void batch_norm_finalize_inference(Context& context, const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& weight, const TensorView& bias, double epsilon,
                                   const TensorView& coefficients);

/// y = x * scale + shift [+ residual] [then ReLU, and the mask when given]. residual: not given or the shape of x.
/// y may be x or residual. mask needs relu.
void batch_norm_apply(Context& context, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                      bool relu, const TensorView& y, const TensorView& mask);

/// Does batch_norm_apply with a residual that is x of another batch norm: y = x * scale + shift + (residual * scale2 +
/// shift2), with scale2 and shift2 of residual_coefficients, [then ReLU, and the mask when given]. All but mask are
/// given. y may be x or residual.
void batch_norm_apply_pair(Context& context, const TensorView& x, const TensorView& coefficients,
                           const TensorView& residual, const TensorView& residual_coefficients, bool relu,
                           const TensorView& y, const TensorView& mask);

/// With g = (dy [+ dy2]) masked: sums (2, C) = sum g, sum g * xhat over the valid rows, xhat = (x - mean) * inv_std.
/// mode: dweight (C) is set to sum g * xhat and dbias (C) to sum g, or the sums are added; with ignore both may be
/// missing. masked (when given) = g, rounded to its type, 0 in padding rows. The sums are then those of the rounded g,
/// and batch_norm_backward_apply takes masked for dy, without dy2 and mask. masked may be dy or dy2.
void batch_norm_backward_reduce(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                                const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                                GradMode mode, const TensorView& sums, const TensorView& dweight,
                                const TensorView& dbias, const TensorView& masked, const TensorView& workspace);

/// dx = scale * (g - sums[0] / count - xhat * sums[1] / count), 0 in padding rows; dresidual (when given) = g, 0 in
/// padding rows. count is the last element of stats; with stats merged over parts of a batch, sums are the sums over
/// the same parts. dx and dresidual may each be dy or dy2, but not x and not each other.
void batch_norm_backward_apply(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                               const TensorView& x, const TensorView& coefficients, const TensorView& sums,
                               const TensorView& stats, const TensorView& valid, const TensorView& dx,
                               const TensorView& dresidual);

/// One of the two batch norms of batch_norm_apply_pair in its backward pass, with the views of the ops above.
struct NormBackward {
  TensorView x, coefficients, sums;
  TensorView dweight{}, dbias{};  ///< may be missing when mode is ignore, and in backward_apply_pair
  GradMode mode = GradMode::ignore;
  TensorView dx{};  ///< output of backward_apply_pair
};

/// Does batch_norm_backward_reduce for both norms: each gets the gradient g, which is stored in masked. mask and masked
/// are given. On the host this is a call for each norm, on a GPU one launch with the same bits.
void batch_norm_backward_reduce_pair(Context& context, const TensorView& dy, const TensorView& dy2,
                                     const TensorView& mask, const NormBackward& first, const NormBackward& second,
                                     const TensorView& valid, const TensorView& masked, const TensorView& workspace);

/// Does batch_norm_backward_apply for both norms and the gradient g, `masked` of batch_norm_backward_reduce_pair, which
/// both share. On the host this is a call for each norm, on a GPU one launch with the same bits. The count of stats
/// holds for both norms. One dx may be g.
void batch_norm_backward_apply_pair(Context& context, const TensorView& g, const NormBackward& first,
                                    const NormBackward& second, const TensorView& stats, const TensorView& valid);

namespace backend {  // called after the checks of batch_norm.cpp; a host backend checks the value of valid
LOCKSTEP_BACKENDS(batch_norm_workspace_bytes);
LOCKSTEP_BACKENDS(batch_norm_stats);
LOCKSTEP_BACKENDS(batch_norm_coefficients);
LOCKSTEP_BACKENDS(batch_norm_merge_stats);
LOCKSTEP_BACKENDS(batch_norm_finalize);
LOCKSTEP_BACKENDS(batch_norm_finalize_inference);
LOCKSTEP_BACKENDS(batch_norm_apply);
LOCKSTEP_BACKENDS(batch_norm_apply_pair);
LOCKSTEP_BACKENDS(batch_norm_backward_reduce);
LOCKSTEP_BACKENDS(batch_norm_backward_apply);

OnContext<CudaContext, decltype(ops::batch_norm_backward_reduce_pair)> batch_norm_backward_reduce_pair;
OnContext<CudaContext, decltype(ops::batch_norm_backward_apply_pair)> batch_norm_backward_apply_pair;
}  // namespace backend

}  // namespace lockstep::ops
