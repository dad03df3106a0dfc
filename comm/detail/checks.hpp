#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm::detail {

// Requirements that all backends check. Each comment has the requirement, and the error that is thrown otherwise.
// Private.

/// Requires a host stream (DeviceError).
void check_stream(std::string_view op, const Stream& stream);
/// Requires a host stream and a tensor on the host (DeviceError), and a contiguous tensor (ShapeError).
void check_host(std::string_view op, const Stream& stream, const TensorView& view);
/// These two check like check_stream() and check_host(), for a communicator on `device`.
void check_stream(Device device, std::string_view op, const Stream& stream);
void check_on(Device device, std::string_view op, const Stream& stream, const TensorView& view);
/// These two check all requirements of the operation for tensors on `device` (DeviceError, DTypeError, ShapeError).
/// They return true if the operation is in place: the smaller tensor is part number `rank` of the larger.
bool check_reduce_scatter(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                          int size);
bool check_all_gather(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                      int size);
void check_all_to_all(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int size);

/// Requires a type that can be summed, so not u8 (DTypeError).
void check_summable(std::string_view op, DType dtype);
/// Requires 0 <= rank < size (UsageError).
void check_rank(std::string_view op, int rank, int size);
/// Requires that `peer` is a rank of the communicator other than this one (UsageError).
void check_other_rank(std::string_view op, int peer, int rank, int size);

/// Calls f(std::type_identity<T>{}) with the C++ type T of a dtype that can be summed (DTypeError for u8).
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
