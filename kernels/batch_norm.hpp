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
//   valid:       i64 scalar (numel 1) on the device: the first `valid` samples of the batch count, the other samples
//                are padding that takes no part in any sum; not given: all N count. The range is 0 <= valid <= N: any
//                other value is an error on the host, and is clamped to the range on a GPU
//   stats:       (2C + 1): mean[C], M2[C] (sum of squared deviations from the mean), count (rows, as a float)
//   mask:        u8, relu_mask_bytes(numel): bit i & 7 of byte i >> 3 is 1 if y[i] > 0 after the ReLU
//
// Sums run in fixed chunks of rows, which are joined in order: the bits do not depend on the number of threads. On a
// GPU the bits depend on the shape, and on whether all tensors allow 16-byte accesses. The first call of
// batch_norm_stats, batch_norm_coefficients or batch_norm_backward_reduce in a context allocates 16 KB on the GPU.
// Therefore this first call must not be captured in a CUDA graph.

/// Returns the number of bytes of the ReLU mask of a tensor of `numel` elements: a multiple of 4.
[[nodiscard]] std::size_t relu_mask_bytes(std::int64_t numel);

/// Returns the bytes of the workspace (u8, contiguous, aligned to 64 bytes) for `x` on the context's device. The ops
/// that compute sums need a workspace: batch_norm_stats, batch_norm_backward_reduce, and the ops that include one of
/// these two.
[[nodiscard]] std::size_t batch_norm_workspace_bytes(const Context& context, const TensorView& x);

/// Computes the statistics of the valid rows of x. The statistics of chunks of rows are joined by the pairwise formula
/// of Chan, Golub and LeVeque (1979). If x has no valid row, all statistics are zero.
void batch_norm_stats(Context& context, const TensorView& x, const TensorView& valid, const TensorView& stats,
                      const TensorView& workspace);

/// Merges the statistics of P parts of a batch. parts (P, 2C + 1) is contiguous, P >= 1. Row p holds the statistics of
/// part p, for example of rank p's share of the batch. The parts are joined in the order of the rows, by the formula of
/// batch_norm_stats, in f64. Parts with count 0 are left out; if all counts are 0, stats are zeros. With P == 1 stats
/// are a copy of row 0, bit for bit. In f32 a count above 2^24 is rounded.
void batch_norm_merge_stats(Context& context, const TensorView& parts, const TensorView& stats);

/// Computes coefficients (4, C) of the forward pass from `stats` (of this batch, or merged statistics). The rows are
/// scale = weight * inv_std, shift = bias - mean * scale, mean and inv_std = 1 / sqrt(M2 / count + epsilon). If
/// running_mean and running_var (C) are given, they become (1 - momentum) * running + momentum * batch, with the
/// unbiased variance (M2 / (count - 1), or M2 when count is 1). The running values do not change when count is 0. A
/// channel whose mean or M2 is not finite keeps its running values, because a NaN would stay in them for ever.
void batch_norm_finalize(Context& context, const TensorView& stats, const TensorView& weight, const TensorView& bias,
                         double epsilon, double momentum, const TensorView& running_mean, const TensorView& running_var,
                         const TensorView& coefficients);

/// Does batch_norm_stats, then batch_norm_finalize, with the bits of these two calls. On a GPU this is one launch.
void batch_norm_coefficients(Context& context, const TensorView& x, const TensorView& valid, const TensorView& weight,
                             const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                             const TensorView& running_mean, const TensorView& running_var,
                             const TensorView& coefficients, const TensorView& workspace);

/// Computes the coefficients as batch_norm_finalize does, but from running statistics, for evaluation and inference.
void batch_norm_finalize_inference(Context& context, const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& weight, const TensorView& bias, double epsilon,
                                   const TensorView& coefficients);

/// Computes y = x * scale + shift [+ residual] [then ReLU, and the mask when mask is given]. residual has the shape of
/// x, or is not given. y may be x or residual. `mask` may be given only if `relu` is true.
void batch_norm_apply(Context& context, const TensorView& x, const TensorView& coefficients, const TensorView& residual,
                      bool relu, const TensorView& y, const TensorView& mask);

/// Does batch_norm_apply with a residual that is the input x of another batch norm: y = x * scale + shift + (residual *
/// scale2 + shift2) [then ReLU, and the mask when mask is given]. scale2 and shift2 are read from
/// residual_coefficients. All arguments but mask must be given. y may be x or residual.
void batch_norm_apply_pair(Context& context, const TensorView& x, const TensorView& coefficients,
                           const TensorView& residual, const TensorView& residual_coefficients, bool relu,
                           const TensorView& y, const TensorView& mask);

/// Computes sums (2, C) = sum g, sum g * xhat over the valid rows, with g = (dy [+ dy2]) masked and xhat = (x - mean) *
/// inv_std. mode says whether dweight (C) and dbias (C) are set to sum g * xhat and sum g, or the sums are added to
/// them; if mode is `ignore`, dweight and dbias may be missing. If `masked` is given, it receives g, rounded to the
/// type of `masked`, and 0 in padding rows. In this case the sums are those of the rounded g, and
/// batch_norm_backward_apply takes masked as dy, without dy2 and mask. masked may be dy or dy2.
void batch_norm_backward_reduce(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                                const TensorView& x, const TensorView& coefficients, const TensorView& valid,
                                GradMode mode, const TensorView& sums, const TensorView& dweight,
                                const TensorView& dbias, const TensorView& masked, const TensorView& workspace);

/// Computes dx = scale * (g - sums[0] / count - xhat * sums[1] / count), and dresidual = g when dresidual is given.
/// dx and dresidual are 0 in padding rows. count is the last element of stats. If stats are merged over parts of a
/// batch, sums must be the sums over the same parts. dx and dresidual may each be dy or dy2, but not x, and not the
/// same tensor.
void batch_norm_backward_apply(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                               const TensorView& x, const TensorView& coefficients, const TensorView& sums,
                               const TensorView& stats, const TensorView& valid, const TensorView& dx,
                               const TensorView& dresidual);

/// The arguments of the backward pass for one of the two batch norms of batch_norm_apply_pair. Members mean the same as
/// the arguments of batch_norm_backward_reduce and batch_norm_backward_apply.
struct NormBackward {
  TensorView x, coefficients, sums;
  TensorView dweight{}, dbias{};  ///< may be missing if mode is ignore, and in batch_norm_backward_apply_pair
  GradMode mode = GradMode::ignore;
  TensorView dx{};  ///< output of batch_norm_backward_apply_pair
};

/// Does batch_norm_backward_reduce for the two norms of batch_norm_apply_pair. Both norms get the same gradient g,
/// which the op stores in `masked`. `mask` and `masked` must be given. On the host the op runs
/// batch_norm_backward_reduce once for each norm; on a GPU it is one launch with the same bits.
void batch_norm_backward_reduce_pair(Context& context, const TensorView& dy, const TensorView& dy2,
                                     const TensorView& mask, const NormBackward& first, const NormBackward& second,
                                     const TensorView& valid, const TensorView& masked, const TensorView& workspace);

/// Does batch_norm_backward_apply for the two norms of batch_norm_apply_pair. Argument g must be the tensor `masked`
/// that batch_norm_backward_reduce_pair wrote. On the host the op runs batch_norm_backward_apply once for each norm; on
/// a GPU it is one launch with the same bits. Both norms use the count that `stats` holds. first.dx or second.dx may be
/// g.
void batch_norm_backward_apply_pair(Context& context, const TensorView& g, const NormBackward& first,
                                    const NormBackward& second, const TensorView& stats, const TensorView& valid);

namespace backend {  // functions that batch_norm.cpp calls after its checks; the host's functions also check `valid`
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
