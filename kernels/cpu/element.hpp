#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/dtype.hpp>

/// Elements as host loops see them: float, double or BFloat16 in memory; in registers, and in sums, parameters and
/// statistics beside the tensor, a Value of it. BFloat16 has no arithmetic, so that a loop that forgets to convert does
/// not compile. Both conversions are shifts, adds and a selection, which compilers vectorise.
namespace lockstep::ops {

/// float for BFloat16, else T: what accumulation_dtype() says.
template <class T>
using Value = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T>
[[nodiscard]] Value<T> value_of(T element) {
  return static_cast<Value<T>>(element);
}

/// Rounds to nearest even; a double on its way to bf16 to f32 before.
template <class T, class From>
[[nodiscard]] T element_of(From value) {
  return T(static_cast<Value<T>>(value));
}

/// to = value, for loops marked `omp simd`: there gcc vectorises no assignment of a class.
template <class T>
void store(Value<T> value, T& to) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    to.bits = BFloat16(value).bits;
  } else {
    to = value;
  }
}

template <class T>
void store_values(const Value<T>* from, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = T(from[i]);
  }
}

/// Calls f(std::type_identity<T>{}) with T float, double or BFloat16. DTypeError for the other types.
template <class F>
decltype(auto) visit_element(DType dtype, std::string_view op, F&& f) {
  if (dtype == DType::bf16) {
    return f(std::type_identity<BFloat16>{});
  }
  return visit_compute(dtype, op, f);
}

}  // namespace lockstep::ops
