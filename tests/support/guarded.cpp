#include "tests/support/guarded.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include <lockstep/runtime/base/random.hpp>

namespace lockstep::testing {
namespace {

constexpr std::align_val_t kImageAlignment{256};
constexpr std::byte kGuard{0xa5};
constexpr std::byte kPoison{0xff};

/// Calls f(pointer to the element) in row-major order.
template <class T, class F>
void for_each_element(const TensorView& view, F&& f) {
  const std::int64_t count = view.numel();
  if (view.is_contiguous()) {
    for (std::int64_t i = 0; i < count; ++i) {
      f(static_cast<T*>(view.data) + i);
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int axis = view.shape.rank() - 1; axis >= 0; --axis) {
      offset += rest % view.shape[axis] * view.strides[axis];
      rest /= view.shape[axis];
    }
    f(static_cast<T*>(view.data) + offset);
  }
}

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

void require_host(const TensorView& view) {
  require<DeviceError>(view.device == Device::cpu(), "test support: tensor is on ", view.device, ", expected cpu");
}

/// Fills the view with the values. If the view has more elements, the values repeat.
void from_repeated(const std::vector<double>& values, const TensorView& view) {
  require_host(view);
  visit_dtype(view.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    std::size_t i = 0;
    for_each_element<T>(view, [&](T* element) {
      const double value = values[i];
      i = i + 1 == values.size() ? 0 : i + 1;
      if constexpr (kIsHalf<T>) {
        *element = T(static_cast<float>(value));
      } else {
        *element = static_cast<T>(value);
      }
    });
  });
}

constexpr std::int64_t kPeriod = 1000003;  // a prime, so that rows of a large tensor still differ

/// Fills the view with drawn values. Draws at most kPeriod values. If the view has more elements, the values repeat.
template <class Draw>
void fill_drawn(const TensorView& view, Draw&& draw) {
  std::vector<double> list(static_cast<std::size_t>(std::min(view.numel(), kPeriod)));
  std::generate(list.begin(), list.end(), draw);
  from_repeated(list, view);
}

}  // namespace

std::vector<double> to_doubles(const TensorView& view) {
  require_host(view);
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(view.numel()));
  visit_dtype(view.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for_each_element<T>(view, [&](const T* element) {
      if constexpr (kIsHalf<T>) {
        result.push_back(static_cast<double>(static_cast<float>(*element)));
      } else {
        result.push_back(static_cast<double>(*element));
      }
    });
  });
  return result;
}

void from_doubles(const std::vector<double>& values, const TensorView& view) {
  require<ShapeError>(static_cast<std::int64_t>(values.size()) == view.numel(), "test support: ", values.size(),
                      " values for shape ", view.shape);
  from_repeated(values, view);
}

void GuardedTensor::Free::operator()(std::byte* pointer) const {
  ::operator delete[](pointer, kImageAlignment);
}

GuardedTensor::GuardedTensor(const Shape& shape, DType dtype)
    : bytes_(TensorView(nullptr, dtype, Device::cpu(), shape).bytes() + 2 * kGuardBytes),
      image_(static_cast<std::byte*>(::operator new[](bytes_, kImageAlignment))),
      view_(image_.get() + kGuardBytes, dtype, Device::cpu(), shape) {
  std::fill_n(image_.get(), kGuardBytes, kGuard);
  std::fill_n(image_.get() + bytes_ - kGuardBytes, kGuardBytes, kGuard);
  poison();
}

std::string GuardedTensor::check() const {
  const std::byte* content = image_.get() + kGuardBytes;
  const std::size_t content_bytes = bytes_ - 2 * kGuardBytes;
  for (std::size_t i = 1; i <= kGuardBytes; ++i) {
    if (*(content - i) != kGuard) {
      return concat("byte ", i, " before the first element of ", view_, " was written");
    }
  }
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (content[content_bytes + i] != kGuard) {
      return concat("byte ", i + 1, " after the last element of ", view_, " was written");
    }
  }
  return {};
}

GuardedTensor& GuardedTensor::poison() {
  std::fill_n(image_.get() + kGuardBytes, bytes_ - 2 * kGuardBytes, kPoison);
  return *this;
}

GuardedTensor& GuardedTensor::normal(std::uint64_t seed, double scale, double mean) {
  Random random(seed, RandomUse::test);
  fill_drawn(view_, [&] { return mean + scale * random.normal(); });
  return *this;
}

GuardedTensor& GuardedTensor::uniform(std::uint64_t seed, double low, double high) {
  Random random(seed, RandomUse::test);
  fill_drawn(view_, [&] { return low + (high - low) * random.uniform(); });
  return *this;
}

GuardedTensor& GuardedTensor::integers(std::uint64_t seed, std::int64_t low, std::int64_t high) {
  Random random(seed, RandomUse::test);
  const auto bound = static_cast<std::uint32_t>(high - low + 1);
  fill_drawn(view_, [&] { return static_cast<double>(low + static_cast<std::int64_t>(random.below(bound))); });
  return *this;
}

GuardedTensor& GuardedTensor::constant(double value) {
  from_repeated({value}, view_);
  return *this;
}

GuardedTensor& GuardedTensor::assign(const std::vector<double>& list) {
  from_doubles(list, view_);
  return *this;
}

}  // namespace lockstep::testing
