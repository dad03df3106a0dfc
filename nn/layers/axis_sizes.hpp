#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

namespace lockstep::nn {

/// A number for each axis of space, outermost first as in torch's tuples ({1, 3, 3} over (D, H, W)), or one for all of
/// them. A layer refuses another number of entries, by its name.
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
  /// Whether it has a number for each of so many axes, 1 to kMostAxes.
  [[nodiscard]] constexpr bool fits(int axes) const { return entries_ == 1 || entries_ == axes; }
  [[nodiscard]] constexpr std::int64_t operator[](int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] constexpr std::int64_t least() const {
    return *std::min_element(sizes_.begin(), sizes_.begin() + used());
  }
  /// True when every axis has this number.
  [[nodiscard]] constexpr bool all(std::int64_t value) const {
    return std::all_of(sizes_.begin(), sizes_.begin() + used(), [=](std::int64_t size) { return size == value; });
  }

  /// As they were written: 3 is not {3, 3}, which fits two axes only.
  friend constexpr bool operator==(const AxisSizes&, const AxisSizes&) = default;

 private:
  [[nodiscard]] constexpr int used() const { return std::clamp(entries_, 1, kMostAxes); }

  std::array<std::int64_t, kMostAxes> sizes_{};
  int entries_;
};

/// "1x3x3"; where all numbers are equal "3", whether it was written once or for each axis.
std::ostream& operator<<(std::ostream& out, const AxisSizes& sizes);

/// How errors name a sample with so many axes of space: "(H, W, C)".
[[nodiscard]] const char* sample_text(int axes);

struct NamedSizes {
  const char* name;
  AxisSizes sizes;
};
/// UsageError, naming the layer, unless each option has one number, or one for each axis.
void require_axes(const std::string& layer, int axes, std::initializer_list<NamedSizes> options);

}  // namespace lockstep::nn
