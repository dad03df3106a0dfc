#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm::detail {

// Preconditions that the backends share; each line says what is required and which error is thrown otherwise. Private.

/// The stream is a host stream: DeviceError.
void check_stream(std::string_view op, const Stream& stream);
/// The tensor is contiguous and on the host, the stream is a host stream: DeviceError, ShapeError.
void check_host(std::string_view op, const Stream& stream, const TensorView& view);
/// The same for a communicator of another device.
void check_stream(Device device, std::string_view op, const Stream& stream);
void check_on(Device device, std::string_view op, const Stream& stream, const TensorView& view);
/// The type can be summed, that is any type but u8: DTypeError.
void check_summable(std::string_view op, DType dtype);
/// whole.numel() == size * part.numel(), both of one element type: ShapeError, DTypeError.
void check_parts(std::string_view op, const TensorView& whole, const TensorView& part, int size);
/// Both have one type and one number of elements, a multiple of size, and share no byte: DTypeError, ShapeError.
void check_exchange(std::string_view op, const TensorView& in, const TensorView& out, int size);
/// True when part is the rank-th part of whole; ShapeError when they overlap in any other way.
[[nodiscard]] bool check_in_place(std::string_view op, const TensorView& part, const TensorView& whole, int rank);
/// 0 <= rank < size: UsageError.
void check_rank(std::string_view op, int rank, int size);
/// `peer` is a rank of the communicator other than this one: UsageError.
void check_peer(std::string_view op, int peer, int rank, int size);

/// Calls f(std::type_identity<T>{}) for the types that can be summed.
template <class F>
void visit_sum(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(std::type_identity<float>{});
    case DType::f64:
      return f(std::type_identity<double>{});
    case DType::i32:
      return f(std::type_identity<std::int32_t>{});
    case DType::i64:
      return f(std::type_identity<std::int64_t>{});
    case DType::u64:
      return f(std::type_identity<std::uint64_t>{});
    case DType::bf16:
      return f(std::type_identity<BFloat16>{});
    case DType::f16:
      return f(std::type_identity<Float16>{});
    case DType::u8:
      break;
  }
  check_summable("sum", dtype);
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
