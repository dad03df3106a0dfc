#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::ops::images {

/// The pixels [left, right) x [top, bottom) of an image. A rectangle is empty unless left < right and top < bottom.
struct Rectangle {
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::int64_t right = 0;
  std::int64_t bottom = 0;
  [[nodiscard]] bool empty() const { return right <= left || bottom <= top; }
};

// The images of fill_rectangle() and copy_rectangle() have shape (H, width, 3) and contain the whole rectangle.

/// Sets the pixels of the rectangle to `fill`.
void fill_rectangle(const Rectangle& rectangle, std::int64_t width, const std::array<std::uint8_t, 3>& fill,
                    std::uint8_t* image);
/// Copies the pixels of the rectangle from the image `from` to the same rectangle of `image`.
void copy_rectangle(const Rectangle& rectangle, std::int64_t width, const std::uint8_t* from, std::uint8_t* image);

/// Sets each bytes[i] to the byte nearest to share * bytes[i] + (1 - share) * others[i], with `share` in [0, 1].
/// Computes in f32 and rounds each operation by itself, so that the bits are the same on every machine.
void mix(float share, std::span<std::uint8_t> bytes, const std::uint8_t* others);

}  // namespace lockstep::ops::images
