#pragma once

#include <cstddef>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

// Batch norm of a training step as one op per pass. On a GPU the op is one launch if all data that the pass reads fit
// into the shared memory of all multiprocessors together (batch_norm_fits). This launch reads x, and in the backward
// pass dy, only once. Otherwise, and for tensors that do not allow 16-byte accesses, the op is two launches. On the
// host each op calls two ops of batch_norm.hpp, which the comment of the op names.
//
// In all these cases the results have the same bits. On a GPU this requires that the compiler fuses multiplications and
// additions in the same way in the kernels of all these launches. A test compares the bits.
//
// The views have the shapes and types that batch_norm.hpp states for views of the same names. As stated there, results
// are reproducible bit for bit, and on a GPU the first call in a context allocates memory.

enum class NormPass : unsigned char { forward, backward };

/// Returns true when `pass` over x is one launch on this context's GPU. For a CPU context the function returns the
/// result for an H100, so that plans can describe a GPU's work on a machine without a GPU. The result is false unless C
/// is a multiple of 8.
[[nodiscard]] bool batch_norm_fits(const Context& context, const TensorView& x, NormPass pass);

/// The memory of a GPU, which may be in another machine. The default values are those of an H100.
struct ChipMemory {
  int multiprocessors = 132;
  std::size_t shared_bytes = std::size_t{228} * 1024;  ///< bytes of shared memory in each multiprocessor
};
/// Returns batch_norm_fits() for a GPU with this memory. The function assumes that at most two blocks run on a
/// multiprocessor, because the kernels use many registers. In addition to x and dy, a block takes up to 25 KB of shared
/// memory: 1 KB for the driver and up to 24 KB for the kernels' own variables.
[[nodiscard]] bool batch_norm_fits_chip(const ChipMemory& chip, const TensorView& x, NormPass pass);

/// Does batch_norm_coefficients, then batch_norm_apply. y may be x or residual.
void batch_norm_fused_forward(Context& context, const TensorView& x, const TensorView& valid, const TensorView& weight,
                              const TensorView& bias, double epsilon, double momentum, const TensorView& residual,
                              bool relu, const TensorView& stats, const TensorView& running_mean,
                              const TensorView& running_var, const TensorView& coefficients, const TensorView& y,
                              const TensorView& mask, const TensorView& workspace);

/// Does batch_norm_backward_reduce, then batch_norm_backward_apply. If masked is given, batch_norm_backward_apply reads
/// masked as its dy. Throws UsageError if dy2 is given without masked, because then g, the sum of both gradients,
/// is stored nowhere. dx and masked may each be dy or dy2, but not the same tensor.
void batch_norm_fused_backward(Context& context, const TensorView& dy, const TensorView& dy2, const TensorView& mask,
                               const TensorView& x, const TensorView& coefficients, const TensorView& stats,
                               const TensorView& valid, GradMode mode, const TensorView& sums,
                               const TensorView& dweight, const TensorView& dbias, const TensorView& masked,
                               const TensorView& dx, const TensorView& workspace);

namespace backend {  // the functions that batch_norm_fused.cpp calls after its checks
LOCKSTEP_BACKENDS(batch_norm_fits);

OnContext<CudaContext, decltype(ops::batch_norm_fused_forward)> batch_norm_fused_forward;
OnContext<CudaContext, decltype(ops::batch_norm_fused_backward)> batch_norm_fused_backward;
}  // namespace backend

}  // namespace lockstep::ops
