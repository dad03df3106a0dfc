#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::c {

/// Returns *pointer. Throws UsageError "NAME is NULL, ..." if `pointer` is null.
template <class T>
T& given(T* pointer, const char* name) {
  require<UsageError>(pointer != nullptr, name, " is NULL, expected an address");
  return *pointer;
}

/// Returns the caller's `options` as the struct of this library's header. A caller with an older header passes a
/// shorter struct; the missing fields come from `defaults`. `oldest` is the size in bytes of the struct in the first
/// version of this soname. Throws UsageError for a smaller struct. Throws UnsupportedError for a longer struct (of a
/// newer header) if a byte after the fields that this library knows is not 0.
template <class T>
[[nodiscard]] T read_options(const T* options, const T& defaults, std::size_t oldest, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  T result = defaults;
  if (options == nullptr) {
    return result;
  }
  const std::size_t size = options->struct_size;
  require<UsageError>(size >= oldest, name, ": struct_size is ", size, ", expected the sizeof of the struct, at least ",
                      oldest);
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    require<UnsupportedError>(bytes[i] == 0, name, ": byte ", i, " is set, expected 0: this library knows ", sizeof(T),
                              " bytes of the struct, the program's header is newer");
  }
  std::memcpy(&result, options, std::min(size, sizeof(T)));
  return result;
}

/// Copies `defaults` to `options`, the struct of a caller whose header gives it `size` bytes. Sets the bytes after the
/// fields that this library knows to 0.
template <class T>
void write_options(T* options, std::size_t size, T defaults, std::size_t oldest, const char* name) {
  static_cast<void>(given(options, name));
  require<UsageError>(size >= oldest && size <= (std::size_t{1} << 20), name, ": size is ", size,
                      ", expected the sizeof of the struct, at least ", oldest);
  std::memset(static_cast<void*>(options), 0, size);
  defaults.struct_size = static_cast<std::uint32_t>(size);
  std::memcpy(static_cast<void*>(options), &defaults, std::min(size, sizeof(T)));
}

/// Returns the text of `length` bytes at `text`; if `length` is 0, a zero byte ends the text. Throws UsageError for
/// NULL, an empty text, or a zero byte within the `length` bytes.
[[nodiscard]] std::string text_of(const char* text, std::size_t length, const char* name);

/// Returns the DType that the number `dtype` of lockstep.h means. Throws DTypeError for other numbers.
[[nodiscard]] DType dtype_from(lockstep_dtype dtype, const char* name);
/// Returns the number that lockstep.h has for `dtype`. Throws DTypeError if there is none.
[[nodiscard]] lockstep_dtype to_c(DType dtype);

/// Returns values[number]. Throws UsageError if `number` is not an index of `values`. The error text shows `first`, the
/// name of the number 0 in lockstep.h, and `last`, the last part of the name of the largest number.
template <class T, std::size_t count>
[[nodiscard]] T value_of(std::int32_t number, const T (&values)[count], const char* what, const char* first,
                         const char* last) {
  require<UsageError>(number >= 0 && static_cast<std::size_t>(number) < count, what, " is ", number, ", expected 0 (",
                      first, ") to ", count - 1, " (", last, ")");
  return values[number];
}

/// Returns true for 1 and false for 0. Throws UsageError for other numbers.
[[nodiscard]] bool flag_of(std::int32_t value, const char* name);

/// Returns `view` as a TensorView. Throws UsageError for NULL; ShapeError for an invalid number of axes, extent or
/// address; DTypeError for an unknown type; DeviceError unless the memory is on `device` or on the host.
[[nodiscard]] TensorView view_of(const lockstep_view* view, Device device, const char* name);
/// Returns `vector`, which must be the TensorView of `view`. Throws ShapeError if `view.axes` names axes, because a
/// vector's elements have a fixed order.
[[nodiscard]] TensorView vector_of(const TensorView& vector, const lockstep_view& view);
/// Returns view_of() for memory that the library writes. Also throws ShapeError if two elements may share memory.
[[nodiscard]] TensorView output_of(const lockstep_view* view, Device device, const char* name);
[[nodiscard]] std::string_view axes_of(const lockstep_view& view);

/// Throws a UsageError that names the first element, in row-major order, that is NaN or infinite. Throws
/// UnsupportedError if `view` is not in host memory.
void require_finite(const TensorView& view, const char* name);
/// Throws DTypeError unless the labels in `view` are integers, and a DataError that names the first label below `least`
/// or above `most`. The values of labels outside of host memory are not checked.
void require_labels(const TensorView& view, std::int64_t least, std::int64_t most, const char* name);

}  // namespace lockstep::c
