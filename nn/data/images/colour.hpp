#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// torchvision.transforms.functional's changes of colour, as it makes them to tensors of floating-point numbers: values
/// of pixels in [0, 1], (pixels, 3) red, green, blue, changed in place and clamped to [0, 1]. The bits are the same on
/// every machine. A factor is finite and at least 0; 1 changes nothing.
namespace lockstep::nn::images {

void adjust_brightness(std::span<float> pixels, double factor);  ///< between black (0) and the image
void adjust_contrast(std::span<float> pixels, double factor);    ///< between the mean of its greys (0) and the image
void adjust_saturation(std::span<float> pixels, double factor);  ///< between its greys (0) and the image
void adjust_hue(std::span<float> pixels, double turn);           ///< by part of the circle of hues, -0.5 to 0.5

/// The nearest byte of a value in [0, 1].
[[nodiscard]] inline std::uint8_t byte_of(float value) {
  const float shifted = value * 255.0F + 0.5F;
  return static_cast<std::uint8_t>(shifted);
}

}  // namespace lockstep::nn::images
