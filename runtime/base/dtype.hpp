#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/half.hpp>

namespace lockstep {

/// Types of a tensor's elements. No file format depends on the order of the enumerators.
enum class DType : std::uint8_t { f32, f64, bf16, f16, u8, i32, i64, u64 };

[[nodiscard]] std::size_t size_of(DType dtype);          ///< returns the bytes of one element
[[nodiscard]] std::string_view name_of(DType dtype);     ///< returns the type's name: "f32", "bf16", ...
[[nodiscard]] DType parse_dtype(std::string_view text);  ///< inverse of name_of(); UsageError for an unknown name
[[nodiscard]] bool is_floating(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

namespace detail {
template <class... Types>
struct TypeList {
  /// Returns the index of T in Types, or the number of Types if T is not one of them.
  template <class T>
  static consteval std::size_t place() {
    std::size_t place = 0;
    static_cast<void>(((std::is_same_v<T, Types> || (++place, false)) || ...));
    return place;
  }
};
using ElementTypes =  // C++ types of the elements, in the order of DType
    TypeList<float, double, BFloat16, Float16, std::uint8_t, std::int32_t, std::int64_t, std::uint64_t>;
template <class T>
concept Element = ElementTypes::place<std::remove_cv_t<T>>()
< 8;
}  // namespace detail

template <detail::Element T>
inline constexpr DType dtype_of = static_cast<DType>(detail::ElementTypes::place<std::remove_cv_t<T>>());

/// Calls f(std::type_identity<T>{}), where T is the C++ type of dtype. Handles all eight types.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(std::type_identity<float>{});
    case DType::f64:
      return f(std::type_identity<double>{});
    case DType::bf16:
      return f(std::type_identity<BFloat16>{});
    case DType::f16:
      return f(std::type_identity<Float16>{});
    case DType::u8:
      return f(std::type_identity<std::uint8_t>{});
    case DType::i32:
      return f(std::type_identity<std::int32_t>{});
    case DType::i64:
      return f(std::type_identity<std::int64_t>{});
    case DType::u64:
      break;
  }
  return f(std::type_identity<std::uint64_t>{});
}

/// Calls f(std::type_identity<T>{}), T = float or double, for f32 or f64. Throws DTypeError for every other type.
template <class F>
decltype(auto) visit_compute(DType dtype, std::string_view op, F&& f) {
  require<DTypeError>(dtype == DType::f32 || dtype == DType::f64, op, ": dtype is ", name_of(dtype),
                      ", expected f32 or f64");
  if (dtype == DType::f32) {
    return f(std::type_identity<float>{});
  }
  return f(std::type_identity<double>{});
}

}  // namespace lockstep
