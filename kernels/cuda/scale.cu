// Computes y = factor * x. x and y are contiguous, taken as (count) elements of f32, bf16 or f16; factor is a scalar on
// the device. gpu::elementwise (elementwise.hpp) divides the elements: blocks of 256 threads in a grid-stride loop;
// each thread takes 16 bytes of each tensor, and neighbouring threads take neighbouring memory. The kernel reads the
// factor when it runs, so that each replay of a captured launch uses the present factor.
// Bound by memory bandwidth: 8 bytes per element in f32 and 4 in 16 bits.

#include <lockstep/kernels/cuda/elementwise.hpp>
#include <lockstep/kernels/scale.hpp>

namespace lockstep::ops::backend {
namespace {

/// Multiplies x by the factor. For each 16 bytes of x, a thread loads the factor once, from the first-level cache.
struct Multiply {
  const float* factor;

  __device__ float operator()(float x) const { return *factor * x; }
};

}  // namespace

void scale(CudaContext& context, const TensorView& factor, const TensorView& x, const TensorView& y) {
  gpu::visit_element(x.dtype, "scale", [&]<class T>(std::type_identity<T>) {
    gpu::elementwise(context, Multiply{gpu::data<const float>(factor)}, x.numel(), gpu::data<T>(y),
                     gpu::data<const T>(x));
  });
}

}  // namespace lockstep::ops::backend
