// y = kind(x) and dx = dy * kind'(x): contiguous tensors of one shape, taken as (count) elements of f32, bf16 or f16.
//
// gpu::elementwise (elementwise.hpp) divides the elements: blocks of 256 threads in a grid-stride loop; each thread
// takes 16 bytes of each tensor, and neighbouring threads take neighbouring memory. The function is a template
// argument, so that the loop does not branch on the kind. No shared memory.
//
// Bound by memory bandwidth: the design assumes that the exponentials are computed while other threads wait for memory.
// Forward moves two tensors: 8 bytes per element in f32 and 4 in 16 bits. Backward moves three tensors: 12 bytes and 6
// bytes.

#include <lockstep/kernels/cuda/activation.hpp>
#include <lockstep/kernels/cuda/elementwise.hpp>

namespace lockstep::ops::backend {
namespace {

template <class Function>
struct Forward {
  __device__ float operator()(float x) const { return Function::value(x); }
};

template <class Function>
struct Backward {
  __device__ float operator()(float x, float dy) const { return dy * Function::slope(x); }
};

}  // namespace

void activation_forward(CudaContext& context, Activation kind, const TensorView& x, const TensorView& y) {
  gpu::visit_element(x.dtype, "activation_forward", [&]<class T>(std::type_identity<T>) {
    gpu::AnyActivation{kind}.visit([&]<class Function>(Function) {
      gpu::elementwise(context, Forward<Function>{}, x.numel(), gpu::data<T>(y), gpu::data<const T>(x));
    });
  });
}

void activation_backward(CudaContext& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  gpu::visit_element(x.dtype, "activation_backward", [&]<class T>(std::type_identity<T>) {
    gpu::AnyActivation{kind}.visit([&]<class Function>(Function) {
      gpu::elementwise(context, Backward<Function>{}, x.numel(), gpu::data<T>(dx), gpu::data<const T>(x),
                       gpu::data<const T>(dy));
    });
  });
}

}  // namespace lockstep::ops::backend
