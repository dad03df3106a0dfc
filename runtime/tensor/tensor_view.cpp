#include <lockstep/runtime/tensor/tensor_view.hpp>

#include <ostream>

namespace lockstep {

TensorView::TensorView(void* memory, DType type, Device where, const Shape& extents)
    : TensorView(memory, type, where, extents, contiguous_strides(extents)) {}

TensorView::TensorView(void* memory, DType type, Device where, const Shape& extents, const Strides& steps)
    : data(memory), dtype(type), device(where), shape(extents), strides(steps) {
  require<ShapeError>(shape.rank() == strides.rank(), "tensor view: shape ", shape, " and strides ", strides,
                      " differ in rank, expected a stride for each extent");
  static_cast<void>(bytes());  // throws for negative extents and for sizes that overflow
}

std::size_t TensorView::bytes() const {
  std::size_t total = 0;
  require<ShapeError>(!__builtin_mul_overflow(static_cast<std::size_t>(numel()), size_of(dtype), &total), "tensor ",
                      dtype, ' ', shape, ": has too many bytes, expected at most 2^64 - 1");
  return total;
}

bool TensorView::is_contiguous() const {
  if (numel() == 0) {
    return true;
  }
  std::int64_t expected = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[axis] != expected) {
      return false;
    }
    expected *= shape[axis];
  }
  return true;
}

TensorView TensorView::slice(int axis, std::int64_t begin, std::int64_t end) const {
  require<ShapeError>(axis >= 0 && axis < shape.rank(), "slice: axis is ", axis, ", expected an axis of shape ", shape);
  require<ShapeError>(begin >= 0 && begin <= end && end <= shape[axis], "slice: range is [", begin, ", ", end,
                      "), expected one within the ", shape[axis], " elements of axis ", axis, " of ", shape);
  TensorView result = *this;
  result.shape[axis] = end - begin;
  if (data != nullptr && begin < shape[axis]) {
    const std::int64_t offset = begin * strides[axis] * static_cast<std::int64_t>(size_of(dtype));
    result.data = static_cast<std::byte*>(data) + offset;
  }
  return result;
}

TensorView TensorView::permute(std::initializer_list<int> axes) const {
  require<ShapeError>(axes.size() == static_cast<std::size_t>(shape.rank()), "permute: ", axes.size(),
                      " axes for shape ", shape, ", expected one for each of its axes");
  TensorView result = *this;
  unsigned seen = 0;
  int to = 0;
  for (const int from : axes) {
    require<ShapeError>(from >= 0 && from < shape.rank() && (seen >> from & 1U) == 0, "permute: axis ", from,
                        " is repeated or outside shape ", shape, ", expected each of its axes once");
    seen |= 1U << from;
    result.shape[to] = shape[from];
    result.strides[to] = strides[from];
    ++to;
  }
  return result;
}

TensorView TensorView::reshape(const Shape& extents) const {
  require<ShapeError>(is_contiguous(), "reshape: ", shape, " with strides ", strides,
                      " is not contiguous, expected a contiguous tensor");
  require<ShapeError>(extents.numel() == numel(), "reshape: ", shape, " has ", numel(), " elements, ", extents, " has ",
                      extents.numel(), ", expected equal numbers");
  return {data, dtype, device, extents};
}

std::ostream& operator<<(std::ostream& out, const TensorView& view) {
  return out << view.dtype << ' ' << view.shape << " on " << view.device;
}

void require_on(const Device& device, std::string_view op, std::initializer_list<const TensorView*> views) {
  int index = 0;
  for (const TensorView* view : views) {
    require<DeviceError>(!view->given() || view->device == device, op, ": tensor ", index, " is on ", view->device,
                         ", expected ", device);
    require<ShapeError>(reinterpret_cast<std::uintptr_t>(view->data) % size_of(view->dtype) == 0, op, ": tensor ",
                        index, " begins at address ", view->data, ", expected a multiple of the ", size_of(view->dtype),
                        " bytes of its element");
    ++index;
  }
}

bool overlaps(const TensorView& a, const TensorView& b) {
  if (a.device != b.device || a.numel() == 0 || b.numel() == 0) {
    return false;
  }
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

}  // namespace lockstep
