#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::testing {

/// Returns all elements of a host view as doubles, row-major. Any type, any strides.
[[nodiscard]] std::vector<double> to_doubles(const TensorView& view);
/// Writes values (row-major) into a host view, converted to its type. Any type, any strides.
void from_doubles(const std::vector<double>& values, const TensorView& view);

class GuardedTensor;
/// Fills a tensor with its initial values. An empty Generator leaves the tensor poisoned.
using Generator = std::function<void(GuardedTensor&)>;

/// A contiguous host tensor for tests, between guard bytes. Its content is poisoned: every byte is 0xff, which is NaN
/// in floating types, and -1 or the maximum in integers. Tests thus find writes past either end, and elements that were
/// never written.
class GuardedTensor {
 public:
  static constexpr std::size_t kGuardBytes = 256;  ///< bytes of each guard; the upper guard follows the last element

  GuardedTensor(const Shape& shape, DType dtype);
  GuardedTensor(const Shape& shape, DType dtype, const Generator& start) : GuardedTensor(shape, dtype) { start(*this); }
  GuardedTensor(const Shape& shape, DType dtype, const std::vector<double>& values) : GuardedTensor(shape, dtype) {
    assign(values);
  }

  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor): used as a view
  template <class T>
  [[nodiscard]] std::span<T> span() const {
    return view_.span<T>();
  }
  [[nodiscard]] std::vector<double> values() const { return to_doubles(view_); }
  /// Returns the whole allocation with its guards. OpInstance copies it to another device and back.
  [[nodiscard]] std::span<std::byte> image() const { return {image_.get(), bytes_}; }

  /// Returns an empty text when both guards are intact, otherwise a text that says which byte was written.
  [[nodiscard]] std::string check() const;

  GuardedTensor& poison();
  // The values are drawn from lockstep::Random and repeat after 1000003 elements, so that large tensors are quick to
  // make.
  GuardedTensor& normal(std::uint64_t seed, double scale = 1, double mean = 0);
  GuardedTensor& uniform(std::uint64_t seed, double low = 0, double high = 1);       ///< [low, high)
  GuardedTensor& integers(std::uint64_t seed, std::int64_t low, std::int64_t high);  ///< low..high, both included
  GuardedTensor& constant(double value);
  GuardedTensor& assign(const std::vector<double>& values);

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte[], Free> image_;
  TensorView view_;
};

inline Generator normal(std::uint64_t seed, double scale = 1, double mean = 0) {
  return [=](GuardedTensor& t) { t.normal(seed, scale, mean); };
}
inline Generator uniform(std::uint64_t seed, double low = 0, double high = 1) {
  return [=](GuardedTensor& t) { t.uniform(seed, low, high); };
}
inline Generator integers(std::uint64_t seed, std::int64_t low, std::int64_t high) {
  return [=](GuardedTensor& t) { t.integers(seed, low, high); };
}
inline Generator constant(double value) {
  return [=](GuardedTensor& t) { t.constant(value); };
}
inline Generator values(std::vector<double> list) {
  return [list = std::move(list)](GuardedTensor& t) { t.assign(list); };
}

/// Returns a Generator that calls `start` and then replaces each value with f(value).
inline Generator mapped(const Generator& start, const std::function<double(double)>& f) {
  return [=](GuardedTensor& t) {
    start(t);
    std::vector<double> list = t.values();
    std::transform(list.begin(), list.end(), list.begin(), f);
    t.assign(list);
  };
}

}  // namespace lockstep::testing
