#include <lockstep/kernels/lerp.hpp>

#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kGrain = 16384;  // number of elements that justify another thread

}  // namespace

void lerp(CpuContext& context, double weight, const TensorView& x, const TensorView& y) {
  visit_element(x.dtype, "lerp", [&]<class T>(std::type_identity<T>) {
    const auto share = static_cast<Value<T>>(weight);
    const T* px = x.as<T>();
    T* py = y.as<T>();
    parallel_ranges(context, x.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const Value<T> from = value_of(py[i]);
        store(from + share * (value_of(px[i]) - from), py[i]);
      }
    });
  });
}

}  // namespace lockstep::ops::backend
