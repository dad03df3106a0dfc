#include <lockstep/kernels/scale.hpp>

#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kGrain = 16384;  // number of elements that justify another thread

}  // namespace

void scale(CpuContext& context, const TensorView& factor, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "scale", [&]<class T>(std::type_identity<T>) {
    const Value<T> by = *factor.as<Value<T>>();
    const T* px = x.as<T>();
    T* py = y.as<T>();
    parallel_ranges(context, x.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd  // y may be x: element i depends on element i only
      for (std::int64_t i = begin; i < end; ++i) {
        store(by * value_of(px[i]), py[i]);
      }
    });
  });
}

}  // namespace lockstep::ops::backend
