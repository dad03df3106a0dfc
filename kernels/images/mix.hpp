#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::ops::images {

/// Pixels [left, right) x [top, bottom) of an image; empty where an end is not behind its begin.
struct Rectangle {
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::int64_t right = 0;
  std::int64_t bottom = 0;
  [[nodiscard]] bool empty() const { return right <= left || bottom <= top; }
};

// Images are (H, width, 3) here, and hold the rectangle.

/// The pixels of the rectangle become `fill`.
void fill_rectangle(const Rectangle& rectangle, std::int64_t width, const std::array<std::uint8_t, 3>& fill,
                    std::uint8_t* image);
/// The pixels of the rectangle become those of `from`.
void copy_rectangle(const Rectangle& rectangle, std::int64_t width, const std::uint8_t* from, std::uint8_t* image);

/// bytes = the nearest bytes of share * bytes + (1 - share) * others, in f32, each operation rounded by itself: the
/// bits are the same on every machine. share: in [0, 1].
void mix(float share, std::span<std::uint8_t> bytes, const std::uint8_t* others);

}  // namespace lockstep::ops::images
