#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm::detail {

// Preconditions that the backends share. Each comment says the requirement and the error thrown otherwise. Private.

/// The stream is a host stream: DeviceError.
void check_stream(std::string_view op, const Stream& stream);
/// The tensor is contiguous and on the host, the stream is a host stream: DeviceError, ShapeError.
void check_host(std::string_view op, const Stream& stream, const TensorView& view);
/// As check_stream() and check_host(), for a communicator on `device`.
void check_stream(Device device, std::string_view op, const Stream& stream);
void check_on(Device device, std::string_view op, const Stream& stream, const TensorView& view);
/// Check all requirements of the operation for tensors on `device`: DeviceError, DTypeError, ShapeError. True: the
/// operation is in place, so the smaller tensor is the rank-th part of the larger.
bool check_reduce_scatter(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                          int size);
bool check_all_gather(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                      int size);
void check_all_to_all(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int size);

/// The type can be summed, so it is not u8: DTypeError.
void check_summable(std::string_view op, DType dtype);
/// 0 <= rank < size: UsageError.
void check_rank(std::string_view op, int rank, int size);
/// `peer` is a rank of the communicator other than this one: UsageError.
void check_other_rank(std::string_view op, int peer, int rank, int size);

/// Calls f(std::type_identity<T>{}) for the types that can be summed.
template <class F>
void visit_sum(DType dtype, F&& f) {
  check_summable("sum", dtype);
  visit_dtype(dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (!std::is_same_v<T, std::uint8_t>) {
      f(type);
    }
  });
}

/// a + b in type T: integers wrap; 16-bit floating types are added in f32 and rounded.
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
