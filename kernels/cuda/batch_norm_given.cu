// Batch norm of x (rows, C) whose sums a convolution has computed while its output was in registers (batch_norm.md).
// coefficients_given_kernel computes stats and coefficients from sums (2, C); gradients_given_kernel writes sums,
// dweight and dbias. One thread takes a channel: 256 threads a block. If the given sums can be used, the kernels do not
// read x and move only a few numbers per channel, so the latency of the launch bounds them.
// If the given sums cannot be used (padding rows, a value that is not finite, cancellation), coefficients_given_kernel
// sums x itself, with the tiling of batch_norm.cu; then memory bandwidth bounds the kernel. The sums are in device
// memory, so only the kernel can decide whether to sum x. So the grid always has the blocks that summing x needs.

#include <lockstep/kernels/batch_norm_given.hpp>

#include <cstdint>
#include <type_traits>

#include <lockstep/kernels/cuda/batch_norm_steps.hpp>
#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/cuda/tickets.hpp>

namespace lockstep::ops::backend {
namespace {

using namespace batch_norm;

/// Sums that another op has computed over all rows of x. The rows of `sums` (2, C) hold the sums of x - shift and of (x
/// - shift)^2. shift: (C), may be to.running_mean.
struct GivenSums {
  const float* sums;
  const float* shift;
};

/// Returns true if the sums of channel `c` in `sums` (2, channels) are finite and precise enough: at least the share
/// kGivenLeft of the sum of squares must remain when the mean's part is subtracted. `rows` is the number of rows in the
/// sums.
__device__ bool sum_holds(const float* sums, int64_t channels, int64_t c, double rows) {
  const double sum = static_cast<double>(sums[c]);
  const double squares = static_cast<double>(sums[channels + c]);
  return isfinite(squares) && squares - sum * (sum / rows) >= squares * kGivenLeft;
}

/// Computes stats, coefficients and running statistics. x: (rows, C); valid: scalar or null; given: GivenSums; means,
/// squares: (chunks, C); tickets: counters that are 0 before and after the launch; stats: (2C + 1). Each block checks
/// the given sums of all channels, so that all blocks make the same decision. If the sums can be used, x is not read: a
/// thread takes a channel, reads 20 bytes and writes 24 (with running statistics 28 and 32). Otherwise the blocks
/// together read the valid rows of x once.
template <class T, int kCount>
__global__ void __launch_bounds__(kBlock, 2)
    coefficients_given_kernel(Tiling tiling, Batch batch, const T* x, const int64_t* valid, GivenSums given,
                              double* means, float* squares, unsigned* tickets, float* stats, Finalize to) {
  gpu::wait_for_earlier();
  const int64_t rows = batch.samples * batch.per_sample;
  const int64_t channels = tiling.channels;
  const double count = static_cast<double>(rows);
  bool hold = rows > 0 && valid_rows(batch, valid) == rows;
  for (int64_t c = threadIdx.x; c < channels && hold; c += blockDim.x) {
    hold = sum_holds(given.sums, channels, c, count);
  }
  if (__syncthreads_and(hold ? 1 : 0) == 0) {
    sum_moments<kCount>(tiling, batch, x, valid, means, squares, tickets, stats, to,
                        [](int64_t, int, const Pack<T, kCount>&) {});
    return;
  }
  for (int64_t c = gpu::grid_thread(); c < channels; c += gpu::grid_threads()) {
    const double sum = static_cast<double>(given.sums[c]);
    const double deviations = static_cast<double>(given.sums[channels + c]) - sum * (sum / count);
    const float mean = static_cast<float>(static_cast<double>(given.shift[c]) + sum / count);
    const float square = static_cast<float>(deviations);
    stats[c] = mean;
    stats[channels + c] = square;
    if (c == 0) {
      stats[2 * channels] = static_cast<float>(rows);
    }
    finalize(to, mean, square, static_cast<float>(rows), channels, c);
  }
}

/// Writes sums, dweight and dbias from sum_g and sum_gx; with `add` adds to dweight and dbias. sum_g, sum_gx, dweight,
/// dbias: (C), sums: (2, C); dweight and dbias are null if they are not wanted. A thread takes a channel, for which it
/// moves 24 bytes, with `add` 32.
__global__ void __launch_bounds__(kBlock)
    gradients_given_kernel(int64_t channels, const float* sum_g, const float* sum_gx, bool add, float* sums,
                           float* dweight, float* dbias) {
  gpu::wait_for_earlier();
  for (int64_t c = gpu::grid_thread(); c < channels; c += gpu::grid_threads()) {
    const float g = sum_g[c];
    const float gx = sum_gx[c];
    sums[c] = g;
    sums[channels + c] = gx;
    if (dweight != nullptr) {
      dbias[c] = add ? dbias[c] + g : g;
      dweight[c] = add ? dweight[c] + gx : gx;
    }
  }
}

}  // namespace

void batch_norm_coefficients_given(CudaContext& context, const TensorView& x, const TensorView& valid,
                                   const TensorView& sums, const TensorView& shift, const TensorView& weight,
                                   const TensorView& bias, double epsilon, double momentum, const TensorView& stats,
                                   const TensorView& running_mean, const TensorView& running_var,
                                   const TensorView& coefficients, const TensorView& workspace) {
  gpu::visit_element(x.dtype, "batch_norm_coefficients_given", [&]<class T>(std::type_identity<T>) {
    const bool aligned = gpu::aligned_to_vectors(gpu::data<const T>(x));
    gpu::visit_pieces<T>(aligned, x.shape.back(), [&]<int kCount>(std::integral_constant<int, kCount>) {
      const Tiling tiling = tiling_of(x, kCount);
      auto* means = static_cast<double*>(workspace.data);
      auto* squares = reinterpret_cast<float*>(means + tiling.chunks * tiling.channels);
      gpu::launch(coefficients_given_kernel<T, kCount>, dim3(blocks_of(tiling)), dim3(kBlock), 0, context.stream(),
                  tiling, batch_of(x), gpu::data<const T>(x), pointer<const int64_t>(valid),
                  GivenSums{gpu::data<const float>(sums), gpu::data<const float>(shift)}, means, squares,
                  gpu::tickets(context), gpu::data<float>(stats),
                  finalize_to(weight, bias, epsilon, momentum, running_mean, running_var, coefficients));
    });
  });
}

void batch_norm_gradients_given(CudaContext& context, const TensorView& sum_g, const TensorView& sum_gx, GradMode mode,
                                const TensorView& sums, const TensorView& dweight, const TensorView& dbias) {
  const int64_t channels = sum_g.shape[0];
  const bool wanted = mode != GradMode::ignore;
  gpu::launch(gradients_given_kernel, dim3(gpu::blocks_for(channels, kBlock)), dim3(kBlock), 0, context.stream(),
              channels, gpu::data<const float>(sum_g), gpu::data<const float>(sum_gx), mode == GradMode::accumulate,
              gpu::data<float>(sums), wanted ? gpu::data<float>(dweight) : nullptr,
              wanted ? gpu::data<float>(dbias) : nullptr);
}

}  // namespace lockstep::ops::backend
