#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

/// Up to eight 64-bit numbers, the extents or element strides of a tensor, stored in place. Copying never allocates.
class Dims {
 public:
  static constexpr int kMaxRank = 8;

  constexpr Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values);  ///< throws ShapeError for more than kMaxRank values

  [[nodiscard]] constexpr int rank() const { return rank_; }
  [[nodiscard]] constexpr std::int64_t operator[](int axis) const { return values_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] constexpr std::int64_t& operator[](int axis) { return values_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] constexpr std::int64_t back() const { return (*this)[rank_ - 1]; }
  [[nodiscard]] constexpr const std::int64_t* begin() const { return values_.data(); }
  [[nodiscard]] constexpr const std::int64_t* end() const { return values_.data() + rank_; }
  void push_back(std::int64_t value);
  /// Returns the product of the extents; 1 for rank 0. ShapeError if an extent is negative or the product reaches 2^63.
  [[nodiscard]] std::int64_t numel() const;

  friend bool operator==(const Dims& a, const Dims& b) {
    return a.rank_ == b.rank_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

using Shape = Dims;    ///< extents of a tensor, outermost axis first
using Strides = Dims;  ///< strides of a tensor, one for each axis, in elements

/// Returns the row-major strides of a shape without gaps.
[[nodiscard]] Strides contiguous_strides(const Shape& shape);
std::ostream& operator<<(std::ostream& out, const Dims& dims);  ///< prints "(2, 3, 5)"

}  // namespace lockstep
