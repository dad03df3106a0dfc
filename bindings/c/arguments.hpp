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

/// UsageError "NAME is NULL" unless given.
template <class T>
T& given(T* pointer, const char* name) {
  require<UsageError>(pointer != nullptr, name, " is NULL");
  return *pointer;
}

/// The caller's struct of options as this library knows it: what a shorter one lacks comes from `defaults`. oldest: its
/// size in the first version of this soname. UsageError for a size below that, UnsupportedError for one of a newer
/// header that holds something behind what is known.
template <class T>
[[nodiscard]] T read_options(const T* options, const T& defaults, std::size_t oldest, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  T result = defaults;
  if (options == nullptr) {
    return result;
  }
  const std::size_t size = options->struct_size;
  require<UsageError>(size >= oldest, name, ": struct_size is ", size, ", expected sizeof, at least ", oldest);
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    require<UnsupportedError>(bytes[i] == 0, name, ": byte ", i, " is set, this library knows ", sizeof(T),
                              " bytes; the header is newer");
  }
  std::memcpy(&result, options, std::min(size, sizeof(T)));
  return result;
}

/// Writes a struct for a caller whose header says that it has `size` bytes.
template <class T>
void write_options(T* options, std::size_t size, T defaults, std::size_t oldest, const char* name) {
  static_cast<void>(given(options, name));
  require<UsageError>(size >= oldest && size <= (std::size_t{1} << 20), name, ": size is ", size,
                      ", expected sizeof, at least ", oldest);
  std::memset(static_cast<void*>(options), 0, size);
  defaults.struct_size = static_cast<std::uint32_t>(size);
  std::memcpy(static_cast<void*>(options), &defaults, std::min(size, sizeof(T)));
}

/// A pointer and a length; length 0: ended by a zero. UsageError for NULL, an empty text, or a zero within.
[[nodiscard]] std::string text_of(const char* text, std::size_t length, const char* name);

/// DTypeError for another number.
[[nodiscard]] DType dtype_from(lockstep_dtype dtype, const char* name);
/// DTypeError for a type that C has no number for.
[[nodiscard]] lockstep_dtype to_c(DType dtype);

/// The value that C's `number` stands for; numbers count `values` from 0. UsageError for another number, which names
/// the first one as C's header has it, and the end of the last one's name.
template <class T, std::size_t count>
[[nodiscard]] T value_of(std::int32_t number, const T (&values)[count], const char* what, const char* first,
                         const char* last) {
  require<UsageError>(number >= 0 && static_cast<std::size_t>(number) < count, what, " is ", number, ", expected 0 (",
                      first, ") to ", count - 1, " (", last, ")");
  return values[number];
}

/// 0 or 1; UsageError.
[[nodiscard]] bool flag_of(std::int32_t value, const char* name);

/// The caller's view. UsageError for NULL; ShapeError for a number of axes, an extent or an address that cannot be,
/// DTypeError, DeviceError for another device than `device` or, except for a GPU's own, the host.
[[nodiscard]] TensorView view_of(const lockstep_view* view, Device device, const char* name);
/// The same for memory that is written: ShapeError where two elements may share memory.
[[nodiscard]] TensorView output_of(const lockstep_view* view, Device device, const char* name);
[[nodiscard]] std::string_view axes_of(const lockstep_view& view);

/// UsageError naming the first element that is NaN or infinite, in row-major order. UnsupportedError for memory of a
/// GPU.
void require_finite(const TensorView& view, const char* name);
/// Labels: DTypeError unless they are integers; DataError naming the first one on the host that is not in [least,
/// most].
void require_labels(const TensorView& view, std::int64_t least, std::int64_t most, const char* name);

}  // namespace lockstep::c
