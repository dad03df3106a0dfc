#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/half.hpp>

namespace lockstep {

/// Element types. The order is not part of any file format.
enum class DType : std::uint8_t { f32, f64, bf16, f16, u8, i32, i64, u64 };

[[nodiscard]] std::size_t size_of(DType dtype);          ///< bytes per element
[[nodiscard]] std::string_view name_of(DType dtype);     ///< "f32", "bf16", ...
[[nodiscard]] DType parse_dtype(std::string_view text);  ///< inverse of name_of; UsageError otherwise
[[nodiscard]] bool is_floating(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::uint64_t> {
  static constexpr DType value = DType::u64;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<std::remove_cv_t<T>>::value;

/// Calls f(std::type_identity<T>{}) with the C++ type of dtype. All eight types.
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

/// Calls f with float or double: the types the reference backend computes in. DTypeError for every other type.
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
