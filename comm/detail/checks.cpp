#include <lockstep/comm/detail/checks.hpp>

#include <cstddef>

namespace lockstep::comm::detail {
namespace {

/// Throws ShapeError unless `whole` has size * part.numel() elements, and DTypeError unless both have the same type.
void check_parts(std::string_view op, const TensorView& whole, const TensorView& part, int size) {
  require<DTypeError>(whole.dtype == part.dtype, op, ": in and out are ", whole.dtype, " and ", part.dtype,
                      ", expected both of one type");
  const std::int64_t n = part.numel();
  require<ShapeError>(whole.numel() % size == 0 && whole.numel() / size == n, op, ": the larger tensor has ",
                      whole.numel(), " elements, expected ", n, " for each of the ", size, " ranks");
}

/// Returns true if `part` is part number `rank` of `whole`, and false if the two tensors do not overlap. Throws
/// ShapeError for any other overlap.
bool check_in_place(std::string_view op, const TensorView& part, const TensorView& whole, int rank) {
  if (!overlaps(part, whole)) {
    return false;
  }
  const std::byte* place = static_cast<const std::byte*>(whole.data) + static_cast<std::size_t>(rank) * part.bytes();
  require<ShapeError>(part.data == place, op, ": in and out overlap, expected no overlap, or the smaller one as part ",
                      rank, " of the other");
  return true;
}

}  // namespace

void check_stream(Device device, std::string_view op, const Stream& stream) {
  require<DeviceError>(stream.device() == device, op, ": stream is on ", stream.device(), ", expected ", device);
}

void check_on(Device device, std::string_view op, const Stream& stream, const TensorView& view) {
  require<DeviceError>(view.device == device, op, ": tensor is on ", view.device, ", expected ", device);
  check_stream(device, op, stream);
  require<ShapeError>(view.is_contiguous(), op, ": tensor ", view.shape, " with strides ", view.strides,
                      " is not contiguous, expected a contiguous one");
}

void check_stream(std::string_view op, const Stream& stream) {
  check_stream(Device::cpu(), op, stream);
}

void check_host(std::string_view op, const Stream& stream, const TensorView& view) {
  check_on(Device::cpu(), op, stream, view);
}

void check_summable(std::string_view op, DType dtype) {
  require<DTypeError>(dtype != DType::u8, op, ": dtype is ", dtype, ", expected any other type: u8 has no sum");
}

bool check_reduce_scatter(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                          int size) {
  constexpr std::string_view kOp = "reduce_scatter";
  check_on(device, kOp, stream, in);
  check_on(device, kOp, stream, out);
  check_summable(kOp, in.dtype);
  check_parts(kOp, in, out, size);
  return check_in_place(kOp, out, in, rank);
}

bool check_all_gather(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int rank,
                      int size) {
  constexpr std::string_view kOp = "all_gather";
  check_on(device, kOp, stream, in);
  check_on(device, kOp, stream, out);
  check_parts(kOp, out, in, size);
  return check_in_place(kOp, in, out, rank);
}

void check_all_to_all(Device device, const Stream& stream, const TensorView& in, const TensorView& out, int size) {
  constexpr std::string_view kOp = "all_to_all";
  check_on(device, kOp, stream, in);
  check_on(device, kOp, stream, out);
  require<DTypeError>(in.dtype == out.dtype, kOp, ": in and out are ", in.dtype, " and ", out.dtype,
                      ", expected both of one type");
  require<ShapeError>(in.numel() == out.numel() && in.numel() % size == 0, kOp, ": in and out have ", in.numel(),
                      " and ", out.numel(), " elements, expected equal numbers, a multiple of the ", size, " ranks");
  require<ShapeError>(!overlaps(in, out), kOp, ": in and out overlap, expected memory of its own for each");
}

void check_rank(std::string_view op, int rank, int size) {
  require<UsageError>(rank >= 0 && rank < size, op, ": rank is ", rank, ", expected 0 to ", size - 1);
}

void check_other_rank(std::string_view op, int peer, int rank, int size) {
  check_rank(op, peer, size);
  require<UsageError>(peer != rank, op, ": rank ", rank, " names itself, expected another rank");
}

}  // namespace lockstep::comm::detail
