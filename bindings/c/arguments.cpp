#include <lockstep/c/arguments.hpp>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <utility>

namespace lockstep::c {
namespace {

struct Type {
  lockstep_dtype number;
  DType dtype;
};
constexpr std::array kTypes{Type{LOCKSTEP_F32, DType::f32},   Type{LOCKSTEP_F64, DType::f64},
                            Type{LOCKSTEP_BF16, DType::bf16}, Type{LOCKSTEP_F16, DType::f16},
                            Type{LOCKSTEP_I32, DType::i32},   Type{LOCKSTEP_I64, DType::i64},
                            Type{LOCKSTEP_U8, DType::u8}};

Device device_of(const lockstep_view& view, const char* name) {
  if (view.device_type == LOCKSTEP_CPU) {
    return Device::cpu();
  }
  require<DeviceError>(view.device_type == LOCKSTEP_CUDA, name, ": device_type is ", view.device_type,
                       ", expected 1 (LOCKSTEP_CPU) or 2 (LOCKSTEP_CUDA)");
  require<DeviceError>(view.device_id >= 0, name, ": device_id is ", view.device_id, ", expected at least 0");
  return Device::cuda(view.device_id);
}

/// Throws ShapeError if the offset in bytes between elements of `view` could be too large for a 64-bit address.
void require_addressable(const TensorView& view, const char* name) {
  std::int64_t reach = 0;
  for (int axis = 0; axis < view.shape.rank(); ++axis) {
    std::int64_t here = 0;
    const std::int64_t steps = std::max<std::int64_t>(view.shape[axis] - 1, 0);
    const std::int64_t stride = view.strides[axis];
    require<ShapeError>(
        stride != std::numeric_limits<std::int64_t>::min() && !__builtin_mul_overflow(steps, std::abs(stride), &here) &&
            !__builtin_add_overflow(reach, here, &reach) && reach <= std::numeric_limits<std::int64_t>::max() / 16,
        name, ": shape ", view.shape, " with strides ", view.strides,
        " does not fit an address, expected elements less than 2^59 apart");
  }
}

/// Returns true if each stride is longer than the distance that all smaller strides together can reach. Then no two
/// elements share memory. This holds for all arrays of C and Fortran, and for regular sections of these arrays.
bool elements_are_apart(const TensorView& view) {
  std::array<std::pair<std::int64_t, std::int64_t>, Shape::kMaxRank> axes{};  // (|stride|, extent), ascending
  std::size_t n = 0;
  for (int axis = 0; axis < view.shape.rank(); ++axis) {
    if (view.shape[axis] > 1) {
      const std::pair<std::int64_t, std::int64_t> here{std::abs(view.strides[axis]), view.shape[axis]};
      std::size_t place = n++;
      for (; place > 0 && here < axes[place - 1]; --place) {
        axes[place] = axes[place - 1];
      }
      axes[place] = here;
    }
  }
  std::int64_t reach = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (axes[i].first <= reach) {
      return false;
    }
    reach += axes[i].first * (axes[i].second - 1);
  }
  return true;
}

template <class T>
double number_of(T element) {
  if constexpr (std::is_same_v<T, double>) {
    return element;
  } else {
    return static_cast<double>(static_cast<float>(element));
  }
}

/// Calls check(element, indexes of the element) for each element of `view` in row-major order.
template <class T, class Check>
void each_element(const TensorView& view, Check&& check) {
  std::array<std::int64_t, Shape::kMaxRank> at{};
  const std::int64_t count = view.numel();
  const int rank = view.shape.rank();
  const T* element = static_cast<const T*>(view.data);
  for (std::int64_t i = 0; i < count; ++i) {
    check(*element, std::span(at).first(static_cast<std::size_t>(rank)));
    for (int axis = rank; axis-- > 0;) {
      std::int64_t& index = at[static_cast<std::size_t>(axis)];
      element += view.strides[axis];
      if (++index < view.shape[axis]) {
        break;
      }
      element -= view.strides[axis] * index;
      index = 0;
    }
  }
}

}  // namespace

std::string text_of(const char* text, std::size_t length, const char* name) {
  constexpr std::size_t kLongest = std::size_t{1} << 30;  // a larger length is probably -1, converted to size_t
  static_cast<void>(given(text, name));
  require<UsageError>(length <= kLongest, name, " has ", length, " bytes, expected at most ", kLongest);
  std::string result = length == 0 ? std::string(text) : std::string(text, length);
  require<UsageError>(!result.empty(), name, " is empty, expected at least one character");
  require<UsageError>(result.find('\0') == std::string::npos, name, " holds a zero byte within its ", length,
                      " bytes, expected text without");
  return result;
}

DType dtype_from(lockstep_dtype dtype, const char* name) {
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return t.number == dtype; });
  require<DTypeError>(type != kTypes.end(), name, ": dtype is ", dtype,
                      ", expected 1 (LOCKSTEP_F32) to 7 (LOCKSTEP_U8)");
  return type->dtype;
}

lockstep_dtype to_c(DType dtype) {
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return t.dtype == dtype; });
  require<DTypeError>(type != kTypes.end(), "the C interface has no number for dtype ", dtype,
                      ", expected f32, f64, bf16, f16, i32, i64 or u8");
  return type->number;
}

bool flag_of(std::int32_t value, const char* name) {
  require<UsageError>(value == 0 || value == 1, name, " is ", value, ", expected 0 or 1");
  return value == 1;
}

TensorView view_of(const lockstep_view* given_view, Device device, const char* name) {
  const lockstep_view& view = given(given_view, name);
  require<ShapeError>(view.ndim >= 0 && view.ndim <= Shape::kMaxRank, name, ": ndim is ", view.ndim, ", expected 0 to ",
                      Shape::kMaxRank);
  require<ShapeError>(view.ndim == 0 || view.shape != nullptr, name, ": shape is NULL, expected ", view.ndim,
                      " extents");
  const auto n = static_cast<std::size_t>(view.ndim);
  const Shape shape(std::span<const std::int64_t>(view.shape, n));
  for (const std::int64_t extent : shape) {
    require<ShapeError>(extent >= 0, name, ": shape is ", shape, ", expected no extent below 0");
  }
  const Device where = device_of(view, name);
  require<DeviceError>(where == Device::cpu() || where == device, name, " is on ", where,
                       ", expected host memory or memory of ", device, ", where the context computes");
  const DType dtype = dtype_from(view.dtype, name);
  const std::int64_t count = shape.numel();
  TensorView result(
      view.data, dtype, where, shape,
      view.strides != nullptr ? Strides(std::span<const std::int64_t>(view.strides, n)) : contiguous_strides(shape));
  require_addressable(result, name);
  require<ShapeError>(view.data != nullptr || count == 0, name, ": data is NULL, expected ", count, " elements");
  require<ShapeError>(reinterpret_cast<std::uintptr_t>(view.data) % size_of(dtype) == 0, name, ": data is at address ",
                      view.data, ", expected a multiple of ", size_of(dtype), ", the size of ", dtype);
  return result;
}

TensorView output_of(const lockstep_view* view, Device device, const char* name) {
  TensorView result = view_of(view, device, name);
  require<ShapeError>(elements_are_apart(result), name, ": shape ", result.shape, " with strides ", result.strides,
                      " may show an element twice, expected memory of its own for each element that is written");
  return result;
}

TensorView vector_of(const TensorView& vector, const lockstep_view& view) {
  require<ShapeError>(view.axes == nullptr, "values: axes are '", axes_of(view),
                      "', expected NULL: a vector has its own order");
  return vector;
}

std::string_view axes_of(const lockstep_view& view) {
  return view.axes != nullptr ? std::string_view(view.axes) : std::string_view();
}

void require_finite(const TensorView& view, const char* name) {
  require<UnsupportedError>(view.device == Device::cpu(), name, " is on ", view.device,
                            " with check_input 1, expected memory of the host, or check_input 0");
  if (is_floating(view.dtype)) {
    visit_dtype(view.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (!std::is_integral_v<T>) {
        each_element<T>(view, [&](T element, std::span<const std::int64_t> at) {
          const double value = number_of(element);
          require<UsageError>(std::isfinite(value), name, ": element ", Shape(at), " is ", value,
                              ", expected a finite number");
        });
      }
    });
  }
}

void require_labels(const TensorView& view, std::int64_t least, std::int64_t most, const char* name) {
  require<DTypeError>(!is_floating(view.dtype), name, ": dtype is ", view.dtype,
                      ", expected an integer type: a label is a class");
  if (view.device == Device::cpu()) {
    visit_dtype(view.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (std::is_integral_v<T>) {
        each_element<T>(view, [&](T element, std::span<const std::int64_t> at) {
          const auto value = static_cast<std::int64_t>(element);
          require<DataError>(value >= least && value <= most, name, ": element ", Shape(at), " is ", value,
                             ", expected a class of ", least, " to ", most);
        });
      }
    });
  }
}

}  // namespace lockstep::c
