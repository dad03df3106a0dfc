#include <lockstep/kernels/add.hpp>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {

void add(CpuContext& context, const TensorView& a, const TensorView& b, const TensorView& out) {
  visit_element(out.dtype, "add", [&]<class T>(std::type_identity<T>) {
    const T* pa = a.as<T>();
    const T* pb = b.as<T>();
    T* po = out.as<T>();
    parallel_ranges(context, out.numel(), 16384, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        po[i] = T(value_of(pa[i]) + value_of(pb[i]));
      }
    });
  });
}

}  // namespace lockstep::ops::backend
