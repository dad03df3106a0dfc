#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm::detail {

// Argument checks for all backends. `op` is the operation's name for error texts.

/// Throws DeviceError unless `stream` is a host stream.
void check_stream(std::string_view op, const Stream& stream);
/// Throws DeviceError unless `stream` and `view` are on the host, and ShapeError unless `view` is contiguous.
void check_host(std::string_view op, const Stream& stream, const TensorView& view);
/// The following two functions check like check_stream() and check_host(), but with `device` in place of the host.
void check_stream(Device device, std::string_view op, const Stream& stream);
void check_on(Device device, std::string_view op, const Stream& stream, const TensorView& view);
/// Each of the following three functions checks all arguments of the operation in its name. They throw DeviceError,
/// DTypeError or ShapeError. The first two functions return true if the operation is in place: the smaller tensor is
/// part number `rank` of the larger tensor.
bool check_reduce_scatter(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                          int size);
bool check_all_gather(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                      int size);
void check_all_to_all(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int size);

/// Throws DTypeError if elements of type `dtype` cannot be summed, that is, for u8.
void check_summable(std::string_view op, DType dtype);
/// Throws UsageError unless 0 <= rank < size.
void check_rank(std::string_view op, int rank, int size);
/// Throws UsageError unless `peer` is a rank of the communicator other than `rank`, this rank.
void check_other_rank(std::string_view op, int peer, int rank, int size);

/// Calls f(std::type_identity<T>{}) with the C++ type T of `dtype`. Throws DTypeError for u8, which cannot be summed.
template <class F>
void visit_sum(DType dtype, F&& f) {
  check_summable("sum", dtype);
  visit_dtype(dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (!std::is_same_v<T, std::uint8_t>) {
      f(type);
    }
  });
}

/// Returns a + b in type T. Integers wrap; 16-bit floating-point numbers are added in f32 and rounded.
template <class T>
[[nodiscard]] T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    return T(static_cast<float>(a) + static_cast<float>(b));
  }
}

}  // namespace lockstep::comm::detail
