#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/dtype.hpp>

/// Element types of loops on the host. In memory an element is float, double or BFloat16. Loops compute with Value<T>,
/// which is also the type of a tensor's sums, parameters and statistics. BFloat16 has no arithmetic, so a loop that
/// forgets to convert does not compile. Compilers vectorise value_of() and element_of() (shifts, adds and a selection).
namespace lockstep::ops {

/// The type in which loops compute with elements of type T: float for BFloat16, otherwise T. This is the C++ type of
/// accumulation_dtype().
template <class T>
using Value = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T>
[[nodiscard]] Value<T> value_of(T element) {
  return static_cast<Value<T>>(element);
}

/// Rounds `value` to nearest even. For bf16 a double is rounded to f32 first.
template <class T, class From>
[[nodiscard]] T element_of(From value) {
  return T(static_cast<Value<T>>(value));
}

/// Sets to = value in loops marked `omp simd`: in such loops gcc does not vectorise the assignment of a class.
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

/// Calls f(std::type_identity<T>{}) with T float, double or BFloat16. Throws DTypeError for other types.
template <class F>
decltype(auto) visit_element(DType dtype, std::string_view op, F&& f) {
  if (dtype == DType::bf16) {
    return f(std::type_identity<BFloat16>{});
  }
  return visit_compute(dtype, op, f);
}

}  // namespace lockstep::ops

namespace lockstep::ops::backend {
using std::int64_t;  // the files of ops use int64_t unqualified
}  // namespace lockstep::ops::backend
