// Moves y toward x by a fraction of the distance between them. x and y are contiguous tensors of one shape, taken as
// (count) elements of f32, bf16 or f16. gpu::elementwise (elementwise.hpp) divides the elements: blocks of 256 threads
// in a grid-stride loop; each thread takes 16 bytes of each tensor, and neighbouring threads take neighbouring memory.
// No data is used twice, so there is no shared memory.
// Memory bandwidth bounds the kernel: x and y are read, y is written, 12 bytes per element in f32 and 6 in 16 bits.

#include <lockstep/kernels/cuda/elementwise.hpp>
#include <lockstep/kernels/lerp.hpp>

namespace lockstep::ops::backend {
namespace {

struct Approach {
  float weight;

  __device__ float operator()(float x, float y) const { return y + weight * (x - y); }
};

}  // namespace

void lerp(CudaContext& context, double weight, const TensorView& x, const TensorView& y) {
  gpu::visit_element(x.dtype, "lerp", [&]<class T>(std::type_identity<T>) {
    gpu::elementwise(context, Approach{static_cast<float>(weight)}, x.numel(), gpu::data<T>(y), gpu::data<const T>(x),
                     gpu::data<const T>(y));
  });
}

}  // namespace lockstep::ops::backend
