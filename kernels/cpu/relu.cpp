#include <lockstep/kernels/relu.hpp>

#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kGrain = 16384;  // number of elements that justify another thread

}  // namespace

// Loops are marked `omp simd`, as element i depends on element i only: the output may be an input.

void relu_forward(CpuContext& context, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "relu_forward", [&]<class T>(std::type_identity<T>) {
    const T* px = x.as<T>();
    T* py = y.as<T>();
    parallel_ranges(context, x.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const Value<T> v = value_of(px[i]);
        store(v <= 0 ? 0 : v, py[i]);  // NaN stays NaN
      }
    });
  });
}

void relu_backward(CpuContext& context, const TensorView& y, const TensorView& dy, const TensorView& dx) {
  visit_element(y.dtype, "relu_backward", [&]<class T>(std::type_identity<T>) {
    const T* py = y.as<T>();
    const T* pdy = dy.as<T>();
    T* pdx = dx.as<T>();
    parallel_ranges(context, y.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const Value<T> g = value_of(pdy[i]);
        store(value_of(py[i]) > 0 ? g : 0, pdx[i]);
      }
    });
  });
}

}  // namespace lockstep::ops::backend
