#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ops::images {

enum class Colour {
  brightness,  ///< blend of black (factor 0) and the image (factor 1)
  contrast,    ///< blend of mean_of_greys() (factor 0) and the image (factor 1)
  saturation,  ///< blend of the greys of the image (factor 0) and the image (factor 1)
  hue          ///< turns the hue by a fraction of the colour circle
};

struct ColourChange {
  Colour colour = Colour::brightness;
  double factor = 1;  ///< hue: -0.5 to 0.5, 0 changes nothing; other kinds: finite, at least 0, 1 changes nothing
};

/// Whole number that represents a grey of 1 in a sum of greys. Before the sum each grey in [0, 1] is multiplied by
/// kGreyParts, and the fraction of the product is dropped. The sum of whole numbers is exact, so the mean does not
/// depend on the order of the pixels.
inline constexpr float kGreyParts = 1U << 30U;
[[nodiscard]] inline float mean_of_greys(std::int64_t sum, std::int64_t pixels) {
  return static_cast<float>(static_cast<double>(sum) / (static_cast<double>(kGreyParts) * static_cast<double>(pixels)));
}

/// Applies changes of colour one after the other, as torchvision.transforms.functional does for tensors of
/// floating-point numbers. pixels: (pixels, 3) red, green, blue in [0, 1], changed in place; each change clamps them to
/// [0, 1]. The bits are the same on every machine. `memory` can be used again for the next image.
void adjust_colours(std::span<const ColourChange> changes, std::span<float> pixels, std::vector<float>& memory);
/// Applies `changes` to the values byte / 255 of `pixels`, then stores the nearest bytes.
void adjust_colours(std::span<const ColourChange> changes, std::span<std::uint8_t> pixels, std::vector<float>& memory);

/// Returns the byte nearest to 255 * `value`, for a value in [0, 1].
[[nodiscard]] inline std::uint8_t byte_of(float value) {
  const float shifted = value * 255.0F + 0.5F;
  return static_cast<std::uint8_t>(shifted);
}

}  // namespace lockstep::ops::images
