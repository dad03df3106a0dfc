#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

namespace lockstep::nn {

/// Sizes of a layer along its spatial axes: one number for each axis, outermost first as in torch ({1, 3, 3} over (D,
/// H, W)), or one number for all axes. A layer throws UsageError, with the layer's name, if the count of numbers is
/// neither 1 nor the number of its axes.
class AxisSizes {
 public:
  static constexpr int kMostAxes = 3;

  // NOLINTBEGIN(google-explicit-constructor): `.kernel = 3`
  constexpr AxisSizes(std::int64_t all) : sizes_{all, all, all}, entries_(1) {}
  constexpr AxisSizes(std::initializer_list<std::int64_t> each) : entries_(static_cast<int>(each.size())) {
    if (entries_ == 1) {
      sizes_.fill(*each.begin());
    } else {
      std::copy_n(each.begin(), std::min(entries_, kMostAxes), sizes_.begin());
    }
  }
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] constexpr int entries() const { return entries_; }
  /// Returns true if there is one number for all axes, or one number for each of `axes` axes (1 to kMostAxes).
  [[nodiscard]] constexpr bool fits(int axes) const { return entries_ == 1 || entries_ == axes; }
  [[nodiscard]] constexpr std::int64_t operator[](int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] constexpr std::int64_t least() const {
    return *std::min_element(sizes_.begin(), sizes_.begin() + used());
  }
  /// Returns true if the size of every axis is `value`.
  [[nodiscard]] constexpr bool all(std::int64_t value) const {
    return std::all_of(sizes_.begin(), sizes_.begin() + used(), [=](std::int64_t size) { return size == value; });
  }

  /// Compares the numbers as the caller wrote them: 3 differs from {3, 3}, which fits only two axes.
  friend constexpr bool operator==(const AxisSizes&, const AxisSizes&) = default;

 private:
  [[nodiscard]] constexpr int used() const { return std::clamp(entries_, 1, kMostAxes); }

  std::array<std::int64_t, kMostAxes> sizes_{};
  int entries_;
};

/// Prints sizes that differ like "1x3x3", and equal sizes as one number: both 3 and {3, 3} are printed as "3".
std::ostream& operator<<(std::ostream& out, const AxisSizes& sizes);

/// Returns the name of a sample's shape for error texts, like "(H, W, C)" for a sample with two spatial axes.
[[nodiscard]] const char* sample_text(int axes);

struct NamedSizes {
  const char* name;
  AxisSizes sizes;
};
/// Throws UsageError, with the name `layer`, unless the sizes of each option fit `axes` axes (AxisSizes::fits()).
void require_axes(const std::string& layer, int axes, std::initializer_list<NamedSizes> options);

}  // namespace lockstep::nn
