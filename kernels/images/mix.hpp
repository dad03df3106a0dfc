#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::ops::images {

/// The pixels [left, right) x [top, bottom) of an image. Empty unless left < right and top < bottom.
struct Rectangle {
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::int64_t right = 0;
  std::int64_t bottom = 0;
  [[nodiscard]] bool empty() const { return right <= left || bottom <= top; }
};

// In the functions below an image has shape (H, width, 3) and contains the rectangle.

/// Sets the pixels of the rectangle to `fill`.
void fill_rectangle(const Rectangle& rectangle, std::int64_t width, const std::array<std::uint8_t, 3>& fill,
                    std::uint8_t* image);
/// Copies the pixels of the rectangle from `from` to `image`.
void copy_rectangle(const Rectangle& rectangle, std::int64_t width, const std::uint8_t* from, std::uint8_t* image);

/// Sets bytes to the bytes nearest to share * bytes + (1 - share) * others, with share in [0, 1]. Computes in f32 and
/// rounds each operation by itself: the bits are the same on every machine.
void mix(float share, std::span<std::uint8_t> bytes, const std::uint8_t* others);

}  // namespace lockstep::ops::images
