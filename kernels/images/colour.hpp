#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ops::images {

enum class Colour {
  brightness,  ///< between black (0) and the image
  contrast,    ///< between the mean of its greys (0) and the image: mean_of_greys()
  saturation,  ///< between its greys (0) and the image
  hue          ///< by part of the circle of hues
};

struct ColourChange {
  Colour colour = Colour::brightness;
  double factor = 1;  ///< finite, at least 0; 1 changes nothing. Of hue: -0.5 to 0.5, and 0 changes nothing
};

/// The mean of the greys of an image is taken of whole numbers, so that its bits do not depend on the order of a sum:
/// each grey, in [0, 1], times kGreyParts, without what is behind the point.
inline constexpr float kGreyParts = 1U << 30U;
[[nodiscard]] inline float mean_of_greys(std::int64_t sum, std::int64_t pixels) {
  return static_cast<float>(static_cast<double>(sum) / (static_cast<double>(kGreyParts) * static_cast<double>(pixels)));
}

/// torchvision.transforms.functional's changes of colour, one after the other, as it makes them to tensors of
/// floating-point numbers: values of pixels in [0, 1], (pixels, 3) red, green, blue, changed in place and clamped to
/// [0, 1] by each. The bits are the same on every machine. `memory` stays for the next image.
void adjust_colours(std::span<const ColourChange> changes, std::span<float> pixels, std::vector<float>& memory);
/// The same of byte / 255, then the nearest bytes.
void adjust_colours(std::span<const ColourChange> changes, std::span<std::uint8_t> pixels, std::vector<float>& memory);

/// The nearest byte of a value in [0, 1].
[[nodiscard]] inline std::uint8_t byte_of(float value) {
  const float shifted = value * 255.0F + 0.5F;
  return static_cast<std::uint8_t>(shifted);
}

}  // namespace lockstep::ops::images
