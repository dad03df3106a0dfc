#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>

#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/tensor/shape.hpp>

namespace lockstep {

/// A strided window on memory that another object owns: data, element type, device, extents and element strides. A
/// plain value of about 170 bytes; copying a view copies no data and allocates nothing. An op's comment says which of
/// its views the op reads and which it writes. A view with data == nullptr and rank 0 means "not given".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  Shape shape;
  Strides strides;

  TensorView() = default;
  /// Makes a row-major view without gaps.
  TensorView(void* data, DType dtype, Device device, const Shape& shape);
  /// Makes a view with any strides, in elements; they may be negative or zero. ShapeError if the ranks differ.
  TensorView(void* data, DType dtype, Device device, const Shape& shape, const Strides& strides);
  /// Makes a view of host memory with elements of type T.
  template <class T, std::size_t N>
  TensorView(std::span<T, N> values, const Shape& extents)
      : TensorView(const_cast<std::remove_cv_t<T>*>(values.data()), dtype_of<T>, Device::cpu(), extents) {
    require<ShapeError>(static_cast<std::int64_t>(values.size()) == extents.numel(), "TensorView: ", values.size(),
                        " elements for shape ", extents, ", expected ", extents.numel());
  }

  [[nodiscard]] bool given() const { return data != nullptr || shape.rank() != 0; }
  [[nodiscard]] std::int64_t numel() const { return shape.numel(); }
  /// Returns numel() times the size of an element: the bytes of a contiguous copy.
  [[nodiscard]] std::size_t bytes() const;
  /// Returns true if the view is row-major without gaps. Axes of extent 1 do not matter; an empty tensor is contiguous.
  [[nodiscard]] bool is_contiguous() const;

  /// Returns `data` as T*. Throws DTypeError unless T is the element type.
  template <class T>
  [[nodiscard]] T* as() const {
    require<DTypeError>(dtype == dtype_of<T>, "tensor is ", dtype, ", expected ", dtype_of<T>, " as it is read");
    return static_cast<T*>(data);
  }
  /// Returns all elements as one span. Throws ShapeError unless the view is contiguous, DTypeError unless T is the
  /// element type.
  template <class T>
  [[nodiscard]] std::span<T> span() const {
    require<ShapeError>(is_contiguous(), "tensor ", shape, " with strides ", strides,
                        " is not contiguous, expected a contiguous tensor");
    return {as<T>(), static_cast<std::size_t>(numel())};
  }

  /// Returns the part of the view with the positions [begin, end) of `axis`.
  [[nodiscard]] TensorView slice(int axis, std::int64_t begin, std::int64_t end) const;
  /// Returns a view whose axis i is axis axes[i] of this view.
  [[nodiscard]] TensorView permute(std::initializer_list<int> axes) const;
  /// Returns a row-major view of the same memory with `shape`. Throws ShapeError unless this view is contiguous.
  [[nodiscard]] TensorView reshape(const Shape& shape) const;
};

/// Prints a view for error texts: "f32 (2, 3) on cpu".
std::ostream& operator<<(std::ostream& out, const TensorView& view);

/// Throws DeviceError, with both devices, unless all given views are on `device`. Throws ShapeError if the address of a
/// view is not a multiple of the view's element size. `op` is the caller's name for the text.
void require_on(const Device& device, std::string_view op, std::initializer_list<const TensorView*> views);

/// Returns true if the address ranges of two contiguous views share at least one byte.
[[nodiscard]] bool overlaps(const TensorView& a, const TensorView& b);

}  // namespace lockstep
