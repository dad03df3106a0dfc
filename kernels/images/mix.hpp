#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::ops::images {

/// Pixels [left, right) x [top, bottom) of an image; empty unless left < right and top < bottom.
struct Rectangle {
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::int64_t right = 0;
  std::int64_t bottom = 0;
  [[nodiscard]] bool empty() const { return right <= left || bottom <= top; }
};

// In the functions below images are (H, width, 3) and contain the rectangle.

/// Sets the pixels of the rectangle to `fill`.
void fill_rectangle(const Rectangle& rectangle, std::int64_t width, const std::array<std::uint8_t, 3>& fill,
                    std::uint8_t* image);
/// Copies the pixels of the rectangle from `from` to `image`.
void copy_rectangle(const Rectangle& rectangle, std::int64_t width, const std::uint8_t* from, std::uint8_t* image);

/// bytes = the nearest bytes of share * bytes + (1 - share) * others, in f32, each operation rounded by itself: the
/// bits are the same on every machine. share: in [0, 1].
void mix(float share, std::span<std::uint8_t> bytes, const std::uint8_t* others);

}  // namespace lockstep::ops::images
