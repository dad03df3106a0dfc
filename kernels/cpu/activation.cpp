#include <lockstep/kernels/cpu/activation.hpp>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/base/parallel.hpp>

namespace lockstep::ops::backend {

void activation_forward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "activation_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    activations::visit(kind, [&]<class Function>(Function) {
      parallel_ranges(context, x.numel(), activations::kGrain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          py[i] = T(Function::value(value_of(px[i])));
        }
      });
    });
  });
}

void activation_backward(CpuContext& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  visit_element(x.dtype, "activation_backward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    activations::visit(kind, [&]<class Function>(Function) {
      parallel_ranges(context, x.numel(), activations::kGrain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          pdx[i] = T(value_of(pdy[i]) * Function::slope(value_of(px[i])));
        }
      });
    });
  });
}

}  // namespace lockstep::ops::backend
