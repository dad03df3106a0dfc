#pragma once

#include <cstddef>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/dispatch.hpp>

namespace lockstep::ops {

// Batch norm of a training step as one op per pass. If the multiprocessors of a GPU together can hold in shared memory
// all that a pass reads (batch_norm_fits), the op is one launch, which reads x, and in backward dy, once. Otherwise,
// and for tensors that do not allow 16-byte accesses, the op is two launches. On the host the op runs the two ops of
// batch_norm.hpp that its comment names. The bits are those of these two ops: a test checks on a GPU that the compiler
// fuses multiplications and additions alike in all of their kernels.
//
// Views are those of batch_norm.hpp. Its notes on bits, and on the memory that the first op of a context allocates,
// hold for these ops, too.

enum class NormPass : unsigned char { forward, backward };

/// Returns true when `pass` over x is one launch on this context's GPU. A CPU context answers for an H100, so that
/// plans can describe a GPU's work on a machine without a GPU. The answer is false unless C is a multiple of 8.
[[nodiscard]] bool batch_norm_fits(const Context& context, const TensorView& x, NormPass pass);

/// The memory of a GPU, which may be in another machine. The default values are those of an H100.
struct ChipMemory {
  int multiprocessors = 132;
  std::size_t shared_bytes = std::size_t{228} * 1024;  ///< bytes of shared memory in each multiprocessor
};
/// Returns batch_norm_fits() for a GPU with this memory. Registers allow two blocks per multiprocessor. In each block
/// the driver takes 1 KB, and the kernels' own variables take up to 24 KB.
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
