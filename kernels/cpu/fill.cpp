#include <lockstep/kernels/fill.hpp>

#include <algorithm>
#include <type_traits>

#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

template <class T>
T convert(double value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));  // T is bf16 or f16
  }
}

}  // namespace

void fill(CpuContext& context, double value, const TensorView& out) {
  visit_dtype(out.dtype, [&]<class T>(std::type_identity<T>) {
    const T element = convert<T>(value);
    T* p = out.as<T>();
    parallel_ranges(context, out.numel(), 65536,
                    [=](std::int64_t begin, std::int64_t end) { std::fill(p + begin, p + end, element); });
  });
}

}  // namespace lockstep::ops::backend
