#include <lockstep/kernels/cuda/activation.hpp>
#include <lockstep/kernels/cuda/elementwise.hpp>

namespace lockstep::ops::backend {
namespace {

// Memory-bound: forward moves two tensors, backward three; the exponentials take no additional time.

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
